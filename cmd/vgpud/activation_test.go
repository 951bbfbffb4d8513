// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/node"
)

// passed is a file as systemd passes it.
func passed(t *testing.T, family, kind int, address unix.Sockaddr, listens bool) *os.File {
	t.Helper()
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "vgpud.socket")
	t.Cleanup(func() { f.Close() })
	if err := unix.Bind(fd, address); err != nil {
		t.Fatal(err)
	}
	if listens {
		if err := unix.Listen(fd, 8); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func TestThePassedSocketIsTakenAndLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vgpud.sock")
	// The manager has one of its own, too.
	manager := passed(t, unix.AF_UNIX, unix.SOCK_STREAM, &unix.SockaddrUnix{Name: path}, true)
	fd, err := unix.Dup(int(manager.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	l, at, err := passedSocket([]*os.File{os.NewFile(uintptr(fd), "vgpud.socket")})
	if err != nil || at != path {
		t.Fatalf("%q, %v", at, err)
	}
	for range 2 { // the second finds nobody, and waits
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	l.Close()
	if _, err := net.Dial("unix", path); err != nil {
		t.Errorf("once vgpud has closed it: %v", err)
	}
}

func TestWithoutSystemdNothingIsPassed(t *testing.T) {
	if l, path, err := passedSocket(nil); l != nil || path != "" || err != nil {
		t.Errorf("%v, %q, %v", l, path, err)
	}
}

func TestWhatElseIsPassedIsNamed(t *testing.T) {
	dir := t.TempDir()
	unixSocket := func(name string) unix.Sockaddr { return &unix.SockaddrUnix{Name: filepath.Join(dir, name)} }
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		files []*os.File
		says  []string
	}{
		"two": {[]*os.File{
			passed(t, unix.AF_UNIX, unix.SOCK_STREAM, unixSocket("a"), true),
			passed(t, unix.AF_UNIX, unix.SOCK_STREAM, unixSocket("b"), true),
		}, []string{dir + "/a", dir + "/b"}},
		"datagrams": {
			[]*os.File{passed(t, unix.AF_UNIX, unix.SOCK_DGRAM, unixSocket("c"), false)},
			[]string{"vgpud.socket, a not listening unixgram socket", dir + "/c"},
		},
		"packets": {[]*os.File{passed(t, unix.AF_UNIX, unix.SOCK_SEQPACKET, unixSocket("d"), true)}, []string{"unixpacket", dir + "/d"}},
		"one that does not listen": {
			[]*os.File{passed(t, unix.AF_UNIX, unix.SOCK_STREAM, unixSocket("e"), false)},
			[]string{"not listening unix socket", dir + "/e"},
		},
		"one without a path": {
			[]*os.File{passed(t, unix.AF_UNIX, unix.SOCK_STREAM, &unix.SockaddrUnix{Name: "@vgpu-test-" + filepath.Base(filepath.Dir(dir))}, true)},
			[]string{`"@vgpu-test-`},
		},
		"tcp":  {[]*os.File{passed(t, unix.AF_INET, unix.SOCK_STREAM, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}, true)}, []string{"tcp", "127.0.0.1:"}},
		"file": {[]*os.File{null}, []string{os.DevNull, "no socket"}},
	} {
		l, _, err := passedSocket(tc.files)
		if l != nil || err == nil {
			t.Errorf("%s: %v, %v", name, l, err)
			continue
		}
		for _, says := range append(tc.says, "ListenStream=", "Accept=no") {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v does not say %q", name, err, says)
			}
		}
	}
}

func TestThePassedSocketMustBeTheConfiguredOne(t *testing.T) {
	const path = "/run/vgpu/vgpud.sock"
	for _, tc := range []struct{ configured, passed, socket, says string }{
		{configured: "", passed: "", socket: ""},
		{configured: "/a", passed: "", socket: "/a"},
		{configured: "", passed: "/elsewhere.sock", socket: "/elsewhere.sock"},
		{configured: path, passed: path, socket: path},
		{configured: "/run//vgpu/./vgpud.sock", passed: path, socket: path},
		{configured: "/a", passed: path, socket: "/a", says: "/a"},
	} {
		cfg := node.DefaultConfig()
		cfg.Socket = tc.configured
		err := use(tc.passed, &cfg)
		if cfg.Socket != tc.socket || (err == nil) != (tc.says == "") {
			t.Errorf("%+v: %q, %v", tc, cfg.Socket, err)
		}
		if err != nil && (!strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), tc.passed) || !strings.Contains(err.Error(), "vgpud.socket")) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
