// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"testing"
	"time"
)

// A shell whose child sleeps: both are looked at, and both are killed.
func TestAProgramThatHangsIsLookedAtAndKilled(t *testing.T) {
	h := &hardware{}
	p, err := h.begin(t.Context(), driver{}, 200*time.Millisecond, nil, "/bin/sh", "-c", "echo here; sleep 1000; true")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.await("here"); err != nil {
		t.Fatal(err)
	}
	o := p.end()
	if !o.hung || o.ok || o.gone || o.status != "signal: killed" || strings.Count(o.stacks, "comm=sleep") != 1 || strings.Count(o.stacks, "comm=sh") != 1 {
		t.Errorf("%+v", o)
	}
	if hung := h.hangs(); len(hung) != 1 || !strings.Contains(hung[0], "it said last:\nhere") {
		t.Errorf("%q", hung)
	}
}

func TestAProgramIsKilledWhenItsStageIsCut(t *testing.T) {
	h := &hardware{}
	ctx, cut := context.WithCancel(t.Context())
	p, err := h.begin(ctx, driver{}, time.Hour, nil, "/bin/sh", "-c", "echo here; exec sleep 1000")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.await("here"); err != nil {
		t.Fatal(err)
	}
	cut()
	if o := p.end(); !o.hung || o.ok || !strings.Contains(strings.Join(h.hangs(), ""), "when its stage was cut") {
		t.Errorf("%+v, %q", o, h.hangs())
	}
}

func TestAProgramsEnd(t *testing.T) {
	h := &hardware{}
	run := func(script string) outcome {
		p, err := h.begin(t.Context(), driver{}, time.Minute, []string{"WORD=env"}, "/bin/sh", "-c", script)
		if err != nil {
			t.Fatal(err)
		}
		return p.end()
	}
	if o := run("read x; echo $WORD; printf end; echo why >&2; exit 3"); o.ok || o.hung || o.status != "exit status 3" ||
		o.text() != "env\nend" || o.stderr != "why\n" {
		t.Errorf("%+v", o)
	}
	p, err := h.begin(t.Context(), driver{}, time.Minute, nil, "/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.await("ready"); err == nil || !strings.Contains(err.Error(), `never said "ready": exit status 0`) {
		t.Error(err)
	}
}

// What goes wrong in a stage is a failed check, and the next one comes all the same.
func TestAStageFailsAlone(t *testing.T) {
	h := &hardware{report: &report{Facts: map[string]any{}, Date: time.Now()}}
	for _, s := range []stage{
		{"panics", time.Minute, func(*hardware, context.Context) error { panic("oh") }},
		{"is cut", time.Millisecond, func(_ *hardware, ctx context.Context) error { <-ctx.Done(); return nil }},
		{"works", time.Minute, func(h *hardware, _ context.Context) error { h.check("it", true, "does"); return nil }},
	} {
		_ = h.stage(t.Context(), s)
	}
	if passed, failed := h.count(); passed != 1 || failed != 2 || len(h.Stages) != 3 ||
		!strings.Contains(h.Stages[0].Error, "panic: oh") || !strings.Contains(h.Stages[1].Error, "cut after 1ms") || h.Stages[2].Error != "" {
		t.Errorf("%+v %+v", h.Checks, h.Stages)
	}
}
