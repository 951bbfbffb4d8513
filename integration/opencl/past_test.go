// SPDX-License-Identifier: Apache-2.0

package opencl

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// A process that is executed in a container has lost its first one's environment, and
// takes its turns all the same with a loader that knows nothing but the variable.
func TestExecutedProcessesTakeTurns(t *testing.T) {
	n := start(t, true)
	meeting := t.TempDir()
	c := n.launch(harness.Spec{
		ID: "exec", Args: []string{"/bin/true"},
		Mounts: []string{fmt.Sprintf("type=bind,src=%s,dst=/meeting,options=rbind:rw", meeting)},
	})
	n.exits(c)
	out, err := c.Exec(n.Ctx, "/built/witness", "/meeting", "0", "1", "3")
	if err != nil {
		t.Fatal(err)
	}
	if r := parse(t, out); len(r.commands) != 4*3 {
		t.Errorf("it says\n%s", out)
	}
	// The bursts, the warm launch and the read.
	if last := n.gone(c); last.Usage.Submissions != 4*3+2 || last.Usage.Turns == 0 {
		t.Errorf("vgpu ps shows %+v", last)
	}
}

// findings are what a check of vgpu doctor says.
func (n node) findings(check string, args ...string) (text string, err error) {
	// Its exit status is that there are faults, also of this machine.
	out, _ := n.Daemon.CLI(n.Ctx, append([]string{"doctor", "--output", "json"}, args...)...)
	var all []struct{ Check, Result, Detail string }
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return "", fmt.Errorf("vgpu doctor says %q: %w", out, err)
	}
	for _, f := range all {
		if f.Check == check {
			text += f.Result + " " + f.Detail + "\n"
		}
	}
	return text, nil
}

// The doctor loads the layer in a container of its own, and says what came of it.
func TestTheDoctorLoadsTheLayer(t *testing.T) {
	for layer, want := range map[string]string{
		"":            "ok a container ran, and could load /.vgpu/libvgpu-opencl.so\n",
		unloadable(t): "fault a container can not load /.vgpu/libvgpu-opencl.so: ",
	} {
		n := startWith(t, layer)
		bin, err := n.Paths.ContainerdBin(harness.Containerd24)
		if err != nil {
			t.Fatal(err)
		}
		text, err := n.findings("container", "--containerd-address", n.Containerd.Socket, "--ctr", filepath.Join(bin, "ctr"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text, want) || strings.Contains(text, "libnowhere.so => not found") != (layer != "") {
			t.Errorf("with %q the doctor says\n%s\nwithout %s", layer, text, want)
		}
	}
}

// A process past the layer is told in vgpud's log and events and by the doctor: one that
// has lost the variable, with a loader that knows nothing else; and one whose loader could
// not load the layer, of which the loader says nothing.
func TestProcessesPastTheLayerAreReported(t *testing.T) {
	broken := unloadable(t)
	for _, c := range []struct {
		name, layer string
		args        []string
	}{
		{"lost", "", []string{"/usr/bin/env", "-u", "OPENCL_LAYERS"}},
		{"unloadable", broken, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := startWith(t, c.layer)
			meeting := t.TempDir()
			past := n.launch(harness.Spec{
				ID: "past", Args: append(c.args, "/built/witness", "/meeting", "0", "2", "3"),
				Mounts: []string{fmt.Sprintf("type=bind,src=%s,dst=/meeting,options=rbind:rw", meeting)},
			})
			n.Wait(func() error {
				_, err := os.Stat(filepath.Join(meeting, "0"))
				return err
			})
			// It has computed, and waits for another one.
			n.Wait(func() error {
				text, err := n.findings("processes", "--no-container")
				if err != nil {
					return err
				}
				for _, want := range []string{`fault process `, `("witness", `, "/past, uses ", "its OpenCL loader has not loaded our layer"} {
					if !strings.Contains(text, want) {
						return fmt.Errorf("the doctor says %q, without %q", text, want)
					}
				}
				return nil
			})
			if err := os.WriteFile(filepath.Join(meeting, "1"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			parse(t, n.exits(past))
			n.Wait(func() error {
				text, err := n.findings("processes", "--no-container")
				if err == nil && strings.Contains(text, "witness") {
					err = fmt.Errorf("the doctor still says %q", text)
				}
				return err
			})
			if last, err := n.ps(past); err != nil || last.Usage.Submissions != 0 {
				t.Errorf("vgpu ps shows %+v, %v", last, err)
			}
			log := n.Daemon.Messages()
			for _, line := range []string{"a process uses a GPU and is a client of no vGPU", "a process that is a client of no vGPU uses a GPU no more"} {
				if strings.Count(log, line) != 1 {
					t.Errorf("not once in vgpud's log: %s\n%s", line, log)
				}
			}
		})
	}
}

// unloadable is a layer that no loader can load: it needs a library that is nowhere.
func unloadable(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	needed, layer := filepath.Join(dir, "libnowhere.so"), filepath.Join(dir, "libvgpu-opencl.so")
	for _, args := range [][]string{
		{"-shared", "-nostdlib", "-o", needed, "-x", "c", "/dev/null"},
		{"-shared", "-nostdlib", "-Wl,--no-as-needed", "-o", layer, "-x", "c", "/dev/null", "-L", dir, "-lnowhere"},
	} {
		if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if err := os.Remove(needed); err != nil {
		t.Fatal(err)
	}
	return layer
}
