// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	cshim "github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"

	"github.com/vgpu-shim/vgpu/shim/bundle"
)

// beShim makes the test binary, and what it starts, the shim binary.
const beShim = "VGPU_TEST_BE_SHIM"

func TestMain(m *testing.M) {
	if os.Getenv(beShim) != "" {
		os.Exit(Main())
	}
	os.Exit(m.Run())
}

// process is the shim as containerd sees it: a binary that is run in a bundle.
type process struct {
	t      *testing.T
	bundle string
}

// newProcess needs root: a server listens below /run/containerd, as every shim
// under containerd 1.6 to 2.2 does.
func newProcess(t *testing.T) *process {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
	p := &process{t, filepath.Join(t.TempDir(), fmt.Sprintf("c%d", os.Getpid()))}
	if err := os.Mkdir(p.bundle, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.bundle, bundle.ConfigFile), []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	// The server's log, which it opens at once and which containerd reads.
	log := filepath.Join(p.bundle, "log")
	if err := syscall.Mkfifo(log, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(log, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, f)
	}()
	t.Cleanup(func() {
		f.Close()
		<-done
	})
	return p
}

func (p *process) id() string { return filepath.Base(p.bundle) }

// command is one that containerd runs. A PATH without runc keeps the test from
// depending on it.
func (p *process) command(args ...string) *exec.Cmd {
	p.t.Helper()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(self, append([]string{"-namespace", "test", "-id", p.id(), "-address", "/nonexistent/c.sock"}, args...)...)
	cmd.Dir = p.bundle
	cmd.Env = []string{beShim + "=1", "PATH=/nonexistent", "TTRPC_ADDRESS=/nonexistent/c.sock.ttrpc"}
	return cmd
}

// eventually waits for something that another process does.
func (p *process) eventually(what string, done func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("waited in vain: %s", what)
		}
	}
}

