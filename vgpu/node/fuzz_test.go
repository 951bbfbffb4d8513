// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// Whatever comes over a client's socket, vgpud goes on. Fuzz it with
// -fuzzminimizetime=10x: the daemon's own goroutines make coverage uneven, and
// inputs would be minimised for ever.
func FuzzClientMessages(f *testing.F) {
	var n *node
	dir := f.TempDir()
	f.Cleanup(func() {
		if n != nil {
			n.stop()
		}
	})
	f.Add(packet(wire.Msg{Type: wire.Hello}), packet(wire.Msg{Type: wire.Bind}), false)
	f.Add(packet(wire.Msg{Type: wire.Pending}), packet(wire.Msg{Type: wire.Hello, Protocol: 9}), true)
	f.Add([]byte("x"), []byte{}, false)
	f.Add(packet(wire.Msg{Type: wire.Stats, A: [4]uint64{1 << 63, 1 << 63}}), changed(wire.Msg{Type: wire.Hello}, 12, 200), false)
	f.Add(packet(wire.Msg{Type: wire.Identity, A: [4]uint64{1}}), packet(wire.Msg{Type: wire.Usage, Count: 1}), false)
	f.Add(packet(wire.Msg{Type: wire.Hello}), packet(wire.Msg{Type: wire.Memory, A: [4]uint64{1 << 40, 1 << 63, 1}}), false)
	f.Fuzz(func(t *testing.T, first, second []byte, descriptor bool) {
		if n == nil {
			n = newFuzzNode(t, dir)
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := connectIn(fd, n.created["a"]); err != nil {
			t.Fatal(err)
		}
		var oob []byte
		if descriptor {
			oob = unix.UnixRights(0)
		}
		_, _ = unix.SendmsgN(fd, first, oob, nil, unix.MSG_NOSIGNAL)
		_, _ = unix.SendmsgN(fd, second, nil, nil, unix.MSG_NOSIGNAL)
		if _, err := n.control.Info(context.Background(), &v1.InfoRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := n.control.List(context.Background(), &v1.ListRequest{}); err != nil {
			t.Fatal(err)
		}
	})
}
