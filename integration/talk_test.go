// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// talker is the other end of a program memory in a container.
type talker struct {
	t        *testing.T
	name     string
	do, says *os.File
	lines    *bufio.Reader
}

// talk makes the FIFOs for a program. All of a node are in one directory, which
// its containers have at /talk.
func (n *node) talk(name string) *talker {
	n.T.Helper()
	dir := n.talkDir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.T.Fatal(err)
	}
	p := &talker{t: n.T, name: name}
	for end, file := range map[string]**os.File{"do": &p.do, "says": &p.says} {
		path := filepath.Join(dir, name+"."+end)
		err := syscall.Mkfifo(path, 0o600)
		if err == nil {
			*file, err = os.OpenFile(path, os.O_RDWR, 0)
		}
		if err != nil {
			n.T.Fatal(err)
		}
	}
	p.lines = bufio.NewReader(p.says)
	// The program ends with its input.
	n.T.Cleanup(func() {
		p.do.Close()
		p.says.Close()
	})
	return p
}

func (n *node) talkDir() string { return filepath.Join(n.Dir, "talk") }

// memory starts a container of the program memory.
func (n *node) memory(s harness.Spec) (*harness.Container, *talker) {
	n.T.Helper()
	p := n.talk(s.ID)
	s.Args = []string{"memory", "--talk", "/talk/" + s.ID}
	s.Mounts = append(s.Mounts, "type=bind,src="+n.talkDir()+",dst=/talk,options=rbind:rw")
	return n.Launch(s), p
}

// limited starts a container of the program memory that has so much of it.
func (n *node) limited(id, memory string) (*harness.Container, *talker) {
	n.T.Helper()
	return n.memory(harness.Spec{ID: id, Annotations: map[string]string{"vgpu-shim.dev/memory": memory}})
}

// beside starts the program memory in a container that runs one, with more in its
// environment.
func (n *node) beside(c *harness.Container, name string, env ...string) *talker {
	n.T.Helper()
	p := n.talk(name)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		args := append([]string{"/bin/env"}, env...)
		_, _ = c.Exec(n.Ctx, append(args, "/vgpu/memory", "--talk", "/talk/"+name)...) // what it said counts
	}()
	n.T.Cleanup(func() {
		p.do.Close()
		<-ended
	})
	return p
}

// tell gives the program a command; its answer is for later.
func (p *talker) tell(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.do, format+"\n", args...); err != nil {
		p.t.Fatal(err)
	}
}

// hear waits for the program's answer.
func (p *talker) hear() string {
	p.t.Helper()
	if err := p.says.SetReadDeadline(time.Now().Add(patience)); err != nil {
		p.t.Fatal(err)
	}
	line, err := p.lines.ReadString('\n')
	if err != nil {
		p.t.Fatalf("%s says %q: %v", p.name, line, err)
	}
	return strings.TrimSuffix(line, "\n")
}

// silent tells whether there is no answer for a while. One that comes later is
// not lost.
func (p *talker) silent() bool {
	p.t.Helper()
	if err := p.says.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		p.t.Fatal(err)
	}
	_, err := p.lines.Peek(1)
	return err != nil
}

// ask gives a command and waits for its answer.
func (p *talker) ask(format string, args ...any) string {
	p.t.Helper()
	p.tell(format, args...)
	return p.hear()
}

// must gives a command that has to be answered so.
func (p *talker) must(want, format string, args ...any) {
	p.t.Helper()
	if got := p.ask(format, args...); got != want {
		p.t.Errorf("%s says %q to %q, want %q", p.name, got, fmt.Sprintf(format, args...), want)
	}
}

// alloc allocates, which has to succeed, and returns the number of the piece.
func (p *talker) alloc(kind string, bytes uint64) string {
	p.t.Helper()
	got := p.ask("alloc %s %d", kind, bytes)
	if strings.HasPrefix(got, "error") {
		p.t.Errorf("%s fails to allocate %d bytes (%s): %s", p.name, bytes, kind, got)
	}
	return got
}

const outOfMemory = "error CUDA_ERROR_OUT_OF_MEMORY"

// numbers are what CUDA tells of memory.
type numbers struct{ Free, Total, Device uint64 }

func (p *talker) info() (m numbers) {
	p.t.Helper()
	text := p.ask("info")
	if _, err := fmt.Sscan(text, &m.Free, &m.Total, &m.Device); err != nil {
		p.t.Fatalf("%s says %q: %v", p.name, text, err)
	}
	return m
}

// fill allocates pieces until there is no more, and returns the sum.
func (p *talker) fill(kind string, piece uint64) (bytes uint64) {
	p.t.Helper()
	var why string
	text := p.ask("fill %s %d", kind, piece)
	if _, err := fmt.Sscan(text, &bytes, &why); err != nil {
		p.t.Fatalf("%s says %q: %v", p.name, text, err)
	}
	if why != strings.TrimPrefix(outOfMemory, "error ") {
		p.t.Errorf("%s gets no more (%s) for %s", p.name, kind, why)
	}
	return bytes
}
