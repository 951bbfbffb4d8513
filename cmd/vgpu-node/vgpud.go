// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// capabilities are those of configs/systemd/vgpud.service, which says what for.
var capabilities = []int{unix.CAP_SYS_PTRACE, unix.CAP_DAC_READ_SEARCH, unix.CAP_KILL, unix.CAP_MKNOD}

// nice is that of the unit: a hand-over waits for vgpud to run.
const nice = -10

// becomeVgpud replaces this process by the node's vgpud. It returns only an error.
func becomeVgpud(program, config string, args []string) error {
	argv := []string{filepath.Base(program)}
	if config != "" {
		// The file is this pod's, and can be named from the node through its descriptor.
		fd, err := unix.Open(config, unix.O_RDONLY, 0)
		if err != nil {
			return fmt.Errorf("failed to open the configuration %s: %w", config, err)
		}
		argv = append(argv, fmt.Sprintf("--config=/proc/self/fd/%d", fd))
	}
	if err := enter(); err != nil {
		return err
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, nice); err != nil {
		fmt.Fprintf(os.Stderr, "vgpu-node: vgpud gets no priority over others: %v\n", err)
	}
	if err := reduce(); err != nil {
		return fmt.Errorf("failed to give up rights that vgpud does not need: %w", err)
	}
	if err := unix.Exec(program, append(argv, args...), environment()); err != nil {
		return fmt.Errorf("failed to start the node's vgpud %s: %w; vgpu-node install places it", program, err)
	}
	return nil
}

// reduce leaves the capabilities of the unit to what this thread executes.
func reduce() error {
	for c := 0; ; c++ {
		// See prctl(2): EINVAL is what is no capability for this kernel.
		if _, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0); err != nil {
			break
		}
		if slices.Contains(capabilities, c) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return err
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
