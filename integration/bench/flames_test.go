// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/pprof/profile"
)

func TestStacksAreFoldedFromTheirRoot(t *testing.T) {
	at := func(names ...string) *profile.Location {
		l := &profile.Location{}
		for _, name := range names {
			l.Line = append(l.Line, profile.Line{Function: &profile.Function{Name: name}})
		}
		return l
	}
	main, step := at("main"), at("inlined", "step")
	p := &profile.Profile{Sample: []*profile.Sample{
		{Location: []*profile.Location{step, main}, Value: []int64{2, 200}},
		{Location: []*profile.Location{main}, Value: []int64{1, 100}},
		{Location: []*profile.Location{step, main}, Value: []int64{3, 300}},
	}}
	if got, want := folded(p), "main 1\nmain;step;inlined 5\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
