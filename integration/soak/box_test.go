// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Exits are accounted for.
func TestListen(t *testing.T) {
	cases := []struct {
		description string
		killed      bool
		asked       time.Duration
		said        string
		wrong       string
	}{
		{"ended well", false, 0, "exit hog 7 0\n", ""},
		{"killed", true, 0, "exit hog 7 137\n", ""},
		{"killed by somebody else", false, 0, "exit hog 7 137\n", "nobody killed it"},
		{"failed", false, 0, "an error\nexit hog 7 1\n", "an error"},
		{"failed instead of dying", true, 0, "exit hog 7 1\n", "status 1"},
		{"with its container", false, 5, "exit hog 7 137\n", ""},
		{"a stranger", false, 0, "exit hog 8 0\n", "never started"},
		{"half a line", false, 0, "exit hog 7 1", ""},
	}
	for _, c := range cases {
		t.Run(c.description, func(t *testing.T) {
			b := &box{id: "x", asked: c.asked}
			const first = "mnt:[4026532]\nstart hog 7\n"
			if got := b.listen(first); len(got) > 0 || b.tenant != 4026532 || len(b.procs) != 1 {
				t.Fatalf("got %v, tenant %d, %d processes", got, b.tenant, len(b.procs))
			}
			b.procs[0].killed = c.killed
			got := ""
			for _, v := range b.listen(first + c.said) {
				got += v.text
			}
			if (got == "") != (c.wrong == "") || !strings.Contains(got, c.wrong) {
				t.Errorf("got %q, want what contains %q", got, c.wrong)
			}
		})
	}
}

// The seed says which faults come, and in which order.
func TestPlan(t *testing.T) {
	faults := func(seed uint64) (all []planned) {
		p := newPlan(seed)
		for range 1000 {
			all = append(all, p.next())
		}
		return all
	}
	if !slices.Equal(faults(1), faults(1)) || slices.Equal(faults(1), faults(2)) {
		t.Error("the same seed should give the same faults, and another one others")
	}
	percent := uint(0)
	for _, k := range kinds {
		percent += k.percent
		if !slices.ContainsFunc(faults(1), func(f planned) bool { return f.kind == k.kind }) {
			t.Errorf("%q never comes", k.kind)
		}
	}
	if percent != 100 {
		t.Errorf("kinds sum up to %d percent", percent)
	}
}
