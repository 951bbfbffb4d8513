// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/node"
)

// manager is systemd's end of NOTIFY_SOCKET.
type manager struct {
	t    *testing.T
	path string
	conn *net.UnixConn
}

// patience is how long a test waits for what must come. It measures nothing.
const patience = 30 * time.Second

func newManager(t *testing.T) *manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &manager{t, path, conn}
}

// next waits for a message.
func (m *manager) next() string {
	m.t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		m.t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := m.conn.Read(buf)
	if err != nil {
		m.t.Fatalf("waited in vain for a message: %v", err)
	}
	return string(buf[:n])
}

// nothing makes sure that there is no message now.
func (m *manager) nothing() {
	m.t.Helper()
	raw, err := m.conn.SyscallConn()
	if err != nil {
		m.t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		buf := make([]byte, 4096)
		if n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT); err == nil {
			m.t.Errorf("told too early: %q", buf[:n])
		}
	}); err != nil {
		m.t.Fatal(err)
	}
}

func TestTheWatchdogIsAnsweredByTheLoopAlone(t *testing.T) {
	m := newManager(t)
	t.Setenv("NOTIFY_SOCKET", m.path)
	tell := func(state string) {
		if ok, err := daemon.SdNotify(false, state); !ok || err != nil {
			t.Errorf("%v, %v", ok, err)
		}
	}
	asked, answer := make(chan struct{}), make(chan node.Status)
	status := func() (node.Status, error) {
		asked <- struct{}{}
		return <-answer, nil // as long as nobody answers, the loop is stuck
	}
	tick := make(chan time.Time)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		attend(ctx, status, tick, true, tell)
	}()

	recovering := node.Status{VGPUs: 2, GPUs: 1, Recovering: true}
	<-asked
	m.nothing() // not ready before the loop runs
	answer <- recovering
	if got, want := m.next(), "READY=1\nSTATUS=2 vGPUs on 1 GPU; waiting for processes to come back after a restart\nWATCHDOG=1"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
	tick <- time.Time{}
	<-asked
	m.nothing() // the loop is stuck
	answer <- recovering
	if got := m.next(); got != "WATCHDOG=1" {
		t.Errorf("%q", got)
	}
	tick <- time.Time{}
	<-asked
	answer <- node.Status{VGPUs: 1, GPUs: 2}
	if got := m.next(); got != "STATUS=1 vGPU on 2 GPUs\nWATCHDOG=1" {
		t.Errorf("%q", got)
	}
	cancel()
	if got := m.next(); !strings.HasPrefix(got, "STOPPING=1\n") {
		t.Errorf("%q", got)
	}
	<-done
}

func TestWithoutAWatchdogOnlyChangesAreTold(t *testing.T) {
	s := []node.Status{{GPUs: 1}, {GPUs: 1}, {VGPUs: 1, GPUs: 1}}
	status := func() (next node.Status, _ error) {
		if len(s) == 0 {
			return next, errors.New("the daemon has ended")
		}
		next, s = s[0], s[1:]
		return next, nil
	}
	tick := make(chan time.Time, 3)
	for range cap(tick) {
		tick <- time.Time{}
	}
	var told []string
	attend(t.Context(), status, tick, false, func(state string) { told = append(told, state) })
	if len(told) != 3 || told[0] != "READY=1\nSTATUS=0 vGPUs on 1 GPU" || told[1] != "STATUS=1 vGPU on 1 GPU" || !strings.HasPrefix(told[2], "STOPPING=1") {
		t.Errorf("%q", told)
	}
}

func TestTheWatchdogIsAnsweredTwiceInItsTime(t *testing.T) {
	for watchdog, want := range map[time.Duration]time.Duration{0: statusEvery, 30 * time.Second: 15 * time.Second, time.Nanosecond: time.Microsecond} {
		if got := beat(watchdog); got != want {
			t.Errorf("%v: %v", watchdog, got)
		}
	}
}
