// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// frozenGroup is the cgroup, below their own, into which processes are put that
// are frozen. Not the container's own: who is executed in the container, such as
// a probe, must run, and whoever pauses the container must not meet us.
const frozenGroup = "vgpu-overrun"

// freezer freezes processes by their cgroups: the freezer of version 1 where it
// is mounted (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst), else
// cgroup.freeze of version 2 (admin-guide/cgroup-v2.rst). Everything in it may
// take time, and is not for the loop.
type freezer struct {
	v1, v2 string // where they are mounted; empty: they are not
}

// missing is why nothing can be frozen here, nil if it can.
func (f freezer) missing() error {
	if f.v1 == "" && f.v2 == "" {
		return errors.New("no cgroup freezer is mounted: neither version 1's (freezer) nor version 2")
	}
	return nil
}

// findFreezer looks where cgroups are mounted.
func findFreezer() (freezer, error) {
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return freezer{}, fmt.Errorf("failed to look for the cgroup freezer: %w", err)
	}
	defer mounts.Close()
	var f freezer
	s := bufio.NewScanner(mounts)
	for s.Scan() {
		// id parent dev root mountpoint options [optional ...] - type source super, see proc_pid_mountinfo(5)
		before, after, ok := strings.Cut(s.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(kind) < 3 || fields[3] != "/" {
			continue
		}
		switch {
		case kind[0] == "cgroup" && slices.Contains(strings.Split(kind[2], ","), "freezer"):
			f.v1 = fields[4]
		case kind[0] == "cgroup2":
			f.v2 = fields[4]
		}
	}
	if err := s.Err(); err != nil {
		return f, fmt.Errorf("failed to look for the cgroup freezer: %w", err)
	}
	return f, f.missing()
}

// group is the cgroup into which a process is to be put, on this file system. The
// error is errGone if it is dead.
func (f freezer) group(p process) (string, error) {
	b, err := os.ReadFile(procFile(p.PID, "cgroup"))
	if noProcess(err) || p.gone() { // in this order: it was its cgroup
		return "", fmt.Errorf("%w (pid %d)", errGone, p.PID)
	}
	if err != nil {
		return "", fmt.Errorf("failed to look for the cgroup of process %d: %w", p.PID, err)
	}
	var v1, v2 string
	for line := range strings.Lines(string(b)) {
		// hierarchy:controllers:path, see cgroups(7)
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(parts) < 3:
		case slices.Contains(strings.Split(parts[1], ","), "freezer"):
			v1 = parts[2]
		case parts[0] == "0":
			v2 = parts[2]
		}
	}
	root, own := f.v1, v1
	if f.v1 == "" || v1 == "" {
		root, own = f.v2, v2
	}
	// The root of all is vgpud's, and everybody's.
	if root == "" || own == "" || own == "/" || strings.HasPrefix(own, "/..") {
		return "", fmt.Errorf("process %d is in no cgroup of its own (%q)", p.PID, own)
	}
	if path.Base(own) != frozenGroup {
		own = path.Join(own, frozenGroup)
	}
	return filepath.Join(root, own), nil
}

// freeze puts processes into a cgroup, made if it is not there, and freezes it.
func (f freezer) freeze(group string, all []process) error {
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // G301: as all cgroups are
		return fmt.Errorf("failed to make a cgroup: %w", err)
	}
	for _, p := range all {
		if p.gone() { // another one may have its number now
			continue
		}
		err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(p.PID)), 0)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("failed to put process %d into %s: %w", p.PID, group, err)
		}
	}
	return f.set(group, true)
}

// thaw lets the processes of a cgroup run. One that is gone has none.
func (f freezer) thaw(group string) error {
	if err := f.set(group, false); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (f freezer) set(group string, frozen bool) error {
	file, value := "cgroup.freeze", map[bool]string{true: "1", false: "0"}[frozen]
	if f.isV1(group) {
		file, value = "freezer.state", map[bool]string{true: "FROZEN", false: "THAWED"}[frozen]
	}
	if err := os.WriteFile(filepath.Join(group, file), []byte(value), 0); err != nil {
		return fmt.Errorf("failed to write %s into %s: %w", value, filepath.Join(group, file), err)
	}
	return nil
}

func (f freezer) isV1(group string) bool { return f.v1 != "" && strings.HasPrefix(group, f.v1+"/") }

// killed says whether one of these processes was killed and can not die: under
// version 1 a process that is frozen does not take even SIGKILL.
func killed(all []process) bool {
	for _, p := range all {
		b, err := os.ReadFile(procFile(p.PID, "status"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			// Signals that wait for the thread, or for the process; bit 8 is SIGKILL.
			name, mask, _ := strings.Cut(line, ":")
			if name != "SigPnd" && name != "ShdPnd" {
				continue
			}
			if bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64); err == nil && bits&(1<<8) != 0 {
				return true
			}
		}
	}
	return false
}
