// SPDX-License-Identifier: Apache-2.0

package opencl

import (
	"bytes"
	_ "embed"
	"fmt"
	"text/template"
	"time"
)

// overlapRow is a line of the table of commands that ran at once: pairs of them, of
// different containers, with the gate and without.
type overlapRow struct{ Containers, Commands, With, Without int }

// programRow is one of programs.
type programRow struct{ Program, Version, Does, Same string }

// table is what the tests saw that have passed.
var table struct {
	Overlaps []overlapRow
	Programs []programRow
	// Of TestBurstsAndAHog: how many a program had; P99 alone, beside a hog in turns, and without turns.
	Bursts           int
	Serial, Together time.Duration
	P99              []time.Duration
}

//go:embed opencl.md.tmpl
var text string

var pageTemplate = template.Must(template.New("opencl.md").Parse(text))

// page is docs/opencl.md.
func page() []byte {
	var out bytes.Buffer
	if err := pageTemplate.Execute(&out, table); err != nil {
		panic(fmt.Sprintf("the template of docs/opencl.md: %v", err)) // it is part of this package
	}
	return out.Bytes()
}
