// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// box is a container of the population.
type box struct {
	id       string
	profile  profile
	ends     bool // by itself
	launched time.Duration
	over     chan struct{} // closed when its end was asked for, or came

	// What follows is guarded by soak.mu.
	container *harness.Container // nil until it runs
	tenant    harness.Tenant     // 0 until it was read
	asked     time.Duration      // when its end was asked for; 0: it was not
	removed   time.Duration      // when it was gone; 0: it is there
	silent    bool               // all that it said was read
	cutOff    bool               // containerd was killed while it was created
	stopped   int                // of its processes, by us
	resumed   time.Duration      // when the last of them went on
	lastUsage usage

	text  string // output so far
	read  int    // of it
	procs []*proc
	other []string // lines that it was not expected to say
}

// usage is what vgpud says of a vGPU; it only grows.
type usage struct {
	turns, drains uint64
	held          time.Duration
}

// proc is a process of a box that its script has started.
type proc struct {
	pid     int // in the container
	program string
	since   time.Duration // of its start, or its last progress
	killed  bool          // by us
	stopped bool
	exited  bool
}

func (b *box) running() bool { return b.container != nil && b.asked == 0 }

// end notes that somebody asks for the end of the box.
func (b *box) end() {
	if b.asked == 0 {
		b.asked = now()
		close(b.over)
	}
}

// living lists the processes that can be killed or stopped.
func (b *box) living() []*proc {
	var all []*proc
	for _, p := range b.procs {
		if !p.exited && !p.killed && !p.stopped {
			all = append(all, p)
		}
	}
	return all
}

func (b *box) proc(pid int) *proc {
	for i := len(b.procs) - 1; i >= 0; i-- { // a number may be used again
		if b.procs[i].pid == pid {
			return b.procs[i]
		}
	}
	return nil
}

// listen reads what the box has said since the last call. It returns what can
// not be: a process that ended without having been killed.
func (b *box) listen(output string) (violations []violation) {
	b.text = output
	for {
		line, _, whole := strings.Cut(b.text[b.read:], "\n")
		if !whole {
			return violations
		}
		b.read += len(line) + 1
		fields := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "mnt:["):
			inode, err := strconv.ParseUint(strings.Trim(line, "mnt:[]"), 10, 64)
			if err == nil {
				b.tenant = harness.Tenant(inode)
			}
		case len(fields) == 3 && fields[0] == "start":
			if pid, err := strconv.Atoi(fields[2]); err == nil {
				b.procs = append(b.procs, &proc{pid: pid, program: fields[1], since: now()})
			}
		case len(fields) == 4 && fields[0] == "exit":
			pid, err := strconv.Atoi(fields[2])
			p := b.proc(pid)
			if err != nil || p == nil {
				violations = append(violations, violation{"exits", fmt.Sprintf("%s said %q of a process that it never started", b.id, line)})
				continue
			}
			p.exited = true
			if fields[3] != "0" && (!p.killed || fields[3] != "137") && b.asked == 0 {
				violations = append(violations, violation{"exits", fmt.Sprintf("process %d (%s) of %s ended with status %s, and nobody killed it; it said: %s",
					pid, p.program, b.id, fields[3], strings.Join(b.other, " | "))})
			}
		default:
			if b.other = append(b.other, line); len(b.other) > 20 {
				b.other = b.other[1:]
			}
		}
	}
}
