// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// place is where programs run: on the driver as it is, or in a vGPU.
type place interface {
	// command is for a program there; more is of its environment.
	command(more []string, args ...string) (*exec.Cmd, error)
}

// program is one that runs, bounded by a deadline. It and this one talk in lines.
type program struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	done chan struct{} // closed when it has ended

	mu     sync.Mutex
	part   []byte // of a line
	lines  []string
	said   chan struct{} // closed and made anew by each line
	stderr bytes.Buffer
	hung   bool
	stacks string // of its threads, if it hung
}

const (
	mostLines  = 200000
	mostStderr = 64 << 10
	killWait   = 5 * time.Second // until a killed program is given up
)

// Write takes its stdout.
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.part = append(p.part, b...)
	for {
		i := bytes.IndexByte(p.part, '\n')
		if i < 0 {
			return len(b), nil
		}
		if len(p.lines) < mostLines {
			p.lines = append(p.lines, string(p.part[:i]))
		}
		p.part = p.part[i+1:]
		close(p.said)
		p.said = make(chan struct{})
	}
}

type errorOutput struct{ p *program }

func (e errorOutput) Write(b []byte) (int, error) {
	e.p.mu.Lock()
	defer e.p.mu.Unlock()
	if room := mostStderr - e.p.stderr.Len(); room > 0 {
		e.p.stderr.Write(b[:min(len(b), room)])
	}
	return len(b), nil
}

// begin starts a program. If it has not ended after the limit, or when ctx ends, its
// threads are looked at and it is killed with all that it has forked.
func (h *hardware) begin(ctx context.Context, at place, limit time.Duration, env []string, args ...string) (*program, error) {
	cmd, err := at.command(env, args...)
	if err != nil {
		return nil, err
	}
	p := &program{name: strings.Join(args, " "), cmd: cmd, done: make(chan struct{}), said: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p, errorOutput{p}
	cmd.WaitDelay = time.Second // what it has forked may keep its output open
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("failed to start %s: %w", p.name, err)
	}
	go func() {
		_ = cmd.Wait() // how it ended is in cmd.ProcessState
		close(p.done)
	}()
	go func() {
		late := time.NewTimer(limit)
		defer late.Stop()
		select {
		case <-p.done:
		case <-late.C:
			h.hang(p, fmt.Sprintf("after %v", limit))
		case <-ctx.Done():
			h.hang(p, "when its stage was cut")
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // also what it has left
	}()
	return p, nil
}

// hang records that a program did not end.
func (h *hardware) hang(p *program, when string) {
	stacks := stacksOf(p.cmd.Process.Pid)
	p.mu.Lock()
	p.hung, p.stacks = true, stacks
	said := strings.Join(p.lines[max(0, len(p.lines)-5):], "\n")
	p.mu.Unlock()
	h.mu.Lock()
	h.hung = append(h.hung, fmt.Sprintf("%s %s; it said last:\n%s\n%s", p.name, when, said, stacks))
	h.mu.Unlock()
}

// hangs are the programs that did not end.
func (h *hardware) hangs() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.hung)
}

// await waits until the program says a line.
func (p *program) await(line string) error {
	for {
		p.mu.Lock()
		there, more := slices.Contains(p.lines, line), p.said
		p.mu.Unlock()
		if there {
			return nil
		}
		select {
		case <-more:
		case <-p.done:
			p.mu.Lock()
			there = slices.Contains(p.lines, line)
			p.mu.Unlock()
			if there {
				return nil
			}
			return fmt.Errorf("%s never said %q: %s", p.name, line, p.outcome())
		}
	}
}

// goOn answers a program that waits.
func (p *program) goOn() { _, _ = io.WriteString(p.in, "go\n") }

// outcome is how a program has ended, and what it has said.
type outcome struct {
	lines          []string
	stderr         string
	status         string // as exec tells it: "exit status 0"
	ok, hung, gone bool   // gone: not even SIGKILL has ended it
	stacks         string
}

// end lets a program go on to its end.
func (p *program) end() outcome {
	_ = p.in.Close()
	for !p.hasEnded(killWait) {
		p.mu.Lock()
		hung := p.hung
		p.mu.Unlock()
		if hung && !p.hasEnded(killWait) {
			break
		}
	}
	return p.outcome()
}

func (p *program) hasEnded(within time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(within):
		return false
	}
}

func (p *program) outcome() outcome {
	var ended bool
	select {
	case <-p.done:
		ended = true
	default:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	o := outcome{lines: slices.Clone(p.lines), stderr: p.stderr.String(), hung: p.hung, stacks: p.stacks, gone: !ended, status: "runs"}
	if len(p.part) > 0 { // a last line that has no end
		o.lines = append(o.lines, string(p.part))
	}
	if ended {
		o.status = p.cmd.ProcessState.String()
		o.ok = p.cmd.ProcessState.Success()
	}
	return o
}

func (o outcome) String() string {
	s := o.status
	if o.hung {
		s += ", it hung\n" + o.stacks
	}
	if o.stderr != "" {
		s += "; stderr: " + clip(o.stderr, 600)
	}
	return s
}

func (o outcome) text() string { return strings.Join(o.lines, "\n") }

// output runs a program to its end; that it fails is an error.
func (h *hardware) output(ctx context.Context, at place, limit time.Duration, args ...string) ([]string, error) {
	p, err := h.begin(ctx, at, limit, nil, args...)
	if err != nil {
		return nil, err
	}
	o := p.end()
	if !o.ok {
		return o.lines, errors.New(p.name + ": " + o.String())
	}
	return o.lines, nil
}

// clip keeps the beginning of a text.
func clip(s string, most int) string {
	s = strings.TrimSpace(s)
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + " ..."
	}
	return s
}

func firstLine(s string) string {
	line, _, more := strings.Cut(s, "\n")
	if more {
		line += " ..."
	}
	return clip(line, 300)
}
