// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// process names a process for as long as the machine runs: a pid is used again,
// a pid with its start time is not.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // field 22 of /proc/<pid>/stat
}

var errGone = errors.New("the process is gone")

// soPeerPidfd is SO_PEERPIDFD (Linux 6.5, include/uapi/asm-generic/socket.h).
const soPeerPidfd = 77

// peer identifies the process at the other end of a connection. The caller owns
// the pidfd.
func peer(fd int) (process, int, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return process{}, -1, fmt.Errorf("failed to read the peer's credentials: %w", err)
	}
	if cred.Pid <= 0 {
		return process{}, -1, errors.New("the peer is in a pid namespace that vgpud does not see; run vgpud in the host's")
	}
	pid := int(cred.Pid)
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, soPeerPidfd)
	if errors.Is(err, unix.ENOPROTOOPT) {
		pidfd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		return process{}, -1, fmt.Errorf("%w (pid %d): %w", errGone, pid, err)
	}
	unix.CloseOnExec(pidfd)
	p, err := identify(pid, pidfd)
	if err != nil {
		unix.Close(pidfd)
		return process{}, -1, err
	}
	return p, pidfd, nil
}

// openProcess opens the process that has a pid now. The error is errGone only if
// there is none.
func openProcess(pid int) (int, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // EINVAL: a thread has the number now
		return -1, fmt.Errorf("%w (pid %d): %w", errGone, pid, err)
	}
	if err != nil {
		return -1, fmt.Errorf("failed to open process %d: %w", pid, err)
	}
	return pidfd, nil
}

// find opens a process that was known before. The error is errGone only if that
// process is dead.
func find(p process) (int, error) {
	pidfd, err := openProcess(p.PID)
	if err != nil {
		return -1, err
	}
	now, err := identify(p.PID, pidfd)
	if err == nil && now != p {
		err = fmt.Errorf("%w (pid %d)", errGone, p.PID)
	}
	if err != nil {
		unix.Close(pidfd)
		return -1, err
	}
	return pidfd, nil
}

// identify reads the start time of pid, then makes sure that the process behind
// pidfd, which had that pid, lived until after the reading.
func identify(pid, pidfd int) (process, error) {
	start, err := startTime(pid)
	if noProcess(err) {
		return process{}, fmt.Errorf("%w (pid %d): %w", errGone, pid, err)
	}
	if err != nil {
		return process{}, fmt.Errorf("failed to identify process %d: %w", pid, err)
	}
	if dead(pidfd) {
		return process{}, fmt.Errorf("%w (pid %d)", errGone, pid)
	}
	return process{PID: pid, Start: start}, nil
}

// gone says whether p is dead for certain.
func (p process) gone() bool {
	start, err := startTime(p.PID)
	return noProcess(err) || (err == nil && start != p.Start)
}

// dead says whether the process of a pidfd has ended. All its descriptors are
// closed by then, and with them its device contexts (R6).
func dead(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n == 1
	}
}

func startTime(pid int) (uint64, error) { return statField(pid, 22) }

// statField is one of the numbers of /proc/<pid>/stat, counted as in
// proc_pid_stat(5), from 4 to 22.
func statField(pid, n int) (uint64, error) {
	b, err := os.ReadFile(procFile(pid, "stat"))
	if err != nil {
		return 0, err
	}
	// The command in field 2 may hold spaces and brackets; the last bracket
	// ends it, and field 3 follows.
	bracket := bytes.LastIndexByte(b, ')')
	fields := bytes.Fields(b[bracket+1:])
	if bracket < 0 || len(fields) < 20 {
		return 0, fmt.Errorf("unexpected /proc/%d/stat", pid)
	}
	return strconv.ParseUint(string(fields[n-3]), 10, 64)
}

// bootID changes with every boot of the machine, after which no recorded
// process can be alive.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}
