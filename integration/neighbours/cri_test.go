// SPDX-License-Identifier: Apache-2.0

package neighbours

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// handlers are the runtimes of the tests in CRI's configuration, as it would be
// written for Kubernetes; %[1]s is the plugin, %[2]s the shim's path.
const handlers = `
[plugins.%[1]q.containerd.runtimes.vgpu]
  runtime_type = "io.containerd.vgpu.v1"
  pod_annotations = ["vgpu-shim.dev/*"]

[plugins.%[1]q.containerd.runtimes.path]
  runtime_type = "io.containerd.runc.v2"
  runtime_path = %[2]q
  pod_annotations = ["vgpu-shim.dev/*"]

[plugins.%[1]q.containerd.runtimes.place]
  runtime_type = "io.containerd.runc.v2"
  pod_annotations = ["vgpu-shim.dev/*"]
`

// The rest of CRI's configuration, by containerd's version: the image %[2]s is the
// pause container's, too, and this machine's root may not be allowed to lower
// oom_score_adj.
const (
	rest16 = `
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = %[2]q

[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "vgpu"
  snapshotter = %[1]q
`
	rest24 = `
[plugins."io.containerd.cri.v1.images"]
  snapshotter = %[1]q

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %[2]q

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "vgpu"
`
)

// startCRI starts a node whose containerd has CRI.
func startCRI(t *testing.T, v harness.Version) *node {
	t.Helper()
	paths, err := harness.DefaultPaths()
	if err != nil {
		t.Fatal(err)
	}
	plugin, rest := "io.containerd.cri.v1.runtime", rest24
	if strings.HasPrefix(string(v), "1.") {
		plugin, rest = "io.containerd.grpc.v1.cri", rest16
	}
	more := fmt.Sprintf(rest, snapshotter, image) + fmt.Sprintf(handlers, plugin, filepath.Join(paths.Bin, harness.ShimProgram))
	config := filepath.Join(t.TempDir(), "config.toml")
	n := startRenamed(t, harness.Options{
		Version: v, CRI: true, Config: config,
		Configure: func() error {
			b, err := os.ReadFile(config)
			if err != nil {
				return err
			}
			return os.WriteFile(config, append(b, more...), 0o600)
		},
	})
	n.load(namespaceOfCRI)
	crictl := n.crictl()
	n.Wait(func() error { // CRI hears of it
		_, err := crictl.run("inspecti", image)
		return err
	})
	return n
}

// namespaceOfCRI is where CRI keeps what it starts.
const namespaceOfCRI = "k8s.io"

// crictl speaks to the node's CRI, as a kubelet does.
func (n *node) crictl() client {
	n.T.Helper()
	config := filepath.Join(n.T.TempDir(), "crictl.yaml")
	text := fmt.Sprintf("runtime-endpoint: unix://%[1]s\nimage-endpoint: unix://%[1]s\ntimeout: 60\n", n.Containerd.Socket)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		n.T.Fatal(err)
	}
	return client{n: n, namespace: namespaceOfCRI, command: []string{n.tool("bin", "crictl"), "--config", config}}
}

// pod is a pod on the node, without a network of its own.
type pod struct {
	client
	id   string
	file string // its configuration
}

type object = map[string]any

// What namespaces are of, in CRI's words.
const (
	ofContainer = 1
	ofNode      = 2
	ofTarget    = 3
)

// runPod starts a pod's sandbox. It is removed, with what is in it, when the test is
// over.
func (n *node) runPod(handler, name string, annotations map[string]string) *pod {
	n.T.Helper()
	p := &pod{client: n.crictl()}
	p.file = p.write(name, object{
		"metadata":      object{"name": name, "namespace": "default", "uid": "uid-of-" + name},
		"annotations":   annotations,
		"log_directory": n.T.TempDir(),
		"linux": object{
			"cgroup_parent":    "/" + n.Containerd.Namespace,
			"security_context": object{"namespace_options": object{"network": ofNode, "pid": ofContainer}},
		},
	})
	p.id = p.must("runp", "--runtime", handler, p.file)
	n.T.Cleanup(func() {
		if out, err := p.run("rmp", "--force", p.id); err != nil {
			n.T.Errorf("%v: %s", err, out)
		}
	})
	return p
}

func (p *pod) write(name string, v object) (file string) {
	p.n.T.Helper()
	b, err := json.Marshal(v)
	file = filepath.Join(p.n.T.TempDir(), name+".json")
	if err == nil {
		err = os.WriteFile(file, b, 0o600)
	}
	if err != nil {
		p.n.T.Fatal(err)
	}
	return file
}

