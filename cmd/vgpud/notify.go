// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"os"
)

// notifyReady tells systemd that the service is up (sd_notify(3)), if it asked.
func notifyReady() error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte("READY=1"))
	return err
}
