// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	cshim "github.com/containerd/containerd/v2/pkg/shim"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/vgpu-shim/vgpu/shim/config"
)

// fakeShim is the runc shim's part that is not the server.
type fakeShim struct {
	cshim.Shim
	start func(*bootapi.BootstrapParams) (string, error)
	stop  func() error
	info  []byte
}

func (f *fakeShim) Start(_ context.Context, p *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	address, err := f.start(p)
	return &bootapi.BootstrapResult{Version: 3, Address: address, Protocol: "ttrpc"}, err
}

func (f *fakeShim) Stop(context.Context, string) (cshim.StopStatus, error) {
	return cshim.StopStatus{Pid: 42}, f.stop()
}

func (f *fakeShim) Info(_ context.Context, r io.Reader) (_ *types.RuntimeInfo, err error) {
	f.info, err = io.ReadAll(r)
	return &types.RuntimeInfo{}, err
}

func mustMarshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func generic(t *testing.T, o *runtimeoptions.Options) *anypb.Any {
	t.Helper()
	return &anypb.Any{TypeUrl: genericOptionsName, Value: mustMarshal(t, o)}
}

func TestStart(t *testing.T) {
	t.Chdir(t.TempDir())
	var got options.Options
	m := shimManager{Shim: &fakeShim{start: func(p *bootapi.BootstrapParams) (string, error) {
		_, err := p.FindExtension(&got)
		return "unix:///run/s/x", err
	}}}
	params := &bootapi.BootstrapParams{
		SocketDir:  proto.String("/run/s"),
		Extensions: []*bootapi.Extension{{Value: generic(t, &runtimeoptions.Options{ConfigBody: []byte("ShimCgroup = '/shims'")})}},
	}
	for range 2 { // the second Start finds what the first left
		result, err := m.Start(t.Context(), params)
		if err != nil {
			t.Fatal(err)
		}
		if result.GetAddress() != "unix:///run/s/x" {
			t.Errorf("the address is %s", result.GetAddress())
		}
	}
	if got.GetShimCgroup() != "/shims" {
		t.Errorf("the options that reached runc's shim are %v", &got)
	}
	if data, err := os.ReadFile("address"); err != nil || string(data) != "unix:///run/s/x" {
		t.Errorf("the address file holds %q, %v", data, err)
	}
	if dir, err := os.Readlink("s"); err != nil || dir != "/run/s" {
		t.Errorf("the link to the socket directory is %q, %v", dir, err)
	}
}

