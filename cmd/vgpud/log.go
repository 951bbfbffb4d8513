// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// logWriter writes lines on a goroutine of its own. Whoever logs never waits: if
// the reader of the log is too slow, lines are dropped and counted.
type logWriter struct {
	to      io.Writer
	lines   chan []byte
	dropped atomic.Uint64 // not said yet
	all     atomic.Uint64 // dropped since the start
	stop    chan struct{}
	done    chan struct{}
}

func newLogWriter(to io.Writer, lines int) *logWriter {
	w := &logWriter{to: to, lines: make(chan []byte, lines), stop: make(chan struct{}), done: make(chan struct{})}
	go w.run()
	return w
}

// Write takes one line. It is what logrus calls for each.
func (w *logWriter) Write(b []byte) (int, error) {
	select {
	case w.lines <- append([]byte(nil), b...):
	default:
		w.dropped.Add(1)
		w.all.Add(1)
	}
	return len(b), nil
}

// Dropped is how many lines were dropped so far. Stats asks for it.
func (w *logWriter) Dropped() uint64 { return w.all.Load() }

func (w *logWriter) run() {
	defer close(w.done)
	for {
		select {
		case line := <-w.lines:
			w.write(line)
		case <-w.stop:
			for {
				select {
				case line := <-w.lines:
					w.write(line)
				default:
					return
				}
			}
		}
	}
}

func (w *logWriter) write(line []byte) {
	// There is nobody to tell that the log can not be written.
	_, _ = w.to.Write(line)
	if n := w.dropped.Swap(0); n > 0 {
		fmt.Fprintf(w.to, "vgpud: %d lines of the log were dropped: they came faster than they could be written\n", n)
	}
}

// close writes what is left, for at most the given time. Nothing is written
// after it.
func (w *logWriter) close(atMost time.Duration) {
	close(w.stop)
	select {
	case <-w.done:
	case <-time.After(atMost):
	}
}
