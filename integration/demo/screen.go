// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// screen shows the run while it goes on.
type screen interface {
	begin(names []string)
	every() time.Duration
	draw(names []string, samples []sample, turns []uint64)
	end()
}

// newScreen draws into a terminal, and prints plain lines where there is none.
func newScreen() screen {
	size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col < 40 || os.Getenv("TERM") == "dumb" {
		return &lines{}
	}
	return &terminal{columns: int(size.Col)}
}

// terminal redraws a timeline in place; its right end is now.
type terminal struct {
	columns int
	rows    int // drawn last time
}

// liveColumn is what one column of the live timeline stands for.
const liveColumn = 50 * time.Millisecond

func (t *terminal) begin([]string) {
	fmt.Printf("Who holds the GPU (one column is %v; █ holds it, · waits for it):\n", liveColumn)
}

func (t *terminal) every() time.Duration { return 100 * time.Millisecond }

func (t *terminal) draw(names []string, samples []sample, turns []uint64) {
	t.erase()
	width := t.columns - labelWidth - len(" 99999 turns") - 1
	to := samples[len(samples)-1].at
	from := max(0, to-time.Duration(width)*liveColumn)
	for i, row := range timeline(len(names), samples, from, liveColumn, width) {
		fmt.Printf("%-*s%-*s %5d turns\n", labelWidth, names[i], width, row, turns[i])
	}
	t.rows = len(names)
}

// end takes the live picture away: the report has the whole one.
func (t *terminal) end() { t.erase() }

func (t *terminal) erase() {
	for range t.rows {
		fmt.Print("\x1b[1A\x1b[2K")
	}
	t.rows = 0
}

// lines says now and then how far it is.
type lines struct{}

func (*lines) begin([]string)       {}
func (*lines) every() time.Duration { return time.Second }
func (*lines) end()                 {}

func (*lines) draw(names []string, samples []sample, turns []uint64) {
	var parts []string
	for i, name := range names {
		parts = append(parts, fmt.Sprintf("%s %d", name, turns[i]))
	}
	fmt.Printf("  %4.1f s, turns so far: %s\n", samples[len(samples)-1].at.Seconds(), strings.Join(parts, ", "))
}
