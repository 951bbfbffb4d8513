// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// daemonLog reads vgpud's log while it is written, over its restarts.
type daemonLog struct {
	f    *os.File
	rest []byte        // of a line that is not whole yet
	last time.Duration // when it was read last
}

func openDaemonLog(path string) (*daemonLog, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &daemonLog{f: f, last: now()}, nil
}

func (l *daemonLog) close() { l.f.Close() }

// said is a line of the log that the soak test understands.
type said struct {
	Msg       string
	Level     string
	Container string
	GrantedNS *int64 `json:"granted_ns"`
	EndedNS   *int64 `json:"ended_ns"`
	// Written between these two instants: the line has whole seconds only.
	after, before time.Duration
}

// next returns the lines that were written since the last call.
func (l *daemonLog) next() ([]said, error) {
	before := l.last
	b, err := io.ReadAll(l.f)
	if err != nil {
		return nil, fmt.Errorf("failed to read vgpud's log: %w", err)
	}
	l.last = now()
	l.rest = append(l.rest, b...)
	var all []said
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			return all, nil
		}
		l.rest = rest
		s := said{after: before, before: l.last}
		if json.Unmarshal(line, &s) != nil {
			// It logs JSON alone: this is a panic, or half a line of one that was
			// killed.
			if bytes.HasPrefix(line, []byte("panic:")) || bytes.HasPrefix(line, []byte("fatal error:")) {
				return nil, errors.New("vgpud crashed: " + string(line))
			}
			continue
		}
		all = append(all, s)
	}
}

// turn says whether the line tells of a turn that ended.
func (s *said) turn() (turn, bool) {
	if s.Msg != "turn ended" || s.GrantedNS == nil || s.EndedNS == nil {
		return turn{}, false
	}
	return turn{time.Duration(*s.GrantedNS), time.Duration(*s.EndedNS)}, true
}

// declares says whether the line declares that from now on work of the container
// may be in flight outside its turns.
func (s *said) declares() bool {
	return strings.Contains(s.Msg, "others are granted") || strings.Contains(s.Msg, "its turn is over")
}

// astray says whether what is declared is of a process that did not come back
// after a restart of vgpud.
func (s *said) astray() bool { return strings.Contains(s.Msg, "did not come back") }
