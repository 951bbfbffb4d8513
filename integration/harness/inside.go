// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Open finds the process that is pid inside the container, whoever started it,
// and returns a pidfd of it, which the caller closes.
func (c *Container) Open(pid int) (pidfd int, err error) {
	for _, host := range c.hostPIDs() {
		if inside, err := innermost(host); err != nil || inside != pid {
			continue
		}
		fd, err := unix.PidfdOpen(host, 0)
		if err != nil {
			continue
		}
		// The number may have become another process's before it was opened.
		if inside, err := innermost(host); err == nil && inside == pid {
			return fd, nil
		}
		unix.Close(fd)
	}
	return -1, fmt.Errorf("container %s has no process %d", c.ID, pid)
}

// hostPIDs lists the container's processes, from its cgroup; of the hierarchies
// of version 1, any.
func (c *Container) hostPIDs() []int {
	for _, base := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/pids"} {
		b, err := os.ReadFile(filepath.Join(base, c.daemon.Namespace, c.ID, "cgroup.procs"))
		if err != nil {
			continue
		}
		var all []int
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil {
				all = append(all, pid)
			}
		}
		return all
	}
	return nil
}

// innermost is a process's pid in its own pid namespace, see NSpid in
// proc_pid_status(5).
func innermost(pid int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(b), "\nNSpid:")
	line, _, _ := strings.Cut(after, "\n")
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return 0, fmt.Errorf("no NSpid in the status of process %d", pid)
	}
	return strconv.Atoi(fields[len(fields)-1])
}