func TestStartFails(t *testing.T) {
	t.Run("with wrong options, before anything is started", func(t *testing.T) {
		t.Chdir(t.TempDir())
		m := shimManager{Shim: &fakeShim{start: func(*bootapi.BootstrapParams) (string, error) {
			t.Error("started")
			return "", nil
		}}}
		_, err := m.Start(t.Context(), &bootapi.BootstrapParams{
			Extensions: []*bootapi.Extension{{Value: generic(t, &runtimeoptions.Options{ConfigBody: []byte("x = 1")})}},
		})
		if err == nil || !strings.Contains(err.Error(), "unknown key x") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("and leaves no address", func(t *testing.T) {
		t.Chdir(t.TempDir())
		m := shimManager{Shim: &fakeShim{start: func(*bootapi.BootstrapParams) (string, error) { return "", errors.New("no") }}}
		if _, err := m.Start(t.Context(), &bootapi.BootstrapParams{}); err == nil {
			t.Error("succeeded")
		}
		if _, err := os.Stat("address"); err == nil {
			t.Error("there is an address file")
		}
	})
}

func TestStop(t *testing.T) {
	for _, c := range []struct {
		description string
		stop        error
	}{
		{"releases the vGPU after the container", nil},
		{"releases it also if runc's shim fails", errors.New("no")},
	} {
		t.Run(c.description, func(t *testing.T) {
			f := created(t)
			t.Chdir(f.bundle)
			m := shimManager{Shim: &fakeShim{stop: func() error {
				f.vgpus(1)
				return c.stop
			}}}
			status, err := m.Stop(f.ctx, testID)
			if !errors.Is(err, c.stop) || status.Pid != 42 {
				t.Errorf("got %+v, %v", status, err)
			}
			f.vgpus(0)
			f.files("config.json")
		})
	}
	t.Run("does not fail without vgpud", func(t *testing.T) {
		f := created(t)
		f.stop()
		t.Chdir(f.bundle)
		if _, err := (shimManager{Shim: &fakeShim{stop: func() error { return nil }}}).Stop(f.ctx, testID); err != nil {
			t.Error(err)
		}
		f.files("config.json", "vgpu.json")
	})
	t.Run("does not fail with a state of a newer shim", func(t *testing.T) {
		f := created(t)
		if err := os.WriteFile(f.path("vgpu.json"), []byte(`{"version": 99}`), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Chdir(f.bundle)
		if _, err := (shimManager{Shim: &fakeShim{stop: func() error { return nil }}}).Stop(f.ctx, testID); err != nil {
			t.Error(err)
		}
		f.vgpus(1)
	})
	t.Run("finds the bundle from that of another container of the pod", func(t *testing.T) {
		f := created(t)
		other := filepath.Join(filepath.Dir(f.bundle), "other")
		if err := os.Mkdir(other, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Chdir(other)
		if _, err := (shimManager{Shim: &fakeShim{stop: func() error { return nil }}}).Stop(f.ctx, testID); err != nil {
			t.Error(err)
		}
		f.vgpus(0)
	})
}

func TestStopRemovesTheSocketOfADeadServer(t *testing.T) {
	for _, c := range []struct {
		description, annotations string
		group                    string
		alive                    bool
	}{
		{"alone", `{}`, testID, false},
		{"of a pod", `{"io.kubernetes.cri.sandbox-id": "pod"}`, "pod", false},
		{"but not of one that answers", `{}`, testID, true},
	} {
		t.Run(c.description, func(t *testing.T) {
			f := newFixture(t, specWith(c.annotations))
			m := shimManager{Shim: &fakeShim{stop: func() error { return nil }}, containerd: testContainerd}
			var sockets []string
			for _, debug := range []bool{false, true} {
				address, err := cshim.CreateSocketAddress(f.ctx, filepath.Dir(f.bundle), testContainerd, c.group, debug)
				if err != nil {
					t.Fatal(err)
				}
				l, err := cshim.NewSocket(address)
				if err != nil {
					t.Fatal(err)
				}
				// As a process that is killed leaves it.
				l.SetUnlinkOnClose(false)
				if c.alive {
					t.Cleanup(func() { _ = l.Close() })
				} else if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				sockets = append(sockets, l.Addr().(*net.UnixAddr).Name)
			}
			if err := os.WriteFile(f.path("address"), []byte("unix://"+sockets[0]), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Chdir(f.bundle)
			if _, err := m.Stop(f.ctx, testID); err != nil {
				t.Fatal(err)
			}
			for _, s := range sockets {
				if _, err := os.Stat(s); (err == nil) != c.alive {
					t.Errorf("the socket %s: %v", s, err)
				}
			}
		})
	}
}

func TestInfoConvertsOptions(t *testing.T) {
	for _, c := range []struct {
		description string
		opts        *anypb.Any
		want        *options.Options // nil: none
	}{
		{"none", nil, nil},
		{"runc's", &anypb.Any{TypeUrl: runcOptionsName, Value: mustMarshal(t, &options.Options{BinaryName: "crun"})}, &options.Options{BinaryName: "crun"}},
		{"generic ones", generic(t, &runtimeoptions.Options{ConfigBody: []byte("BinaryName = 'crun'")}), &options.Options{BinaryName: "crun"}},
		{"generic ones that say nothing", generic(t, &runtimeoptions.Options{}), nil},
	} {
		t.Run(c.description, func(t *testing.T) {
			var input []byte
			if c.opts != nil {
				input = mustMarshal(t, c.opts)
			}
			inner := &fakeShim{}
			if _, err := (shimManager{Shim: inner}).Info(t.Context(), bytes.NewReader(input)); err != nil {
				t.Fatal(err)
			}
			if c.want == nil {
				if len(inner.info) != 0 {
					t.Errorf("runc's shim got %q", inner.info)
				}
				return
			}
			got, err := cshim.ReadRuntimeOptions[*options.Options](bytes.NewReader(inner.info))
			if err != nil || !proto.Equal(got, c.want) {
				t.Errorf("runc's shim got %v, %v", got, err)
			}
		})
	}
}

func TestName(t *testing.T) {
	for program, want := range map[string]string{
		"/usr/local/bin/containerd-shim-vgpu-v1": "io.containerd.vgpu.v1",
		"/opt/containerd-shim-runc-v2":           "io.containerd.runc.v2",
	} {
		if got := newManager(program, "").Name(); got != want {
			t.Errorf("%s is called %s", program, got)
		}
	}
}

func TestRuncOptions(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		description string
		handler     handler
		cgroupsPath string
		want        *options.Options
	}{
		{"nothing set", handler{}, "/default/c1", nil},
		{"a cgroup of systemd", handler{}, "kubepods-pod1.slice:cri-containerd:c1", &options.Options{SystemdCgroup: true}},
		{"one without a slice", handler{}, ":nerdctl:c1", &options.Options{SystemdCgroup: true}},
		{"a path with colons", handler{}, "/a:b:c", nil},
		{"no path", handler{}, "", nil},
		{"systemd, against the shape", handler{Config: config.Config{Runc: config.Runc{SystemdCgroup: &yes}}}, "/default/c1", &options.Options{SystemdCgroup: true}},
		{"not systemd, against the shape", handler{Config: config.Config{Runc: config.Runc{SystemdCgroup: &no}}}, "a.slice:b:c", nil},
		{"a binary", handler{Config: config.Config{Runc: config.Runc{BinaryName: "crun"}}}, "", &options.Options{BinaryName: "crun"}},
		{
			"runc's own options stay as they are",
			handler{runc: &options.Options{Root: "/r"}, Config: config.Config{Runc: config.Runc{BinaryName: "crun"}}},
			"a.slice:b:c",
			&options.Options{Root: "/r"},
		},
	} {
		t.Run(c.description, func(t *testing.T) {
			if got := c.handler.runcOptions(c.cgroupsPath); !proto.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestLoadHandler(t *testing.T) {
	runc := mustMarshal(t, &options.Options{BinaryName: "crun"})
	for _, c := range []struct {
		description string
		opts        *anypb.Any
		says        string // of the error, "" if there is none
		check       func(handler) bool
	}{
		{"none", nil, "", func(h handler) bool { return h.runc == nil && h.DefaultCount == 1 }},
		{"an empty message", &anypb.Any{}, "", func(h handler) bool { return h.runc == nil }},
		{"runc's", &anypb.Any{TypeUrl: runcOptionsName, Value: runc}, "", func(h handler) bool { return h.runc.GetBinaryName() == "crun" }},
		{"runc's with a host in the type", &anypb.Any{TypeUrl: "types.containerd.io/" + runcOptionsName, Value: runc}, "", func(h handler) bool { return h.runc.GetBinaryName() == "crun" }},
		{"generic", generic(t, &runtimeoptions.Options{ConfigBody: []byte("default_count = 4")}), "", func(h handler) bool { return h.runc == nil && h.DefaultCount == 4 }},
		{"generic, of an old CRI", &anypb.Any{TypeUrl: oldGenericOptionsName}, "", func(h handler) bool { return h.DefaultCount == 1 }},
		{"generic with a missing file", generic(t, &runtimeoptions.Options{ConfigPath: "/nonexistent.toml"}), "/nonexistent.toml", nil},
		{"generic with an unknown key", generic(t, &runtimeoptions.Options{ConfigBody: []byte("nonsense = 1")}), "nonsense", nil},
		{"of another runtime", &anypb.Any{TypeUrl: "x.io/runsc.Options"}, "runsc.Options", nil},
		{"without a type", &anypb.Any{Value: runc}, "no type", nil},
		{"damaged", &anypb.Any{TypeUrl: runcOptionsName, Value: []byte{0xff}}, runcOptionsName, nil},
		{"damaged generic ones", &anypb.Any{TypeUrl: genericOptionsName, Value: []byte{0xff}}, genericOptionsName, nil},
	} {
		t.Run(c.description, func(t *testing.T) {
			got, err := loadHandlerFrom(config.Sources{Program: "containerd-shim-vgpu-v1"}, c.opts)
			switch {
			case c.says == "" && (err != nil || !c.check(got)):
				t.Errorf("got %+v, %v", got, err)
			case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
				t.Errorf("error is %v, want one that says %q", err, c.says)
			}
		})
	}
}
