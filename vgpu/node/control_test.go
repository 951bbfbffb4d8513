// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

func discard() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

func TestCreateMakesADirectoryForTheContainer(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	dir := n.create("a", "gpus=2", "memory=1Gi", "weight=7", "priority=high", "quantum=5ms")
	for name, mode := range map[string]os.FileMode{
		".": 0o755 | os.ModeDir, "sock": 0o666 | os.ModeSocket, "vgpu.json": 0o444, "libcuda.so": 0o444, "libnvidia-ml.so": 0o444,
		"libvgpu-opencl.so": 0o444, "vgpu.lay": 0o444, "gpus": 0o444,
	} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if info.Mode() != mode {
			t.Errorf("%s has mode %v, want %v", name, info.Mode(), mode)
		}
	}
	for _, private := range []string{n.state, filepath.Dir(dir), filepath.Join(n.state, storeFile), filepath.Join(n.state, accountsFile)} {
		if info, err := os.Stat(private); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v %v", private, info.Mode(), err)
		}
	}
	var about map[string]any
	data, err := os.ReadFile(filepath.Join(dir, "vgpu.json"))
	if err == nil {
		err = json.Unmarshal(data, &about)
	}
	if err != nil || about["version"] != 1.0 || about["gpus"] != 2.0 || about["id"] != n.vgpu("a").GetId() {
		t.Errorf("vgpu.json: %v %v", about, err)
	}
	// Of each GPU that the container may be given.
	if data, err := os.ReadFile(filepath.Join(dir, "gpus")); err != nil || strings.Count(string(data), "GPU-") != 2 || strings.Contains(string(data), "cpu") {
		t.Errorf("gpus: %q %v", data, err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "vgpu.lay")); err != nil || string(data) != "/.vgpu/libvgpu-opencl.so\n" {
		t.Errorf("vgpu.lay: %q %v", data, err)
	}
	v := n.vgpu("a")
	if v.GetCount() != 2 || v.GetMemoryBytes() != 1<<30 || v.GetWeight() != 7 || v.GetPriority() != "high" ||
		v.GetQuantum().AsDuration() != 5*time.Millisecond || v.GetState() != "UNBOUND" || !strings.HasPrefix(filepath.Base(dir), v.GetId()+"-") {
		t.Errorf("%v", v)
	}
}

func TestCreateIsIdempotent(t *testing.T) {
	n := newNode(t, settings{})
	r := n.request("a")
	first, err := n.control.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	second, err := n.control.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, second, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestAnotherInstanceTakesTheContainersPlace(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	old, b := n.client("a"), n.client("b")
	old.ask("work", "work: passed")
	gone := n.created["a"]
	r := n.request("a")
	r.Instance = "a-2"
	resp, err := n.control.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	n.created["a"] = resp.GetEdits().GetMounts()[0].GetSource()
	if n.created["a"] == gone {
		t.Fatal("the directory of the old instance was given to the new one")
	}
	if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old directory is left: %v", err)
	}
	// What the old one has in flight is still on the GPU.
	b.tell("work")
	n.untilState("b", "PENDING")
	if b.passed() {
		t.Fatal("b passed beside what was removed")
	}
	// A late Delete for the old instance does not touch the new one.
	if _, err := n.control.Delete(t.Context(), &v1.DeleteRequest{Container: r.GetContainer(), Instance: "a-1"}); err != nil {
		t.Fatal(err)
	}
	old.kill()
	b.expect("work: passed")
	b.ask("done", "done: ")
	n.client("a").ask("work", "work: passed")
}

