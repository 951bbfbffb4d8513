// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// report is what came of all runs.
type report struct {
	rows        []row
	unexplained int // differences without a cause
}

// row is a run and what came of it.
type row struct {
	run         run
	results     results
	differences []difference
	again       []string // tests that differed, and agreed when they were run again
}

// closing is the last line of the output. What failed with runc's shim too is
// the suite's affair or the machine's, and no failure here.
func (p *report) closing() string {
	same, differ := 0, 0
	for _, row := range p.rows {
		if row.run.runtime.name != stock {
			same += len(row.results) - len(row.differences)
			differ += len(row.differences)
		}
	}
	return fmt.Sprintf("conformance: %d outcomes as with runc's shim, %d differ with a known cause, %d failed",
		same, differ-p.unexplained, p.unexplained)
}

// The tables stand between these lines of the document; the rest of it is
// written by hand.
const (
	beginTables = "<!-- made by make conformance -->\n"
	endTables   = "<!-- end -->\n"
)

// write puts the tables into the document.
func (p *report) write(file string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	commit, err := exec.Command("integration/setup/version.sh", "commit").Output()
	if err != nil {
		return fmt.Errorf("version.sh: %w", err)
	}
	text, err := splice(string(old), p.tables(time.Now(), strings.TrimSpace(string(commit))))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	temporary := filepath.Join(filepath.Dir(file), ".conformance.md")
	if err := os.WriteFile(temporary, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, file)
}

// splice replaces what stands between the two lines.
func splice(document, tables string) (string, error) {
	before, rest, ok := strings.Cut(document, beginTables)
	_, after, ended := strings.Cut(rest, endTables)
	if !ok || !ended {
		return "", errors.New("the lines that the tables stand between are not there")
	}
	return before + beginTables + tables + endTables + after, nil
}

// tables are in Markdown.
func (p *report) tables(now time.Time, commit string) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "\nMeasured on %s at commit %.12s.\n\n", now.UTC().Format(time.DateOnly), commit)
	fmt.Fprint(&b, "| suite | containerd | runtime | passed | failed | skipped | differ | agreed when run again |\n|---|---|---|---:|---:|---:|---:|---:|\n")
	for _, row := range p.rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d | %d | %d |\n", row.run.suite.name, row.run.version, row.run.runtime.name,
			row.results.count(passed), row.results.count(failed), row.results.count(skipped), len(row.differences), len(row.again))
	}
	fmt.Fprint(&b, "\n| runtime | what it is |\n|---|---|\n")
	for _, c := range runtimes {
		fmt.Fprintf(&b, "| %s | %s (`%s`) |\n", c.name, c.about, c.handler)
	}
	fmt.Fprint(&b, "\n| run | test | with runc's shim | with ours | cause |\n|---|---|---|---|---|\n")
	for _, row := range p.rows {
		for _, d := range row.differences {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", d.run.name(), d.test, d.stock, d.ours, d.cause)
		}
	}
	fmt.Fprint(&b, "\n")
	return b.String()
}
