// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// history is what the judge is told, in milliseconds, on GPU 0.
type history struct {
	judge *judge
	proc  uint32
}

func newHistory() *history {
	return &history{judge: newJudge(map[uint32]time.Duration{}, &[]span{})}
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// work is submitted, and ends; to 0: never.
func (h *history) work(box string, from, to int) {
	h.proc++
	op := &operation{Name: fmt.Sprintf("work%d", h.proc), Proc: h.proc, Submit: ms(from), End: ms(to)}
	h.judge.ops[0] = append(h.judge.ops[0], work{op, box})
}

func (h *history) turn(box string, granted, ended int) {
	h.judge.turns[box] = append(h.judge.turns[box], turn{ms(granted), ms(ended)})
}

func (h *history) overrun(box string, at int) {
	h.judge.declared[box] = append(h.judge.declared[box], overrun{span: span{ms(at), ms(at + 1)}})
}

func (h *history) asked(box string, at int) { h.judge.asked[box] = ms(at) }

func (h *history) outage(from, to int) {
	*h.judge.outages = append(*h.judge.outages, span{ms(from), ms(to)})
}

func TestJudge(t *testing.T) {
	cases := []struct {
		description string
		tell        func(*history)
		wrong       []string // what each violation contains
	}{
		{"two take turns", func(h *history) {
			h.turn("a", 0, 10)
			h.work("a", 1, 10)
			h.turn("b", 11, 20)
			h.work("b", 12, 20)
		}, nil},
		{"two overlap in turns that do not", func(h *history) {
			h.turn("a", 0, 10)
			h.work("a", 1, 15)
			h.turn("b", 11, 20)
			h.work("b", 12, 20)
		}, []string{"on GPU 0 work1 of a, "}},
		{"the process of what overlaps was dead by then", func(h *history) {
			h.turn("a", 0, 10)
			h.work("a", 1, 0)
			h.judge.deaths[1] = ms(11)
			h.turn("b", 11, 20)
			h.work("b", 12, 20)
		}, nil},
		{"the process of what overlaps died later", func(h *history) {
			h.turn("a", 0, 10)
			h.work("a", 1, 0)
			h.judge.deaths[1] = ms(13)
			h.turn("b", 11, 20)
			h.work("b", 12, 20)
		}, []string{"was in flight when"}},
		{"work after a turn", func(h *history) {
			h.turn("a", 0, 10)
			h.work("a", 1, 10)
			h.work("a", 14, 15)
			h.turn("b", 20, 30)
			h.work("b", 21, 30)
		}, []string{"on GPU 0 a submitted work2"}},
		{"work in another's turn", func(h *history) {
			h.turn("a", 0, 10)
			h.work("a", 1, 5)
			h.work("b", 6, 7)
			h.work("a", 8, 9)
		}, []string{"on GPU 0 b submitted work2"}},

		{"an overrun that was declared", func(h *history) {
			h.work("a", 1, 40)
			h.overrun("a", 20)
			h.turn("b", 22, 30)
			h.work("b", 23, 30)
		}, nil},
		{"another is let in before the overrun is declared", func(h *history) {
			h.work("a", 1, 40)
			h.overrun("a", 25)
			h.turn("b", 22, 30)
			h.work("b", 23, 30)
		}, []string{"was in flight when", "on GPU 0 a"}},
		{"a thread that was stopped in the gate submits late", func(h *history) {
			h.work("a", 1, 40)
			h.overrun("a", 20)
			h.turn("b", 22, 50)
			h.work("b", 23, 30)
			h.work("a", 35, 40)
			h.work("b", 36, 38)
		}, nil},
		{"more than what was in the gate comes late", func(h *history) {
			h.work("a", 1, 40)
			h.overrun("a", 20)
			h.proc = 0 // the same process
			h.work("a", 25, 26)
			h.proc = 0
			h.work("a", 27, 28)
		}, []string{"declared an overrun"}},
		{"a process that did not come back goes on", func(h *history) {
			h.work("a", 1, 40)
			h.overrun("a", 20)
			h.judge.declared["a"][0].astray = true
			h.proc = 0
			h.work("a", 25, 26)
			h.proc = 0
			h.work("a", 27, 28)
		}, nil},
		{"work after the turn that followed an overrun", func(h *history) {
			h.work("a", 1, 21)
			h.overrun("a", 20)
			h.turn("a", 22, 30)
			h.work("a", 23, 30)
			h.work("a", 40, 41)
			h.turn("b", 50, 60)
			h.work("b", 51, 52)
		}, []string{"on GPU 0 a submitted work3"}},

		{"killed in its turn", func(h *history) {
			h.work("a", 1, 5)
			h.asked("a", 10)
			h.turn("b", 11, 20)
			h.work("b", 12, 20)
		}, nil},
		{"killed after the GPU went to another", func(h *history) {
			h.work("a", 1, 5)
			h.turn("b", 7, 20)
			h.work("b", 8, 20)
			h.asked("a", 10)
		}, []string{"on GPU 0 a submitted work1"}},

		{"vgpud killed in a turn, which goes on", func(h *history) {
			h.work("a", 1, 5)
			h.outage(6, 20)
			h.work("a", 7, 9)
			h.work("a", 21, 23)
			h.turn("a", 22, 30)
			h.work("a", 24, 30)
			h.turn("b", 31, 40)
			h.work("b", 32, 40)
		}, nil},
		{"vgpud killed, and two hold", func(h *history) {
			h.work("a", 1, 5)
			h.outage(6, 20)
			h.work("b", 7, 9)
			h.work("a", 10, 12)
		}, []string{"on GPU 0 b submitted work2"}},
		{"vgpud killed long after", func(h *history) {
			h.work("a", 1, 5)
			h.turn("b", 6, 10)
			h.work("b", 7, 9)
			h.outage(30, 40)
		}, []string{"on GPU 0 a submitted work1"}},
		{"vgpud killed long before", func(h *history) {
			h.outage(1, 2)
			at := int((recovery + time.Second).Milliseconds())
			h.work("a", at, at+5)
			h.turn("b", at+6, at+10)
			h.work("b", at+7, at+9)
		}, []string{"on GPU 0 a submitted work1"}},
	}
	for _, c := range cases {
		t.Run(c.description, func(t *testing.T) {
			h := newHistory()
			c.tell(h)
			var got []string
			for _, v := range h.judge.run(0, true) {
				got = append(got, v.text)
			}
			if len(got) != len(c.wrong) {
				t.Fatalf("got %d violations, want %d: %s", len(got), len(c.wrong), strings.Join(got, "\n"))
			}
			for i, want := range c.wrong {
				if !strings.Contains(got[i], want) {
					t.Errorf("got %q, want what contains %q", got[i], want)
				}
			}
		})
	}
}

// What can not be said yet is kept, and said once it can.
func TestJudgeWaits(t *testing.T) {
	h := newHistory()
	h.work("a", 1, 5)
	if got := h.judge.run(ms(10), false); len(got) > 0 {
		t.Fatalf("a turn that may still last: %v", got)
	}
	h.turn("b", 11, 20)
	h.work("b", 12, 20)
	if got := h.judge.run(ms(12), false); len(got) > 0 {
		t.Fatalf("beyond the horizon: %v", got)
	}
	if got := h.judge.run(ms(30), false); len(got) != 1 {
		t.Fatalf("got %v, want work of a outside of a turn", got)
	}
	// In flight: exclusion must see it when the next comes.
	h = newHistory()
	h.turn("a", 0, 10)
	h.work("a", 1, 0)
	if got := h.judge.run(ms(11), false); len(got) > 0 {
		t.Fatal(got)
	}
	h.turn("b", 11, 20)
	h.work("b", 12, 20)
	if got := h.judge.run(ms(30), false); len(got) != 1 {
		t.Fatalf("got %v, want an overlap", got)
	}
	// The turn that followed an overrun, which was heard of when that had begun.
	h = newHistory()
	h.work("a", 1, 0)
	h.overrun("a", 20)
	for at := 21; at < 24; at++ {
		h.proc = 1 // the same process
		h.work("a", at, at+1)
	}
	if got := h.judge.run(ms(30), false); len(got) > 0 {
		t.Fatalf("a turn after an overrun that may still last: %v", got)
	}
	h.turn("a", 20, 40)
	h.turn("b", 41, 50)
	h.work("b", 42, 43)
	if got := h.judge.run(ms(60), false); len(got) > 0 {
		t.Fatalf("a turn after an overrun that was logged late: %v", got)
	}
	// Settled: forgotten.
	h = newHistory()
	h.turn("a", 0, 10)
	h.work("a", 1, 9)
	if got := h.judge.run(ms(30), false); len(got) > 0 || len(h.judge.ops[0]) > 0 {
		t.Fatalf("%v; %d kept", got, len(h.judge.ops[0]))
	}
}
