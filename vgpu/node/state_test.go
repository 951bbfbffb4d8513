// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
)

func TestAStateDirectoryIsNotTakenOver(t *testing.T) {
	write := func(path string) error { return os.WriteFile(path, []byte("mine"), 0o600) }
	for what, tc := range map[string]struct {
		make func(dir string) error
		says string // empty: it is taken
	}{
		"none":                     {func(string) error { return nil }, ""},
		"an empty one":             {func(dir string) error { return os.Mkdir(dir, 0o755) }, ""},
		"an earlier vgpud's":       {func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), write(dir+"/lock"), write(dir+"/x")) }, ""},
		"somebody's files":         {func(dir string) error { return errors.Join(os.Mkdir(dir, 0o755), write(dir+"/x")) }, "not vgpud's"},
		"one that others write to": {func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o770)) }, "chmod go-w"},
		"one of another user":      {func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 1000, 1000)) }, "another user"},
		"a file":                   {write, "not a directory"},
		"a symbolic link":          {func(dir string) error { return os.Symlink(os.TempDir(), dir) }, "not a directory"},
		"a lock that leads astray": {func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Symlink("/dev/null", dir+"/lock")) }, "lock"},
		"a lock that is no file":   {func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), unix.Mkfifo(dir+"/lock", 0o600)) }, "lock"},
		"c/ that others write to": {func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), write(dir+"/lock"), os.Mkdir(dir+"/c", 0o700), os.Chmod(dir+"/c", 0o777))
		}, "chmod go-w"},
		"a store that is somewhere else": {func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), write(dir+"/lock"), os.Symlink("/etc/hostname", dir+"/store.db"))
		}, "not a regular file"},
		"old records that are somewhere else": {func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), write(dir+"/lock"), os.Symlink("/", dir+"/v"))
		}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			if err := tc.make(dir); err != nil {
				t.Fatal(err)
			}
			before, _ := os.Lstat(dir)
			cfg := settings{}.config(dir)
			if err := cfg.Check(); err != nil {
				t.Fatal(err)
			}
			d, err := newDaemon(cfg, gputest.New(1), discard())
			if err == nil {
				d.close()
			}
			if (tc.says == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("%v", err)
			}
			if after, _ := os.Lstat(dir); before != nil && after.Mode() != before.Mode() {
				t.Errorf("its mode was changed from %v to %v", before.Mode(), after.Mode())
			}
			if _, err := os.Lstat(filepath.Join(dir, "lock")); tc.says == "not vgpud's" && err == nil {
				t.Error("something was put into it")
			}
		})
	}
}

func TestTheControlSocketMayBeThereBeforeVgpud(t *testing.T) {
	for what, tc := range map[string]struct {
		name string
		file func(path string) error
		ok   bool
	}{
		"the control socket":            {"vgpud.sock", socketAt, true},
		"another socket":                {"x.sock", socketAt, false},
		"a file with the socket's name": {"vgpud.sock", func(path string) error { return os.WriteFile(path, nil, 0o600) }, false},
	} {
		dir := t.TempDir()
		if err := tc.file(filepath.Join(dir, tc.name)); err != nil {
			t.Fatal(err)
		}
		state, err := OpenState(dir, filepath.Join(dir, "vgpud.sock"))
		if (err == nil) != tc.ok || (err != nil && !strings.Contains(err.Error(), "not vgpud's")) {
			t.Errorf("%s: %v", what, err)
		}
		if err == nil {
			state.Close()
		}
	}
}

func socketAt(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrUnix{Name: path})
}

