// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMetricsAreServed(t *testing.T) {
	for _, kind := range []string{"tcp", "unix"} {
		n := &node{t: t, state: filepath.Join(t.TempDir(), "vgpu"), created: map[string]string{}, settings: settings{gpus: 1}}
		address := filepath.Join(n.state, "metrics.sock")
		if kind == "tcp" {
			// A port that is free, of an address that nobody else uses.
			pid := os.Getpid()
			l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+pid>>16, pid>>8&0xff, pid&0xff))
			if err != nil {
				t.Fatal(err)
			}
			address = l.Addr().String()
			l.Close()
		}
		n.settings.metrics = address
		n.start()
		defer n.stop()
		n.create("a", "memory=1Gi")
		a := n.client("a")
		a.ask("work", "work: passed")
		a.takes(mib)
		client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, kind, address)
		}}}
		var text string
		n.until("it answers", func() bool {
			resp, err := client.Get("http://vgpud/metrics")
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			text = string(body)
			return err == nil && resp.StatusCode == http.StatusOK
		})
		for _, line := range []string{
			`vgpu_state{container="a",id="` + n.idOf("a") + `",namespace="test",state="HOLDING"} 1`,
			`vgpu_memory_used_bytes{container="a",gpu="` + gpuUUID(0) + `",id="` + n.idOf("a") + `",namespace="test"} 1.048576e+06`,
			`vgpu_gpu_state{gpu="` + gpuUUID(0) + `",state="HELD"} 1`,
		} {
			if !strings.Contains(text, "\n"+line+"\n") {
				t.Errorf("%s: %s is missing in\n%s", kind, line, text)
			}
		}
		client.CloseIdleConnections()
		n.stop()
	}
}

// Who takes the address of the metrics does not end vgpud.
func TestAnAddressThatIsTakenEndsNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	n := newNode(t, settings{metrics: l.Addr().String()})
	n.create("a")
	n.client("a").ask("work", "work: passed")
}

func TestAddressesOfMetrics(t *testing.T) {
	for address, ok := range map[string]bool{
		"": true, "127.0.0.1:9442": true, ":9442": true, "[::1]:9442": true, "/run/vgpu/metrics.sock": true,
		"9442": false, "localhost:9442": false, "127.0.0.1": false, "127.0.0.1:0": false, "127.0.0.1:99999": false,
		"metrics.sock": false, "/" + strings.Repeat("x", 200): false,
	} {
		cfg := DefaultConfig()
		cfg.Metrics = address
		if err := cfg.Check(); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "metrics") {
			t.Errorf("%q: %v", address, err)
		}
	}
}
