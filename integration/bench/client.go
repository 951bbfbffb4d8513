// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// clients is a running program of the benchmark (client/client.c): one process
// with the real gate for each vGPU.
type clients struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

// play starts one client in each of dirs and waits until all are connected and
// bound. numbers are for the play; one is for all.
func (b *bench) play(ctx context.Context, name string, samples int, dirs []string, numbers ...time.Duration) (*clients, error) {
	args := []string{name, strconv.Itoa(samples)}
	for i, dir := range dirs {
		args = append(args, fmt.Sprintf("%s=%d", dir, numbers[i%len(numbers)].Nanoseconds()))
	}
	c := &clients{cmd: exec.CommandContext(ctx, filepath.Join(b.programs, "client"), args...)}
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.lines = bufio.NewScanner(out)
	if err := b.startOnClientCPUs(c.cmd); err != nil {
		return nil, fmt.Errorf("failed to start clients: %w", err)
	}
	if line, err := c.line(); err != nil || line != "ready" {
		return nil, errors.Join(fmt.Errorf("the clients of %q did not get ready: %q", name, line), err, c.stop())
	}
	return c, nil
}

// startOnClientCPUs starts a program where clients run: it has the CPUs of the
// thread that starts it.
func (b *bench) startOnClientCPUs(cmd *exec.Cmd) error {
	var set unix.CPUSet
	for _, cpu := range b.cpus.clients {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return err
	}
	return errors.Join(cmd.Start(), unix.SchedSetaffinity(0, &b.cpus.all))
}

func (c *clients) line() (string, error) {
	if !c.lines.Scan() {
		return "", errors.Join(errors.New("the clients ended"), c.lines.Err())
	}
	return c.lines.Text(), nil
}

// ask says a word and returns what is answered.
func (c *clients) ask(word string) ([]string, error) {
	if _, err := io.WriteString(c.in, word+"\n"); err != nil {
		return nil, err
	}
	var lines []string
	for {
		line, err := c.line()
		if err != nil {
			return nil, err
		}
		if line == "done" {
			return lines, nil
		}
		lines = append(lines, line)
	}
}

// samples lets the clients play and returns what they measured.
func (c *clients) samples() ([]time.Duration, error) {
	lines, err := c.ask("go")
	if err != nil {
		return nil, err
	}
	samples := make([]time.Duration, 0, len(lines))
	for _, line := range lines {
		ns, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			return nil, err
		}
		samples = append(samples, time.Duration(ns))
	}
	return samples, nil
}

// state is what one client has come to.
type state struct {
	at, busy time.Duration
	messages int64
}

func (c *clients) look() ([]state, error) {
	lines, err := c.ask("look")
	if err != nil {
		return nil, err
	}
	all := make([]state, len(lines))
	for i, line := range lines {
		s := &all[i]
		if _, err := fmt.Sscanf(line, "client %d %d %d", &s.at, &s.busy, &s.messages); err != nil {
			return nil, fmt.Errorf("the clients said %q: %w", line, err)
		}
	}
	return all, nil
}

// stop ends the processes.
func (c *clients) stop() error {
	c.in.Close()
	for c.lines.Scan() { // until they are gone
	}
	return c.cmd.Wait()
}

// output runs a program of the benchmark to its end and returns its lines.
func (b *bench) output(ctx context.Context, name string, args ...string) ([]string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stderr = b.paths.Root, os.Stderr
	// What it started ends with it, such as the tests of go test; that command then puts
	// away what it made.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}