// create creates a container of the pod; options are namespace options that differ
// from its own pid namespace and the node's network.
func (p *pod) create(name string, options object, command ...string) (id string, err error) {
	p.n.T.Helper()
	namespaces := object{"network": ofNode, "pid": ofContainer}
	for key, value := range options {
		namespaces[key] = value
	}
	file := p.write(name, object{
		"metadata": object{"name": name},
		"image":    object{"image": image},
		"command":  command,
		"log_path": name + ".log",
		"linux":    object{"security_context": object{"namespace_options": namespaces}},
	})
	return p.run("create", "--no-pull", p.id, file, p.file)
}

// start starts a container of the pod.
func (p *pod) start(name string, options object, command ...string) *harness.Container {
	p.n.T.Helper()
	id, err := p.create(name, options, command...)
	if err != nil {
		p.n.T.Fatal(err)
	}
	p.must("start", id)
	var pid int
	if _, err := fmt.Sscan(p.must("inspect", "--output", "go-template", "--template", "{{.info.pid}}", id), &pid); err != nil {
		p.n.T.Fatal(err)
	}
	c, err := p.n.Containerd.Found(namespaceOfCRI, id, pid)
	if err != nil {
		p.n.T.Fatal(err)
	}
	return c
}

// ended waits for the end of a container, and wants it to have been a success.
func (p *pod) ended(c *harness.Container) {
	p.n.T.Helper()
	p.n.Wait(func() error {
		out := p.must("inspect", "--output", "go-template", "--template", "{{.status.state}} {{.status.exitCode}}", c.ID)
		if strings.HasPrefix(out, "CONTAINER_EXITED") && out != "CONTAINER_EXITED 0" {
			p.n.T.Fatalf("container %s: %s", c.ID, out)
		}
		if out != "CONTAINER_EXITED 0" {
			return fmt.Errorf("container %s has not ended: %s", c.ID, out)
		}
		return nil
	})
}

// execute runs a command in a container of the pod.
func (p *pod) execute(c *harness.Container, command ...string) string {
	p.n.T.Helper()
	return p.must(append([]string{"exec", "--sync", c.ID}, command...)...)
}

// computes wants a program in a container to be able to.
func (p *pod) computes(c *harness.Container) {
	p.n.T.Helper()
	if out := p.execute(c, "vecadd"); !strings.Contains(out, `"ok":true`) {
		p.n.T.Errorf("vecadd in container %s says %s", c.ID, out)
	}
}

