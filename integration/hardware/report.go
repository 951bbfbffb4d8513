// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// report is all that a run has found. It is written after each stage: what comes
// later may take everything with it. Safe for concurrent use.
type report struct {
	path string

	mu       sync.Mutex
	Machine  map[string]any `json:"machine"`
	Date     time.Time      `json:"date"`
	Commit   string         `json:"commit"`
	Seconds  float64        `json:"seconds"`
	Stages   []*stageReport `json:"stages"`
	Checks   []check        `json:"checks"`
	Measures []measure      `json:"measures"`
	// Findings are what is worth knowing and no failure; Facts are long.
	Findings []finding      `json:"findings"`
	Facts    map[string]any `json:"facts"`
}

type stageReport struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

type check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

type measure struct {
	Name    string  `json:"name"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	Samples int     `json:"samples"`
}

type finding struct {
	Name   string `json:"name"`
	Detail string `json:"detail"`
}

// check records what must hold.
func (r *report) check(name string, ok bool, format string, args ...any) {
	c := check{name, ok, fmt.Sprintf(format, args...)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Checks = append(r.Checks, c)
	fmt.Printf("    %-6s %s: %s\n", map[bool]string{true: "ok", false: "FAILED"}[ok], name, firstLine(c.Detail))
}

func (r *report) measure(name string, value float64, unit string, samples int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Measures = append(r.Measures, measure{name, value, unit, samples})
	fmt.Printf("           %s = %.4g %s (%d)\n", name, value, unit, samples)
}

func (r *report) finding(name, format string, args ...any) {
	f := finding{name, fmt.Sprintf(format, args...)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Findings = append(r.Findings, f)
	fmt.Printf("    note   %s: %s\n", name, firstLine(f.Detail))
}

func (r *report) fact(name string, value any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Facts[name] = value
}

// count of checks that passed and failed.
func (r *report) count() (passed, failed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.Checks {
		if c.OK {
			passed++
		} else {
			failed++
		}
	}
	return passed, failed
}

// write replaces the file.
func (r *report) write() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Seconds = time.Since(r.Date).Seconds()
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(r.path+".tmp", append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(r.path+".tmp", r.path)
}
