// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopPatience is how long a process gets between SIGTERM and SIGKILL, and what it
// leaves until it is gone. vgpud looks for vGPUs to collect every 10 s.
const stopPatience = 60 * time.Second

// Process is a program that runs in the background, with its output in a file.
type Process struct {
	Name string
	Log  string // path of the file with stdout and stderr

	cmd  *exec.Cmd
	done chan struct{} // closed once the process was reaped
}

// spawner starts processes from one thread that lives as long as this program,
// because PR_SET_PDEATHSIG fires when the starting thread ends, not the process.
var spawner = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// StartProcess starts cmd. The process dies with this one, however that ends.
func StartProcess(name, log string, cmd *exec.Cmd) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	// A group of its own: the terminal's Ctrl-C is for the harness, which then
	// ends everything in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	spawner() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("failed to start %s: %w", name, err)
	}
	p := &Process{Name: name, Log: log, cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in cmd.ProcessState
		close(p.done)
	}()
	return p, nil
}

// PID of the process; it stays that of the process after it ended.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Signal sends a signal; a process that has ended is no error.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("failed to send %v to %s: %w", s, p.Name, err)
	}
	return nil
}

// Kill ends the process with SIGKILL and waits until it is gone.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Stop ends the process with SIGTERM, and with SIGKILL if it stays; that it had
// to be killed is the error.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(stopPatience):
	}
	if err := p.Kill(); err != nil {
		return err
	}
	return fmt.Errorf("%s did not end within %v of SIGTERM, and was killed", p.Name, stopPatience)
}

// Tail returns the end of the process's log, for messages.
func (p *Process) Tail() string { return tail(p.Log, 20) }

// tail returns the last n lines of a file, or the reason why it can not.
func tail(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

// eventually calls f until it returns nil, ctx ends, or the process p (may be
// nil) ends; the error then holds the last one of f.
func eventually(ctx context.Context, p *Process, f func() error) error {
	var gone <-chan struct{}
	if p != nil {
		gone = p.done
	}
	pause := time.Millisecond
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-gone:
			return fmt.Errorf("%s ended (%v): %s", p.Name, p.cmd.ProcessState, p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%w, last seen: %w", ctx.Err(), err)
		case <-time.After(pause):
		}
		pause = min(2*pause, 50*time.Millisecond)
	}
}

// Eventually calls f until it returns nil or the time is over; the error is
// then the last one of f. It is how tests wait for what can be observed.
func Eventually(ctx context.Context, limit time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return eventually(ctx, nil, f)
}