func gone(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

func TestBinary(t *testing.T) {
	for _, c := range []struct {
		description string
		input       func(p *process, sockets string) []byte
		address     func(t *testing.T, answer []byte) string
	}{
		{
			"containerd 1.6",
			func(*process, string) []byte { return nil },
			func(_ *testing.T, answer []byte) string { return string(answer) },
		},
		{
			"containerd 2.4",
			func(p *process, sockets string) []byte {
				return mustMarshal(p.t, &bootapi.BootstrapParams{
					InstanceID:            p.id(),
					Namespace:             "test",
					ContainerdGrpcAddress: "/nonexistent/c.sock",
					SocketDir:             proto.String(sockets),
				})
			},
			func(t *testing.T, answer []byte) string {
				var result bootapi.BootstrapResult
				if err := proto.Unmarshal(answer, &result); err != nil {
					t.Fatalf("the answer %q: %v", answer, err)
				}
				if result.GetVersion() != 3 || result.GetProtocol() != "ttrpc" {
					t.Errorf("the answer is %v", &result)
				}
				return result.GetAddress()
			},
		},
	} {
		t.Run(c.description, func(t *testing.T) {
			p := newProcess(t)
			sockets, err := os.MkdirTemp("", "s")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(sockets)

			start := p.command("start")
			start.Stdin = bytes.NewReader(c.input(p, sockets))
			answer, err := start.CombinedOutput()
			if err != nil {
				t.Fatalf("start: %v: %s", err, answer)
			}
			address := c.address(t, answer)
			socket, ok := strings.CutPrefix(address, "unix://")
			if !ok {
				t.Fatalf("the address is %q", address)
			}
			if data, err := os.ReadFile(filepath.Join(p.bundle, "address")); err != nil || string(data) != address {
				t.Errorf("the address file holds %q, %v", data, err)
			}

			conn, err := cshim.AnonDialer(address, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			client := ttrpc.NewClient(conn)
			defer client.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			v2, err := taskv2.NewTTRPCTaskClient(client).Connect(ctx, &taskv2.ConnectRequest{ID: p.id()})
			if err != nil {
				t.Fatal(err)
			}
			v3, err := taskv3.NewTTRPCTaskClient(client).Connect(ctx, &taskv3.ConnectRequest{ID: p.id()})
			if err != nil {
				t.Fatal(err)
			}
			if v2.GetShimPid() == 0 || v2.GetShimPid() != v3.GetShimPid() {
				t.Errorf("served by %d and %d", v2.GetShimPid(), v3.GetShimPid())
			}

			// The answer may be lost: the server ends. That it does is checked.
			_, _ = taskv2.NewTTRPCTaskClient(client).Shutdown(ctx, &taskv2.ShutdownRequest{ID: p.id()})
			p.eventually("the server removes its socket", func() bool { return gone(socket) })
			p.deleted()
		})
	}
}

func TestBinaryKilled(t *testing.T) {
	p := newProcess(t)
	answer, err := p.command("start").CombinedOutput()
	if err != nil {
		t.Fatalf("start: %v: %s", err, answer)
	}
	conn, err := cshim.AnonDialer(string(answer), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	resp, err := taskv3.NewTTRPCTaskClient(client).Connect(ctx, &taskv3.ConnectRequest{ID: p.id()})
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(int(resp.GetShimPid()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.eventually("the server is dead", func() bool { return !cshim.CanConnect(string(answer)) })
	socket := strings.TrimPrefix(string(answer), "unix://")
	if gone(socket) {
		t.Error("the example is none: a killed server removed its socket")
	}
	p.deleted()
	if !gone(socket) {
		t.Errorf("%s is left", socket)
	}
}

// containerd has started a server, fails then, and removes the bundle: it never comes
// back to that server.
func TestAServerThatIsAbandonedEnds(t *testing.T) {
	for _, c := range []struct {
		description string
		log         bool // somebody reads it
	}{{"serving", true}, {"before it serves", false}} {
		t.Run(c.description, func(t *testing.T) {
			p := newProcess(t)
			if !c.log {
				log := filepath.Join(p.bundle, "log")
				if err := errors.Join(os.Remove(log), syscall.Mkfifo(log, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			answer, err := p.command("start").CombinedOutput()
			if err != nil {
				t.Fatalf("start: %v: %s", err, answer)
			}
			conn, err := cshim.AnonDialer(string(answer), time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			client := ttrpc.NewClient(conn)
			defer client.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if !c.log {
				p.eventually("the server waits for a reader of its log", p.waitsForReader)
			} else if _, err := taskv3.NewTTRPCTaskClient(client).Connect(ctx, &taskv3.ConnectRequest{ID: p.id()}); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(p.bundle); err != nil {
				t.Fatal(err)
			}
			p.eventually("the server ends", func() bool { return !cshim.CanConnect(string(answer)) })
			p.eventually("its socket is gone", func() bool { return gone(strings.TrimPrefix(string(answer), "unix://")) })
		})
	}
}

// waitsForReader says whether a process that was started in the bundle is in open(2)
// of a FIFO.
func (p *process) waitsForReader() bool {
	all, _ := filepath.Glob("/proc/[0-9]*/task/*/wchan")
	for _, path := range all {
		cwd, _ := os.Readlink(filepath.Join(filepath.Dir(path), "cwd"))
		function, _ := os.ReadFile(path)
		if cwd == p.bundle && string(function) == "wait_for_partner" {
			return true
		}
	}
	return false
}

// A state file that can not be used: the container is cleaned up all the same,
// and the operator is told. containerd logs what `delete` writes to standard
// error, and takes standard output for the answer.
func TestBinaryDeletesDespiteItsState(t *testing.T) {
	for _, c := range []struct{ description, state, says string }{
		{"of a newer version", `{"version": 99, "later": true}`, "version 99"},
		{"cut off", `{"version": 1, "addr`, "unexpected end"},
		{"empty", ``, "unexpected end"},
		{"without the vGPU", `{"version": 1}`, "damaged"},
	} {
		t.Run(c.description, func(t *testing.T) {
			p := newProcess(t)
			path := filepath.Join(p.bundle, bundle.StateFile)
			if err := os.WriteFile(path, []byte(c.state), 0o600); err != nil {
				t.Fatal(err)
			}
			stderr := p.deleted()
			for _, s := range []string{"level=warning", path, c.says, "left to vgpud"} {
				if !strings.Contains(stderr, s) {
					t.Errorf("%q is not in the log: %s", s, stderr)
				}
			}
			if data, err := os.ReadFile(path); err != nil || string(data) != c.state {
				t.Errorf("the state is %q now, %v", data, err)
			}
		})
	}
}

// deleted runs the `delete` action, whose standard output is the answer and
// nothing else, and returns its standard error.
func (p *process) deleted() (stderr string) {
	p.t.Helper()
	cmd := p.command("-bundle", p.bundle, "delete")
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		p.t.Fatalf("delete: %v: %s", err, log.String())
	}
	var resp taskv3.DeleteResponse
	if err := proto.Unmarshal(out, &resp); err != nil || resp.GetExitStatus() != 137 {
		p.t.Errorf("delete answered %q: %v, %v", out, &resp, err)
	}
	return log.String()
}

func TestBinaryFails(t *testing.T) {
	p := newProcess(t)
	for _, c := range []struct {
		description string
		args        []string
		input, says string
	}{
		{"with rubbish as options", []string{"start"}, "\xff\xff", "runtime options"},
		{"with an unknown flag", []string{"-nonsense", "start"}, "", "nonsense"},
	} {
		t.Run(c.description, func(t *testing.T) {
			cmd := p.command(c.args...)
			cmd.Stdin = strings.NewReader(c.input)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.says) {
				t.Errorf("got %v: %s", err, out)
			}
			if !gone(filepath.Join(p.bundle, "address")) {
				t.Error("there is an address file")
			}
		})
	}
}

func TestBinaryHelps(t *testing.T) {
	p := newProcess(t)
	for _, flag := range []string{"-h", "-help", "--help"} {
		out, err := p.command(flag).Output()
		if err != nil || !strings.Contains(string(out), "configs/shim.toml") {
			t.Errorf("%s: %v: %s", flag, err, out)
		}
	}
}
