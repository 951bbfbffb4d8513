// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// counts is gcov's intermediate format, as far as it is used.
type counts struct {
	Dir   string `json:"current_working_directory"`
	Files []struct {
		Name      string `json:"file"`
		Functions []struct {
			Name  string `json:"name"`
			Count uint64 `json:"execution_count"`
		} `json:"functions"`
		Lines []struct {
			Number int    `json:"line_number"`
			Count  uint64 `json:"count"`
		} `json:"lines"`
	} `json:"files"`
}

// file is one source file: how often its lines and functions were run, added up
// over all objects that hold them.
type file struct {
	lines     map[int]uint64
	functions map[string]uint64
}

type total struct{ lines, run int }

func (t total) percent() float64 {
	if t.lines == 0 {
		return 0
	}
	return 100 * float64(t.run) / float64(t.lines)
}

func (f *file) total() total {
	t := total{lines: len(f.lines)}
	for _, n := range f.lines {
		if n > 0 {
			t.run++
		}
	}
	return t
}

func (f *file) never() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(f.functions)) {
		if f.functions[name] == 0 {
			names = append(names, name)
		}
	}
	return names
}

type report struct {
	root, copies string
	files        map[string]*file // by path below root
}

func newReport(root, copies string) *report {
	return &report{root: root, copies: copies, files: map[string]*file{}}
}

// generated is shown, but not in the sum: each line of its generator is there
// hundreds of times.
func generated(path string) bool { return strings.Contains(path, "/gen/") }

// source is the path below root of a file that is looked at, or "".
func (r *report) source(dir, name string) string {
	if !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	if r.copies != "" {
		if base, err := filepath.Rel(r.copies, name); err == nil && filepath.IsLocal(base) {
			return filepath.Join("hooks/gate", base)
		}
	}
	path, err := filepath.Rel(r.root, name)
	if err != nil {
		return ""
	}
	for _, skip := range []string{"/test/", "/testdata/", "/explore/"} {
		if strings.Contains(path, skip) {
			return ""
		}
	}
	for _, keep := range []string{"hooks/gate/", "hooks/driver/", "hooks/opencl/"} {
		if strings.HasPrefix(path, keep) {
			return path
		}
	}
	return ""
}

// read adds the counts of one object file.
func (r *report) read(notes string) error {
	out, err := gcov(notes)
	if err != nil {
		return err
	}
	return r.add(out)
}

func (r *report) add(out []byte) error {
	d := json.NewDecoder(bytes.NewReader(out))
	for {
		var c counts
		if err := d.Decode(&c); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("failed to read what gcov says: %w", err)
		}
		for _, from := range c.Files {
			path := r.source(c.Dir, from.Name)
			if path == "" {
				continue
			}
			f := r.files[path]
			if f == nil {
				f = &file{map[int]uint64{}, map[string]uint64{}}
				r.files[path] = f
			}
			for _, l := range from.Lines {
				f.lines[l.Number] += l.Count
			}
			for _, fn := range from.Functions {
				f.functions[fn.Name] += fn.Count
			}
		}
	}
}

// print writes the table and returns the sums of the directories.
func (r *report) print(w io.Writer) map[string]total {
	sums := map[string]total{}
	row := func(name string, t total, note string) {
		fmt.Fprintf(w, "%-34s %6d %6d %6.1f %%%s\n", name, t.lines, t.run, t.percent(), note)
	}
	fmt.Fprintf(w, "%-34s %6s %6s\n", "file", "lines", "run")
	paths := slices.Sorted(maps.Keys(r.files))
	for _, path := range paths {
		t := r.files[path].total()
		if generated(path) {
			row(path, t, "  (generated: not in the sum)")
			continue
		}
		row(path, t, "")
		dir := filepath.Dir(path)
		sums[dir] = total{sums[dir].lines + t.lines, sums[dir].run + t.run}
	}
	for _, dir := range slices.Sorted(maps.Keys(sums)) {
		row(dir, sums[dir], "")
	}
	for _, path := range paths {
		if names := r.files[path].never(); len(names) > 0 && !generated(path) {
			fmt.Fprintf(w, "never run in %s: %s\n", path, strings.Join(names, ", "))
		}
	}
	return sums
}
