// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// vgpud is one of a few lines: it answers observers as the test says.
type vgpud struct {
	t   testing.TB
	dir string

	mu        sync.Mutex
	listener  *net.UnixListener
	conns     map[*net.UnixConn]bool
	changed   chan struct{} // closed when conns is another than it was
	accepted  int
	bound     bool
	slow      bool // an IDENTITY that binds is told to wait
	waiting   []*net.UnixConn
	gpus      [][16]byte
	mute      bool      // it reads and says nothing
	refuse    *wire.Msg // the answer to an IDENTITY that binds
	refuseAll bool      // and to all others
	usage     map[[16]byte]usage
	announced uint64 // this many processes, whatever follows
	asked     []string
}

type usage struct {
	limit, used, heldPPM uint64
	processes            []wire.Process
}

func newVgpud(t testing.TB, gpus ...[16]byte) *vgpud {
	t.Helper()
	v := &vgpud{t: t, dir: t.TempDir(), gpus: gpus, conns: map[*net.UnixConn]bool{}, changed: make(chan struct{}), usage: map[[16]byte]usage{}}
	v.back()
	t.Cleanup(v.away)
	return v
}

// back starts to listen.
func (v *vgpud) back() {
	v.t.Helper()
	sock := filepath.Join(v.dir, wire.Socket)
	_ = os.Remove(sock) // of an earlier one
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: sock, Net: "unixpacket"})
	if err != nil {
		v.t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as if it was killed
	v.mu.Lock()
	defer v.mu.Unlock()
	v.listener = l
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			v.mu.Lock()
			v.accepted++
			v.conns[conn] = true
			v.tellChange()
			v.mu.Unlock()
			go v.serve(conn)
		}
	}()
}

// away is the end of a vgpud: nobody listens any more.
func (v *vgpud) away() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.listener.Close()
	for conn := range v.conns {
		conn.Close()
	}
}

func (v *vgpud) serve(conn *net.UnixConn) {
	defer func() {
		conn.Close()
		v.mu.Lock()
		delete(v.conns, conn)
		v.tellChange()
		v.mu.Unlock()
	}()
	buf := make([]byte, wire.MsgSize)
	for first := true; ; first = false {
		n, err := conn.Read(buf)
		if err != nil || n == 0 {
			return
		}
		m, err := wire.Parse(buf[:n])
		if err != nil {
			v.t.Errorf("the client sent %v", err)
			return
		}
		v.mu.Lock()
		switch {
		case v.mute:
		case m.Type == wire.Identity && first:
			v.identity(conn, m.A[0] == 1)
		case m.Type == wire.Usage && !first:
			v.tell(conn, m.UUID[0])
		default:
			v.t.Errorf("message %d out of turn", m.Type)
		}
		v.mu.Unlock()
	}
}

func send(conn *net.UnixConn, m wire.Msg) {
	_, _ = conn.Write(m.Marshal(make([]byte, wire.MsgSize)))
}

func (v *vgpud) identity(conn *net.UnixConn, bind bool) {
	if !bind {
		v.asked = append(v.asked, "tell")
		if v.refuseAll {
			send(conn, *v.refuse)
			return
		}
	} else {
		v.asked = append(v.asked, "bind")
		if v.refuse != nil {
			send(conn, *v.refuse)
			return
		}
		if v.slow {
			w := wire.Msg{Type: wire.Wait}
			copy(w.Text[:], "all are taken")
			send(conn, w)
			v.waiting = append(v.waiting, conn)
			return
		}
		v.bound = true
	}
	v.is(conn)
}

func (v *vgpud) is(conn *net.UnixConn) {
	m := wire.Msg{Type: wire.IdentityIs, A: [4]uint64{uint64(len(v.gpus))}}
	if v.bound {
		m.Count = uint32(copy(m.UUID[:], v.gpus))
	}
	send(conn, m)
}

// bind answers those that wait.
func (v *vgpud) bind() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bound, v.slow = true, false
	for _, conn := range v.waiting {
		v.is(conn)
	}
	v.waiting = nil
}

func (v *vgpud) tell(conn *net.UnixConn, uuid [16]byte) {
	v.asked = append(v.asked, "usage")
	if !slices.Contains(v.gpus, uuid) {
		m := wire.Msg{Type: wire.UsageIs, Code: wire.ErrNoGPU, Count: 1}
		m.UUID[0] = uuid
		copy(m.Text[:], "it is not there")
		send(conn, m)
		return
	}
	u := v.usage[uuid]
	m := wire.Msg{Type: wire.UsageIs, Count: 1, A: [4]uint64{u.limit, u.used, u.heldPPM, uint64(len(u.processes))}}
	m.UUID[0] = uuid
	if v.announced > 0 {
		m.A[3] = v.announced
	}
	send(conn, m)
	for rest := u.processes; len(rest) > 0; {
		m := wire.Msg{Type: wire.Processes}
		n := copy(m.Processes()[:], rest)
		rest = rest[n:]
		m.Count = uint32(n)
		if len(rest) == 0 {
			m.A[0] = 1
		}
		send(conn, m)
	}
}

// set changes what vgpud says of a GPU.
func (v *vgpud) set(uuid [16]byte, u usage) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.usage[uuid] = u
}

// tellChange wakes who waits for another number of connections; under the lock.
func (v *vgpud) tellChange() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// settles waits until so many connections stand.
func (v *vgpud) settles(want int) {
	v.t.Helper()
	for late := time.After(patience); ; {
		v.mu.Lock()
		now, changed := len(v.conns), v.changed
		v.mu.Unlock()
		if now == want {
			return
		}
		select {
		case <-changed:
		case <-late:
			v.t.Fatalf("%d connections stand, want %d", now, want)
		}
	}
}

// ever is how many connections there have been.
func (v *vgpud) ever() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.accepted
}

// questions are those since the last call.
func (v *vgpud) questions() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	defer func() { v.asked = nil }()
	return v.asked
}