func TestCreateRefuses(t *testing.T) {
	n := newNode(t, settings{gpus: 2, capabilities: []string{"8.0", "9.0"}})
	for _, tc := range []struct {
		description string
		change      func(*v1.CreateRequest)
		says        []string
		is          func(error) bool
	}{
		{
			"an unknown annotation", func(r *v1.CreateRequest) { r.Annotations["vgpu-shim.dev/memroy"] = "8Gi" },
			[]string{"vgpu-shim.dev/memroy", "8Gi", "known are"},
			errdefs.IsInvalidArgument,
		},
		{
			"memory that does not parse", func(r *v1.CreateRequest) { r.Annotations["vgpu-shim.dev/memory"] = "lots" },
			[]string{"vgpu-shim.dev/memory", "lots", "8Gi"},
			errdefs.IsInvalidArgument,
		},
		{
			"negative weight", func(r *v1.CreateRequest) { r.Annotations["vgpu-shim.dev/weight"] = "-1" },
			[]string{"vgpu-shim.dev/weight", "-1", "1 to 10000"},
			errdefs.IsInvalidArgument,
		},
		{"two faults at once", func(r *v1.CreateRequest) {
			r.Annotations["vgpu-shim.dev/weight"], r.Annotations["vgpu-shim.dev/bind"] = "x", "y"
		}, []string{"weight", "bind"}, errdefs.IsInvalidArgument},
		{"no container", func(r *v1.CreateRequest) { r.Container = nil }, []string{"container.id"}, errdefs.IsInvalidArgument},
		{"no instance", func(r *v1.CreateRequest) { r.Instance = "" }, []string{"instance"}, errdefs.IsInvalidArgument},
		{"a relative bundle", func(r *v1.CreateRequest) { r.Bundle = "bundle" }, []string{"bundle"}, errdefs.IsInvalidArgument},
		{
			"a bundle that can not be seen from here", func(r *v1.CreateRequest) { r.Bundle += "/elsewhere" },
			[]string{"/elsewhere", "host's mount namespace"},
			errdefs.IsFailedPrecondition,
		},
		{"no GPU asked for", func(r *v1.CreateRequest) { r.DefaultCount = 0 }, []string{"gpus=0"}, errdefs.IsInvalidArgument},
		{
			"more GPUs than there are", func(r *v1.CreateRequest) { r.DefaultCount = 3 },
			[]string{"2 of 3 GPUs"},
			errdefs.IsFailedPrecondition,
		},
		{
			"more memory than there is", func(r *v1.CreateRequest) { r.Annotations["vgpu-shim.dev/memory"] = "17Gi" },
			[]string{"Test GPU with 16Gi"},
			errdefs.IsFailedPrecondition,
		},
		{
			"a model that is not here", func(r *v1.CreateRequest) { r.Annotations["vgpu-shim.dev/model"] = "H100" },
			[]string{"Test GPU"},
			errdefs.IsFailedPrecondition,
		},
		{
			"an image of a newer CUDA", func(r *v1.CreateRequest) {
				r.Requirements = map[string]string{"NVIDIA_REQUIRE_CUDA": "cuda>=13.1 brand=geforce,driver>=1"}
			},
			[]string{"CUDA 13.1", `NVIDIA_REQUIRE_CUDA="cuda>=13.1 brand=geforce,driver>=1"`, "is 1.0", "up to 12.4", "brand tesla", "NVIDIA_DISABLE_REQUIRE", "disable_require"},
			errdefs.IsFailedPrecondition,
		},
		{
			"an image of another GPU than may be bound to", func(r *v1.CreateRequest) {
				r.Annotations["vgpu-shim.dev/uuid"] = gpuUUID(0)
				r.Requirements = map[string]string{"NVIDIA_REQUIRE_ARCH": "arch>=9.0"}
			},
			[]string{"wants it", `NVIDIA_REQUIRE_ARCH="arch>=9.0"`, "compute capability 8.0"},
			errdefs.IsFailedPrecondition,
		},
		{
			"one of two GPUs is what the image asks for", func(r *v1.CreateRequest) {
				r.DefaultCount = 2
				r.Requirements = map[string]string{"NVIDIA_REQUIRE_ARCH": "arch>=9.0"}
			},
			[]string{"compute capability 8.0", "compute capability 9.0"},
			errdefs.IsFailedPrecondition,
		},
		{
			"a requirement that is none", func(r *v1.CreateRequest) { r.Requirements = map[string]string{"NVIDIA_REQUIRE_CUDA": "cuda"} },
			[]string{"NVIDIA_REQUIRE_CUDA", `"cuda" is no condition`, "NVIDIA_DISABLE_REQUIRE"},
			errdefs.IsInvalidArgument,
		},
		{
			"a requirement that is too long", func(r *v1.CreateRequest) {
				r.Requirements = map[string]string{"NVIDIA_REQUIRE_CUDA": strings.Repeat("cuda>=1 ", maxRequirement)}
			},
			[]string{"NVIDIA_REQUIRE_CUDA", "at most 16384 bytes"},
			errdefs.IsInvalidArgument,
		},
	} {
		t.Run(tc.description, func(t *testing.T) {
			r := n.request("x")
			tc.change(r)
			_, err := n.control.Create(t.Context(), r)
			if err = errgrpc.ToNative(err); !tc.is(err) {
				t.Fatalf("%v", err)
			}
			for _, s := range tc.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
		})
	}
	if entries, _ := os.ReadDir(filepath.Join(n.state, "c")); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestCreateTakesAnImageThatTheDriverServes(t *testing.T) {
	n := newNode(t, settings{gpus: 2, capabilities: []string{"8.0", "9.0"}})
	for name, value := range map[string]string{
		"NVIDIA_REQUIRE_CUDA": "cuda>=12.4 brand=geforce,driver>=1", "NVIDIA_REQUIRE_ARCH": "arch>=9.0", "NVIDIA_REQUIRE_DRIVER": "driver<2",
	} {
		r := n.request(name)
		r.Requirements = map[string]string{name: value}
		if _, err := n.control.Create(t.Context(), r); err != nil {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
}

func TestDeleteIsIdempotentAndLeavesNothing(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	a := n.client("a")
	a.ask("work", "work: passed")
	a.ask("done", "done: IDLE")
	n.delete("a")
	n.delete("a")
	n.delete("never-was")
	n.until("no directory is left", func() bool {
		entries, err := os.ReadDir(filepath.Join(n.state, "c"))
		return err == nil && len(entries) == 0
	})
	n.until("nothing is left in the store", func() bool { return len(n.stored(recordBucket))+len(n.stored(keptBucket)) == 0 })
	if n.vgpu("a") != nil || n.gpu(0).GetBound() != 0 {
		t.Error("the vGPU is still there")
	}
}

func TestDeleteOfAWorkingContainerWaitsForItsWork(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	n.delete("a")
	if b.passed() || n.vgpu("a").GetReason() == "" {
		t.Fatalf("%v", n.vgpu("a"))
	}
	a.ask("silent", "silent: ok")
	b.expect("work: passed")
	n.until("a is gone", func() bool { return n.vgpu("a") == nil })
}

func TestDeleteOfAStoppedContainerGivesUpAtTheDeadline(t *testing.T) {
	n := newNode(t, settings{drain: 50 * time.Millisecond})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	a.ask("leave", "leave: ok") // nobody is there to drain it
	b.tell("work")
	n.untilState("b", "PENDING")
	n.delete("a")
	b.expect("work: passed")
}

func TestDeleteOfAWaitingContainer(t *testing.T) {
	n := newNode(t, settings{})
	for _, name := range []string{"a", "b", "c"} {
		n.create(name)
	}
	a, b, c := n.client("a"), n.client("b"), n.client("c")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	c.tell("work")
	n.untilState("c", "PENDING")
	n.delete("b")
	a.ask("done", "done: ")
	c.expect("work: passed")
}

func TestAContainerThatComesAndGoesManyTimes(t *testing.T) {
	n := newNode(t, settings{})
	for range 30 {
		n.create("a")
		n.delete("a")
	}
	n.create("a")
	n.client("a").ask("work", "work: passed")
}

func TestInfo(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	info, err := n.control.Info(t.Context(), &v1.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if info.GetVersion() != "test" || info.GetSource() != "fake:2" || info.GetDriverVersion() != "1.0" || info.GetProtocol() != wire.Protocol {
		t.Errorf("%v", info)
	}
}

func TestLatencyQuantiles(t *testing.T) {
	var h latency
	if h.quantile(0.5) != 0 {
		t.Error("a quantile of nothing")
	}
	var all []time.Duration
	for i := range 1000 {
		d := time.Duration(i*i) * time.Microsecond / 7
		all = append(all, d)
		h.add(d)
	}
	slices.Sort(all)
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 1} {
		exact := all[max(int(q*1000)-1, 0)]
		if got := h.quantile(q); got < exact || got > exact+exact/8 {
			t.Errorf("quantile %v is %v, exactly %v", q, got, exact)
		}
	}
	h.add(1 << 62)
	h.add(-5)
	if h.max != 1<<62 || h.count != 1002 {
		t.Errorf("%v %v", h.max, h.count)
	}
}

func TestConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vgpud.toml")
	for _, tc := range []struct {
		description, content string
		says                 string // empty: it is right
	}{
		{"an empty file", "", ""},
		{"every key", "version=1\ngpus='sim:2'\nstate='/x'\nsocket='/y'\n[library]\ncuda='/l'\ndirs=['/usr/lib64']\n[simulated]\nroot='/r'\nmachine='/m'\n[engine]\nquantum='5ms'\ndrain_deadline='1s'\n[log]\nlevel='debug'\nformat='json'\n", ""},
		{"an unknown key", "[engine]\nquantom = '5ms'\n", "quantom"},
		{"a later format", "version = 2\n", "version"},
		{"a quantum out of bounds", "[engine]\nquantum = '1us'\n", "engine.quantum"},
		{"a quantum without a unit", "[engine]\nquantum = '5'\n", "quantum"},
		{"a relative path", "state = 'run'\n", "state"},
		{"a level that is none", "[log]\nlevel = 'loud'\n", "log.level"},
		{"broken TOML", "gpus = \n", "gpus"},
		{"GPUs that are none", "gpus = 'sim:0'\n", "sim:N with N from 1 to 16"},
		{"GPUs of an unknown kind", "gpus = 'cuda'\n", "auto, nvml"},
		{"a socket that Linux can not bind", "state = '/" + strings.Repeat("x", 100) + "'\n", "shorter --state or --socket"},
	} {
		t.Run(tc.description, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg, err := LoadConfig(path)
			if err == nil {
				err = cfg.Check()
			}
			if tc.says == "" && err != nil {
				t.Fatal(err)
			}
			if tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
				t.Fatalf("%v does not say %q", err, tc.says)
			}
		})
	}
}

