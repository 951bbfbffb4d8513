// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/node"
)

// passedSocket is the control socket among the files that systemd passed
// (sd_listen_fds(3)), and its path; nil if it passed none. The listener does not
// remove the socket's file: who comes while vgpud is away waits in its queue.
// The files are closed.
func passedSocket(files []*os.File) (_ net.Listener, path string, _ error) {
	if len(files) == 0 {
		return nil, "", nil
	}
	var what []string
	var good []net.Listener
	for _, f := range files {
		defer f.Close()
		l, err := net.FileListener(f) // of any socket of these kinds, whether it listens or not
		if err != nil {
			what = append(what, fmt.Sprintf("%s, which is no socket that can listen (%v)", f.Name(), err))
			continue
		}
		kind, address := l.Addr().Network(), l.Addr().String()
		accepts, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		listens := "listening"
		if err != nil || accepts == 0 {
			listens = "not listening"
		}
		what = append(what, fmt.Sprintf("%s, a %s %s socket of %q", f.Name(), listens, kind, address))
		if kind == "unix" && accepts == 1 && filepath.IsAbs(address) {
			good = append(good, l)
		} else {
			l.Close()
		}
	}
	if len(files) == 1 && len(good) == 1 {
		return good[0], filepath.Clean(good[0].Addr().String()), nil
	}
	for _, l := range good {
		l.Close()
	}
	return nil, "", fmt.Errorf("systemd must pass one listening unix stream socket with a path (one ListenStream= with a path and Accept=no in vgpud.socket); it passed: %s", strings.Join(what, "; "))
}

// use makes the path of a passed socket the control socket's, unless another one
// was configured. It comes before Check.
func use(passed string, cfg *node.Config) error {
	switch {
	case passed == "":
	case cfg.Socket == "" || filepath.Clean(cfg.Socket) == passed:
		cfg.Socket = passed
	default:
		return fmt.Errorf("systemd passed the socket %s, but the control socket is configured as %s: make ListenStream= in vgpud.socket and the key socket (or --socket) the same, or leave the key out", passed, cfg.Socket)
	}
	return nil
}
