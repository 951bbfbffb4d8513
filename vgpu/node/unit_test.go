// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// What systemd's unit (configs/systemd/vgpud.service) leaves vgpud must do for
// its work. The vgpuds that have a process of their own run so in all tests,
// beside clients that keep all rights.

// unitCapabilities reads CapabilityBoundingSet= of the unit.
func unitCapabilities() ([]string, error) {
	// Also where the test binary is another program, which runs in the package's
	// directory.
	data, err := os.ReadFile(filepath.Join("..", "..", "configs", "systemd", "vgpud.service"))
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(data)) {
		if set, ok := strings.CutPrefix(strings.TrimSpace(line), "CapabilityBoundingSet="); ok {
			names = append(names, strings.Fields(set)...)
		}
	}
	return names, nil
}

// capabilities are those of linux/capability.h that the unit names.
var capabilities = map[string]uintptr{
	"CAP_DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH,
	"CAP_KILL":            unix.CAP_KILL,
	"CAP_MKNOD":           unix.CAP_MKNOD,
	"CAP_SYS_PTRACE":      unix.CAP_SYS_PTRACE,
}

// confine takes away from this process, which is root's, all that the unit does.
// It starts the program anew: capabilities are a thread's until then.
func confine() error {
	names, err := unitCapabilities()
	if err != nil {
		return err
	}
	keep := make(map[uintptr]bool)
	for _, name := range names {
		number, known := capabilities[name]
		if !known {
			panic("the unit keeps " + name + ", which this test does not know")
		}
		keep[number] = true
	}
	runtime.LockOSThread()
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		if keep[c] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL { // EINVAL: not in this kernel
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), confined+"=1"))
}

// confined is set once confine has run.
const confined = "VGPU_NODE_TEST_CONFINED"

func TestVgpudWorksWithWhatTheUnitLeavesIt(t *testing.T) {
	n := newProcessNode(t, settings{}) // the drain deadline is longer than a test waits
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	// That nothing is left of the old program stands in files that only its user,
	// and whoever may trace it, can read.
	a.ask("exec 65534", "ready")
	b.expect("work: passed")
	// Likewise once it is looked for after a restart.
	b.ask("done", "done: ")
	n.kill()
	b.ask("exec 65534", "ready")
	n.startProcess()
	n.until("b's process is given up", func() bool { return n.gpu(0).GetState() == "FREE" })
}
