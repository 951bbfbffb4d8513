// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/vgpu-shim/vgpu/vgpu/metrics"
)

// checkMetrics is what is wrong with an address for metrics, empty if nothing is.
func checkMetrics(address string) string {
	if address == "" || filepath.IsAbs(address) && len(address) <= maxSocketPath {
		return ""
	}
	host, port, err := net.SplitHostPort(address)
	if n, numErr := strconv.ParseUint(port, 10, 16); err == nil && numErr == nil && n > 0 && (host == "" || net.ParseIP(host) != nil) {
		return ""
	}
	return fmt.Sprintf(`an IP address and a port such as "127.0.0.1:9442", an absolute path of at most %d bytes, or empty`, maxSocketPath)
}

// serveMetrics serves metrics until ctx ends, if that is configured. That it can
// not is no reason for vgpud to end: containers need it.
func (d *Daemon) serveMetrics(ctx context.Context) {
	address := d.cfg.Metrics
	if address == "" {
		return
	}
	entry := d.log.WithField("address", address)
	listen, err := listenMetrics(address)
	if err != nil {
		entry.WithError(err).Error("metrics are not served; set metrics in the configuration to another address, and see docs/metrics.md for the systemd unit")
		return
	}
	lines := entry.WriterLevel(logrus.WarnLevel)
	defer lines.Close()
	errs := log.New(lines, "", 0)
	server := &http.Server{
		Handler: metrics.Handler(d, errs), ErrorLog: errs, MaxHeaderBytes: 16 << 10,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
	}
	entry.Info("metrics are served")
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listen) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		server.Close()
		err = <-ended
	}
	if !errors.Is(err, http.ErrServerClosed) {
		entry.WithError(err).Error("metrics are not served any more")
	}
}

func listenMetrics(address string) (net.Listener, error) {
	if filepath.IsAbs(address) {
		return makeSocket(address, "metrics socket", "metrics")
	}
	return net.Listen("tcp", address)
}
