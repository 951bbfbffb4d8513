// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// abandonedInterval is how often a server looks for its bundle until a first Create
// comes, which it does at once.
const abandonedInterval = time.Second

// listener is the descriptor of the socket that a server gets from its parent.
const listener = 3

// exitIfAbandoned ends a server whose bundle is removed before the channel used is
// closed, at a first Create: there is nothing yet that it could leave behind, but for
// its socket. containerd forgets a server that it has started if it fails after that,
// as when it has no room for a file of its own. The server may wait for somebody to
// read its log then, before it serves at all.
func exitIfAbandoned(used <-chan struct{}) {
	// What has the descriptor now may close it.
	socket, err := unix.FcntlInt(listener, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return // it was started by hand
	}
	defer unix.Close(socket)
	tick := time.NewTicker(abandonedInterval)
	defer tick.Stop()
	for {
		select {
		case <-used:
			return
		case <-tick.C:
		}
		// The server's working directory is the bundle.
		if _, err := unix.Getcwd(make([]byte, unix.PathMax)); !errors.Is(err, unix.ENOENT) {
			continue
		}
		// Where that is stood in the bundle.
		if a, err := unix.Getsockname(socket); err == nil {
			if a, ok := a.(*unix.SockaddrUnix); ok {
				_ = os.Remove(a.Name)
			}
		}
		os.Exit(1)
	}
}
