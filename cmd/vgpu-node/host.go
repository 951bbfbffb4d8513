// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// searchPath is where the node's programs are.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment is that of programs that run on the node.
func environment() []string { return []string{"PATH=" + searchPath, "HOME=/root"} }

// enter brings the calling thread, which stays with its goroutine from then on, into
// the node's mount and cgroup namespaces.
func enter() error {
	goruntime.LockOSThread()
	ours, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	node, err := os.Readlink("/proc/1/ns/mnt")
	if err != nil {
		return fmt.Errorf("failed to find the node's namespaces: %w; the pod must have hostPID and be privileged", err)
	}
	if ours == node && os.Getpid() == 1 {
		return errors.New("process 1 is this one: the pod must have hostPID, so that it is the node's")
	}
	// What threads share by default would bind this one to the others' namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("failed to leave the file system context of the other threads: %w", err)
	}
	var open []*os.File
	kinds := []struct {
		name string
		flag int
	}{{"cgroup", unix.CLONE_NEWCGROUP}, {"mnt", unix.CLONE_NEWNS}}
	for _, k := range kinds { // before the first is entered: /proc goes with the mounts
		f, err := os.Open("/proc/1/ns/" + k.name)
		if err != nil {
			return err
		}
		defer f.Close()
		open = append(open, f)
	}
	for i, k := range kinds {
		if err := unix.Setns(int(open[i].Fd()), k.flag); err != nil {
			return fmt.Errorf("failed to enter the node's %s namespace: %w; the pod must be privileged", k.name, err)
		}
	}
	return nil
}

// onNode runs a program in the node's namespaces, and returns what it printed. What
// it says on standard error is the error's.
func onNode(ctx context.Context, program string, args ...string) ([]byte, error) {
	type result struct {
		out []byte
		err error
	}
	done := make(chan result)
	// The thread ends with the goroutine, which never unlocks it.
	go func() {
		if err := enter(); err != nil {
			done <- result{nil, err}
			return
		}
		var stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // G204: what this program is for
		cmd.Env, cmd.Stderr = environment(), &stderr
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
		}
		done <- result{out, err}
	}()
	r := <-done
	return r.out, r.err
}

// onNodePath is where a path of the node is for this process.
func onNodePath(path string) string { return "/proc/1/root" + path }