func TestPathsAreCleaned(t *testing.T) {
	cfg := DefaultConfig()
	cfg.State, cfg.Library.CUDA, cfg.Library.Dirs = "/run//vgpu/", "/usr/lib/./x.so", []string{"/usr/lib64/"}
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	if cfg.State != "/run/vgpu" || cfg.Socket != "/run/vgpu/vgpud.sock" || cfg.Library.CUDA != "/usr/lib/x.so" || cfg.Library.Dirs[0] != "/usr/lib64" {
		t.Errorf("%+v", cfg)
	}
}

func TestVgpudDoesNotStartWithoutTheTakeOverLibraries(t *testing.T) {
	cfg := settings{}.config(filepath.Join(t.TempDir(), "vgpu"))
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	state, err := OpenState(cfg.State)
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(cfg, state, nil, gputest.New(1), discard(), Build{})
	for _, say := range []string{cfg.Library.CUDA, cfg.Library.NVML, "make install, or set library.cuda", "make install, or set library.nvml"} {
		if err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%v does not say %q", err, say)
		}
	}
}

func TestServeEndsAfterItsLoop(t *testing.T) {
	cfg := settings{}.config(filepath.Join(t.TempDir(), "vgpu"))
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	d, err := newDaemon(cfg, gputest.New(1), discard())
	if err != nil {
		t.Fatal(err)
	}
	d.listen.Close() // so that the control server fails
	if err := d.Serve(t.Context()); err == nil {
		t.Error("it serves without a socket")
	}
	select {
	case <-d.ended:
	default:
		t.Error("the loop runs on, without what it uses")
	}
}

func TestTheShippedConfigurationIsTheDefault(t *testing.T) {
	cfg, err := LoadConfig("../../configs/vgpud.toml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(DefaultConfig(), cfg); diff != "" {
		t.Fatalf("(-default +file)\n%s", diff)
	}
}