func TestFilesOfOthersAreNotSwept(t *testing.T) {
	n := newNode(t, settings{})
	n.stop()
	id := strings.Repeat("0", 16)
	ours := []string{"c/" + id + "-" + id, "store.db.new", "accounts.new", "v/" + id + "-" + id + ".json", "v/." + id + "-" + id + ".json123"}
	foreign := []string{"x", "c/notes", "c/" + id, "v/notes", "v/notes.json", "v/.vimrc"}
	if err := os.Mkdir(filepath.Join(n.state, "v"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(ours, foreign...) {
		if err := os.WriteFile(filepath.Join(n.state, name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.start()
	for _, name := range foreign {
		if _, err := os.Lstat(filepath.Join(n.state, name)); err != nil {
			t.Errorf("%s is gone", name)
		}
	}
	for _, name := range ours {
		if _, err := os.Lstat(filepath.Join(n.state, name)); err == nil {
			t.Errorf("%s, which a crash left, is still there", name)
		}
	}
	if s := n.gpu(0).GetState(); s != "FREE" {
		t.Errorf("the GPU is %s because of files of others", s)
	}
}

func TestTheControlSocketTakesNobodysPlace(t *testing.T) {
	dir := t.TempDir()
	try := func(socket string) error {
		cfg := settings{}.config(filepath.Join(dir, "state"))
		cfg.Socket = socket
		if err := cfg.Check(); err != nil {
			t.Fatal(err)
		}
		d, err := newDaemon(cfg, gputest.New(1), discard())
		if err == nil {
			d.close()
		}
		return err
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := try(file); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file: %v", err)
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "mine" {
		t.Errorf("the file is gone: %v", err)
	}
	socket := filepath.Join(dir, "socket")
	listen, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	listen.SetUnlinkOnClose(false)
	if err := try(socket); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a socket in use: %v", err)
	}
	if c, err := net.Dial("unix", socket); err != nil {
		t.Errorf("the socket in use is gone: %v", err)
	} else {
		c.Close()
	}
	listen.Close()
	if err := try(socket); err != nil {
		t.Errorf("a socket that nobody uses: %v", err)
	}
}

// The modes of the files keep others out; should they not, vgpud does.
func TestTheControlSocketServesRootAlone(t *testing.T) {
	n := newNode(t, settings{})
	socket := filepath.Join(n.state, "vgpud.sock")
	if info, err := os.Stat(socket); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for _, uid := range []int{0, 1000} {
		conn, err := dialAs(uid, socket)
		if err != nil {
			t.Fatal(err)
		}
		client := ttrpc.NewClient(conn)
		_, err = v1.NewControlClient(client).List(t.Context(), &v1.ListRequest{})
		if (err == nil) != (uid == 0) {
			t.Errorf("user %d is answered %v", uid, err)
		}
		client.Close()
	}
}

// dialAs connects as another user, whom no mode of a file stops.
func dialAs(uid int, socket string) (conn net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The thread alone is that user's, and ends with the goroutine.
		runtime.LockOSThread()
		const noSetuidFixup = 1 << 2 // SECBIT_NO_SETUID_FIXUP: it keeps its capabilities
		if err = unix.Prctl(unix.PR_SET_SECUREBITS, noSetuidFixup, 0, 0, 0); err != nil {
			return
		}
		if _, _, no := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); no != 0 {
			err = no
			return
		}
		conn, err = net.Dial("unix", socket)
	}()
	<-done
	return conn, err
}

// A user of a container who connects while vgpud starts must find the old
// socket or the new one, never one that is not open to all yet: the driver
// library takes EACCES for final.
func TestASocketIsNeverThereBeforeAllMayConnect(t *testing.T) {
	dir := t.TempDir()
	fd, err := listenIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	var stop atomic.Bool
	looked := make(chan string, 1)
	started := make(chan struct{})
	go func() {
		for i := 0; !stop.Load(); i++ {
			info, err := os.Lstat(filepath.Join(dir, "sock"))
			if err != nil {
				looked <- err.Error()
				return
			}
			if info.Mode() != 0o666|os.ModeSocket {
				looked <- "its mode is " + info.Mode().String()
				return
			}
			if i == 0 {
				close(started)
			}
		}
		looked <- ""
	}()
	<-started
	for range 3000 {
		fd, err := listenIn(dir)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	}
	stop.Store(true)
	if saw := <-looked; saw != "" {
		t.Error(saw)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left: %v %v", entries, err)
	}
}
