// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// seenBy are those of all that a process sees in its pid namespace, with the pids
// that they have there. It reads /proc, and is never called in the loop.
func seenBy(asker process, all []processOn) (seen []wire.Process) {
	space, pids, err := pidSpace(asker.PID, 0)
	if err != nil || asker.gone() {
		return nil
	}
	depth := len(pids)
	for _, p := range all {
		theirs, pids, err := pidSpace(p.PID, depth)
		// The last look is for a pid that was used again meanwhile.
		if err != nil || theirs != space || p.gone() {
			continue
		}
		seen = append(seen, wire.Process{PID: uint32(pids[depth-1]), Bytes: p.bytes})
	}
	return seen
}

// space names a pid namespace.
type space struct{ dev, ino uint64 }

// pidSpace is the pid namespace of a process, or with a depth above 0 the one at
// that depth, its own or one above; and the pids of the process in all namespaces from vgpud's on down.
func pidSpace(pid, depth int) (s space, pids []int, _ error) {
	pids, err := nsPIDs(pid)
	if err != nil {
		return s, nil, err
	}
	if len(pids) < depth {
		return s, nil, fmt.Errorf("process %d is above that pid namespace", pid)
	}
	fd, err := unix.Open(procFile(pid, "ns/pid"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return s, nil, fmt.Errorf("failed to open the pid namespace of process %d: %w", pid, err)
	}
	for up := len(pids); depth > 0 && up > depth; up-- {
		parent, err := unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
		unix.Close(fd)
		if err != nil {
			return s, nil, fmt.Errorf("failed to open a pid namespace above that of process %d: %w", pid, err)
		}
		unix.CloseOnExec(parent)
		fd = parent
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return s, nil, fmt.Errorf("failed to stat a pid namespace: %w", err)
	}
	return space{st.Dev, st.Ino}, pids, nil
}

// nsPIDs are the pids of a process, in the pid namespace of vgpud first and in its
// own last; see NSpid in proc_pid_status(5).
func nsPIDs(pid int) ([]int, error) {
	f, err := os.Open(procFile(pid, "status"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		list, ok := strings.CutPrefix(s.Text(), "NSpid:")
		if !ok {
			continue
		}
		var pids []int
		for _, field := range strings.Fields(list) {
			n, err := strconv.Atoi(field)
			if err != nil {
				return nil, fmt.Errorf("unexpected NSpid in /proc/%d/status: %w", pid, err)
			}
			pids = append(pids, n)
		}
		if len(pids) > 0 {
			return pids, nil
		}
	}
	return nil, fmt.Errorf("there is no NSpid in /proc/%d/status", pid)
}
