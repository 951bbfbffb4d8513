// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// role makes the test binary a vgpud that systemd started.
const role = "VGPU_VGPUD_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(role) == "" {
		os.Exit(m.Run())
	}
	os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	os.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	main()
}

// service is what systemd keeps of a vgpud: its control socket.
type service struct {
	manager *manager
	socket  *os.File
	path    string
	config  string
}

// newService makes the socket, as systemd does before the first vgpud. The
// simulated driver must be built (make build).
func newService(t *testing.T) *service {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, need := range []string{"build/lib/libvgpu-cuda.so", "build/lib/libvgpu-nvml.so", "build/simgpu/bin/simgpu"} {
		if _, err := os.Stat(filepath.Join(root, need)); err != nil {
			t.Fatalf("not built yet, run make build: %v", err)
		}
	}
	dir := t.TempDir()
	state := filepath.Join(dir, "vgpu")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	s := &service{manager: newManager(t), path: filepath.Join(state, "vgpud.sock"), config: filepath.Join(dir, "vgpud.toml")}
	s.socket = passed(t, unix.AF_UNIX, unix.SOCK_STREAM, &unix.SockaddrUnix{Name: s.path}, true)
	config := fmt.Sprintf("gpus = 'sim:1'\nstate = %q\n[library]\ncuda = %q\nnvml = %q\nopencl = ''\n[simulated]\nroot = %q\n",
		state, filepath.Join(root, "build/lib/libvgpu-cuda.so"), filepath.Join(root, "build/lib/libvgpu-nvml.so"), filepath.Join(root, "build/simgpu"))
	if err := os.WriteFile(s.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// start starts a vgpud as systemd does.
func (s *service) start(t *testing.T) (_ *exec.Cmd, stderr *bytes.Buffer) {
	t.Helper()
	stderr = new(bytes.Buffer)
	cmd := exec.Command("/proc/self/exe", "--config", s.config)
	cmd.Env = append(os.Environ(), role+"=vgpud", "LISTEN_FDS=1", "LISTEN_FDNAMES=vgpud.socket",
		"NOTIFY_SOCKET="+s.manager.path, "WATCHDOG_USEC=3600000000")
	cmd.ExtraFiles = []*os.File{s.socket}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Logf("vgpud:\n%s", stderr)
	})
	return cmd, stderr
}

// dial connects as the shim does; that works whether a vgpud runs or not.
func (s *service) dial(t *testing.T) v1.ControlClient {
	t.Helper()
	conn, err := net.Dial("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	t.Cleanup(func() { client.Close() })
	return v1.NewControlClient(client)
}

func (s *service) tells(t *testing.T, want string) {
	t.Helper()
	if got := s.manager.next(); got != want {
		t.Fatalf("vgpud told %q, not %q", got, want)
	}
}

func TestCallsWaitForAVgpudThatIsAway(t *testing.T) {
	s := newService(t)

	// A container is made before vgpud runs.
	control := s.dial(t)
	type answer struct {
		resp *v1.CreateResponse
		err  error
	}
	created := make(chan answer, 1)
	request := &v1.CreateRequest{
		Container: &v1.Container{Containerd: "/run/containerd/containerd.sock", Namespace: "test", Id: "a"},
		Instance:  "a-1", Bundle: t.TempDir(), DefaultCount: 1,
	}
	go func() {
		resp, err := control.Create(t.Context(), request)
		created <- answer{resp, err}
	}()
	vgpud, _ := s.start(t)
	s.tells(t, opening)
	ready := s.manager.next() // the Create may have come first, or not
	if !strings.HasPrefix(ready, "READY=1\nSTATUS=") || !strings.HasSuffix(ready, "on 1 GPU\nWATCHDOG=1") {
		t.Errorf("%q", ready)
	}
	first := <-created
	if first.err != nil {
		t.Fatal(first.err)
	}

	// It is asked again while vgpud is restarted.
	if err := vgpud.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.tells(t, "STOPPING=1\nSTATUS=stopping; containers go on")
	if err := vgpud.Wait(); err != nil {
		t.Fatal(err)
	}
	control = s.dial(t)
	go func() {
		resp, err := control.Create(t.Context(), request)
		created <- answer{resp, err}
	}()
	vgpud, stderr := s.start(t)
	s.tells(t, opening)
	s.tells(t, "READY=1\nSTATUS=1 vGPU on 1 GPU\nWATCHDOG=1")
	second := <-created
	if second.err != nil {
		t.Fatal(second.err)
	}
	dir := func(a answer) string { return a.resp.GetEdits().GetMounts()[0].GetSource() }
	if dir(first) != dir(second) {
		t.Errorf("%s before, %s after", dir(first), dir(second))
	}

	// What the watchdog sends makes vgpud say where it was.
	if err := vgpud.Process.Signal(syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}
	_ = vgpud.Wait()
	if !strings.Contains(stderr.String(), "(*poller).run(") {
		t.Error("the stack of the loop is not in the log")
	}
}

func TestASocketThatDoesNotFitEndsVgpud(t *testing.T) {
	s := newService(t)
	config, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.config, append([]byte("socket = '/run/another.sock'\n"), config...), 0o600); err != nil {
		t.Fatal(err)
	}
	vgpud, stderr := s.start(t)
	defer time.AfterFunc(patience, func() { _ = vgpud.Process.Kill() }).Stop()
	err = vgpud.Wait()
	if vgpud.ProcessState.ExitCode() != 2 || !strings.Contains(stderr.String(), s.path) || !strings.Contains(stderr.String(), "/run/another.sock") {
		t.Errorf("%v: %s", err, stderr)
	}
}