// plain fails the test if a container was given anything of a vGPU.
func (p *pod) plain(c *harness.Container) {
	p.n.T.Helper()
	if v, err := p.n.VGPU(c.ID); err == nil {
		p.n.T.Errorf("container %s has a vGPU: %v", c.ID, v)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", c.PID))
	if err != nil {
		p.n.T.Fatal(err)
	}
	for _, of := range []string{"/.vgpu", "libcuda", "/dev/simgpu", "/dev/nvidia"} {
		if strings.Contains(string(mounts), of) {
			p.n.T.Errorf("container %s has a vGPU mounted:\n%s", c.ID, mounts)
		}
	}
}

// The forms in which a handler can name our shim: by the runtime's name, by its
// path, and by the name of runc's, in whose place it is. Each has pods of
// containers with a vGPU and without.
func TestHandlers(t *testing.T) {
	t.Parallel()
	harnesstest.VersionsWithCRI(t, func(t *testing.T, v harness.Version) {
		n := startCRI(t, v)
		for _, handler := range []string{"vgpu", "path", "place"} {
			p := n.runPod(handler, handler, map[string]string{"vgpu-shim.dev/with.gpus": "1"})
			with, without := p.start("with", nil, forEver...), p.start("without", nil, "sleep", "1000000")
			n.GoOn(n.Tenants(with), nil)
			p.computes(with)
			p.plain(without)
			sandbox, err := n.Containerd.Found(namespaceOfCRI, p.id, with.PID)
			if err != nil {
				t.Fatal(err)
			}
			n.ours(sandbox)
		}
		n.NoOverlap()
	})
}

// A pod is one shim, in which the pause container has nothing of ours, and each
// other container its own vGPU, as the pod's annotations say for it: init
// containers, several at once, ephemeral ones, and those that want none.
func TestPod(t *testing.T) {
	t.Parallel()
	harnesstest.VersionsWithCRI(t, func(t *testing.T, v harness.Version) {
		n := startCRI(t, v)
		p := n.runPod("vgpu", "pod", map[string]string{
			"vgpu-shim.dev/gpus":         "1", // also of those that no other line names
			"vgpu-shim.dev/weight":       "200",
			"vgpu-shim.dev/left.memory":  "2Gi",
			"vgpu-shim.dev/right.weight": "300",
			"vgpu-shim.dev/none.gpus":    "0",
			"example.com/other":          "1",
		})
		config, err := os.ReadFile(filepath.Join(n.Containerd.Dir, "s", "io.containerd.runtime.v2.task", namespaceOfCRI, p.id, "config.json"))
		if err != nil || !strings.Contains(string(config), `"io.kubernetes.cri.container-type":"sandbox"`) || strings.Contains(string(config), ".vgpu") {
			t.Errorf("the pause container is not as it would be under runc (%v): %s", err, config)
		}
		n.vgpusAre(p, nil)
		ids := map[harness.Tenant]string{}
		judged := func(c *harness.Container) *harness.Container {
			t.Helper()
			// While its mount namespace is open nobody else can have its number.
			held, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", c.PID))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { held.Close() })
			for tenant, id := range n.VGPUIDs(n.Tenants(c)) {
				ids[tenant] = id
			}
			return c
		}
		const adds = "vecadd && until [ -e /tmp/end ]; do sleep .05; done"

		first := judged(p.start("init", nil, "sh", "-c", adds))
		n.vgpusAre(p, map[string]asked{"init": {200, 0}})
		p.execute(first, "touch", "/tmp/end")
		p.ended(first)
		n.Wait(func() error {
			if v, err := n.VGPU(first.ID); err == nil {
				return fmt.Errorf("the init container that has ended still has %v", v)
			}
			return nil
		})

		left, right := judged(p.start("left", nil, forEver...)), judged(p.start("right", nil, forEver...))
		p.plain(p.start("none", nil, "sleep", "1000000"))
		n.vgpusAre(p, map[string]asked{"left": {200, 2 << 30}, "right": {300, 0}})
		n.GoOn(n.Tenants(left, right), nil)
		p.computes(left)

		// As kubectl debug --target starts one.
		debug := judged(p.start("debugger", object{"pid": ofTarget, "target_id": left.ID}, "sh", "-c", adds))
		if out := p.execute(debug, "sh", "-c", "tr '\\0' ' ' </proc/1/cmdline"); !strings.HasPrefix(out, strings.Join(forEver, " ")) {
			t.Errorf("the first process that the ephemeral container sees is %q", out)
		}
		n.vgpusAre(p, map[string]asked{"left": {200, 2 << 30}, "right": {300, 0}, "debugger": {200, 0}})
		p.execute(debug, "touch", "/tmp/end")
		p.ended(debug)
		n.GoOn(n.Tenants(left, right), n.Submissions())

		// One shim for them all.
		sandbox, err := n.Containerd.Found(namespaceOfCRI, p.id, left.PID)
		if err != nil {
			t.Fatal(err)
		}
		shim, err := sandbox.ShimPID()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []*harness.Container{left, right} {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.PID))
			if err != nil || !strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", shim)) {
				t.Errorf("container %s is no child of the pod's shim %d (%v): %s", c.ID, shim, err, status)
			}
		}
		// A container has its vGPU from its start: until then CRI alone knows of it.
		late, err := p.create("late", nil, "vecadd")
		if err != nil {
			t.Fatal(err)
		}
		n.vgpusAre(p, map[string]asked{"left": {200, 2 << 30}, "right": {300, 0}})
		p.must("rm", late)
		p.must("stop", "--timeout", "0", left.ID)
		p.must("stop", "--timeout", "0", right.ID)
		n.NoOverlap()
		n.InTurns(ids)
	})
}

// asked is what a container of a pod asked for, and got.
type asked struct {
	weight uint32
	memory uint64
}

// vgpusAre wants vgpud to have the vGPUs of these containers of the pod, and no
// others.
func (n *node) vgpusAre(p *pod, want map[string]asked) {
	n.T.Helper()
	all, err := n.Daemon.VGPUs(n.Ctx)
	if err != nil {
		n.T.Fatal(err)
	}
	if len(all) != len(want) {
		n.T.Errorf("there are %d vGPUs, want those of %v: %v", len(all), want, all)
	}
	for _, v := range all {
		of := v.GetPod()
		if got := (asked{v.GetWeight(), v.GetMemoryBytes()}); got != want[of.GetContainer()] || of.GetName() != "pod" || of.GetNamespace() != "default" || of.GetUid() != "uid-of-pod" {
			n.T.Errorf("container %q of the pod has %+v, want %+v: %v", of.GetContainer(), got, want[of.GetContainer()], v)
		}
	}
}
