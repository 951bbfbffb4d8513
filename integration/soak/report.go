// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// table tells what happened in a run.
func (s *soak) table(w io.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, value any) { fmt.Fprintf(t, "%s\t%v\t\n", name, value) }
	for _, k := range kinds {
		row(string(k.kind), s.count[k.kind])
	}
	row("", "")
	row("containers created", s.totals.created)
	row("creations that failed closed", s.totals.failedClosed)
	processes := 0
	for _, b := range s.order {
		processes += len(b.procs)
	}
	row("processes started", processes)
	row("restarts of vgpud", s.totals.vgpudRestarts)
	row("restarts of containerd", s.totals.containerdRestarts)
	if s.totals.forgottenShims > 0 {
		row("shims that containerd forgot (its issue 6860)", s.totals.forgottenShims)
	}
	row("pieces of work", s.totals.submissions)
	row("turns", s.totals.turns)
	row("hand-overs", s.totals.handovers)
	row("drains (seen by vgpu ps)", s.totals.drains)
	row("overruns declared", s.totals.overruns)
	t.Flush()
	fmt.Fprintf(w, "longest wait: %.1f s (%s)\n", s.totals.longestWait.Seconds(), s.totals.longestWaitOf)
}

func (s *soak) total() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.count {
		n += c
	}
	return n
}

// logLines is how much of each log is printed after a failure.
const logLines = 50

// explain prints what went wrong. The daemons may still run.
func (s *soak) explain(w io.Writer, keep string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := func(title, text string) {
		fmt.Fprintf(w, "\n--- the end of %s\n", title)
		lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
		fmt.Fprintln(w, strings.Join(lines[max(0, len(lines)-logLines):], "\n"))
	}
	end("the faults (all, and the whole logs: "+keep+")", strings.Join(s.list, "\n"))
	end("vgpud's log", readFile(s.node.Daemon.Process().Log))
	end("containerd's log", readFile(s.node.Containerd.Process().Log))
	for _, b := range s.order {
		named := func(v violation) bool { return strings.Contains(v.text, " "+b.id+" ") }
		if slices.ContainsFunc(s.violations, named) {
			end(fmt.Sprintf("what %s said (it asked for %v)", b.id, b.profile), b.text)
		}
	}
	fmt.Fprintln(w, "\n--- what was violated")
	count := map[string]int{}
	for _, v := range s.violations {
		if count[v.topic]++; count[v.topic] <= 3 {
			fmt.Fprintf(w, "%s: %s\n", v.topic, v.text)
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(count)) {
		if n := count[topic]; n > 3 {
			fmt.Fprintf(w, "%s: ... %d in all\n", topic, n)
		}
	}
}

// keepLogs copies everything that was written into a folder, and who is who in
// the simulated GPUs' log.
func (s *soak) keepLogs(keep string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The run's own context may be what ended.
	gpus, err := s.node.Daemon.LogText(context.Background())
	if err != nil {
		return err
	}
	var who strings.Builder
	fmt.Fprintf(&who, "the run began at %d ns\n", s.begin)
	files := map[string]string{
		"vgpud.log":      readFile(s.node.Daemon.Process().Log),
		"containerd.log": readFile(s.node.Containerd.Process().Log),
		"gpu.tsv":        string(gpus),
	}
	for _, b := range s.order {
		files[b.id+".log"] = b.text
		fmt.Fprintf(&who, "%s\ttenant %d\tlaunched %d ns\tasked to end %d ns\tasked for %v\n", b.id, b.tenant, b.launched, b.asked, b.profile)
	}
	files["containers.txt"] = who.String()
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(keep, name), []byte(text), 0o600))
	}
	return err
}

// readFile is the text of a file, or why it can not be read.
func readFile(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// headline is the first line of a run.
func headline(seed uint64, version harness.Version) string {
	return fmt.Sprintf("soak: seed %d, containerd %s", seed, version)
}
