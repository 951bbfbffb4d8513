// SPDX-License-Identifier: Apache-2.0

package jail

import (
	"bufio"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Command is In for a test, which gets a root of its own.
func Command(t testing.TB, dir, library string, args ...string) *exec.Cmd {
	t.Helper()
	return In(t.TempDir(), dir, library, args...)
}

// Patience bounds every wait for something that must happen.
const Patience = 20 * time.Second

// A Program is a running C program. It and its test talk in lines.
type Program struct {
	Cmd    *exec.Cmd
	Lines  chan string // what it says; closed at its end
	Stderr *Output
	In     io.WriteCloser // what it reads; GoOn writes a line

	t testing.TB
}

// Output is what a program has written so far.
type Output struct {
	mu    sync.Mutex
	text  strings.Builder
	grown chan struct{} // closed by the next Write; nil: nobody waits
}

// Write implements io.Writer.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.grown != nil {
		close(o.grown)
		o.grown = nil
	}
	return o.text.Write(b)
}

// String is all of it.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// next is all of it, and what is closed when there is more.
func (o *Output) next() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.grown == nil {
		o.grown = make(chan struct{})
	}
	return o.text.String(), o.grown
}

// Begin starts a command. It is killed with what it forked at the end of the test.
func Begin(t testing.TB, cmd *exec.Cmd) *Program {
	t.Helper()
	p := &Program{Cmd: cmd, Lines: make(chan string, 256), Stderr: &Output{}, t: t}
	cmd.Stderr = p.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.In, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("failed to start in a mount namespace (root is needed): %v", err)
	}
	go func() {
		sc := bufio.NewScanner(out)
		for sc.Scan() {
			p.Lines <- sc.Text()
		}
		close(p.Lines)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	return p
}

// Line returns the program's next line; "" at its end.
func (p *Program) Line() string {
	p.t.Helper()
	select {
	case l := <-p.Lines:
		return l
	case <-time.After(Patience):
		_ = p.Cmd.Process.Signal(syscall.SIGABRT)
		p.t.Fatalf("the program says nothing; stderr:\n%s", p.Stderr)
	}
	return ""
}

// Expect checks the next line.
func (p *Program) Expect(want string) {
	p.t.Helper()
	if got := p.Line(); got != want {
		if got != "" { // it goes on
			_ = p.Cmd.Process.Kill()
		}
		_ = p.Cmd.Wait()
		p.t.Fatalf("the program said %q, want %q; %v; stderr:\n%s", got, want, p.Cmd.ProcessState, p.Stderr)
	}
}

// Says waits for something on stderr.
func (p *Program) Says(want string) {
	p.t.Helper()
	for late := time.After(Patience); ; {
		text, more := p.Stderr.next()
		if strings.Contains(text, want) {
			return
		}
		select {
		case <-more:
		case <-late:
			p.t.Fatalf("stderr never said %q; it says:\n%s", want, text)
		}
	}
}

// Silent checks that the program has not said anything yet.
func (p *Program) Silent() {
	p.t.Helper()
	select {
	case l := <-p.Lines:
		p.t.Fatalf("the program went on: %q", l)
	default:
	}
}

// GoOn lets the program pass its next await.
func (p *Program) GoOn() {
	p.t.Helper()
	if _, err := io.WriteString(p.In, "\n"); err != nil {
		p.t.Fatalf("the program does not listen: %v; stderr:\n%s", err, p.Stderr)
	}
}

// Done expects the end, with status 0.
func (p *Program) Done() {
	p.t.Helper()
	p.Expect("done")
	if err := p.Cmd.Wait(); err != nil {
		p.t.Fatalf("%v; stderr:\n%s", err, p.Stderr)
	}
}
