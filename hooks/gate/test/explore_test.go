// SPDX-License-Identifier: Apache-2.0

// Package gate_test explores the C gate: hooks/gate/explore compiles the real
// gate.c, slots.c and thread.c over memory models with store buffers. docs/grant-word.md
// says what is explored and what is not.
package gate_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// deep says whether make model runs this: with larger bounds, for minutes.
var deep = os.Getenv("VGPU_EXPLORE_DEEP") != ""

// How many preemptions a scenario is explored with, if not a number.
const (
	walked = -1 // none: it is too large, but for the deep form; see the walks below
	whole  = 0  // all executions
)

// In every scenario everything within the bound holds. Whatever sc allows tso
// allows too.
func TestExplorerFindsNothingInTheGate(t *testing.T) {
	for _, run := range []struct {
		scenario    string
		model       string
		preemptions int
		deep        int // likewise, in the deep form
	}{
		{"close", "tso", whole, whole},
		{"close", "weak", whole, whole},
		{"idle", "tso", whole, whole},
		{"idle", "weak", whole, whole},
		{"closers", "tso", 3, whole},
		{"closers", "weak", 2, 3},
		{"closers revoked", "tso", 2, 2},
		{"closers revoked", "weak", 2, 2},
		{"revoke", "tso", whole, whole},
		{"revoke", "weak", 3, whole},
		{"grant", "tso", whole, whole},
		{"grant", "weak", whole, whole},
		{"threads", "tso", 2, 3},
		{"threads", "weak", 1, 2},
		{"processes", "tso", whole, whole},
		{"processes", "weak", whole, whole},
		{"resume", "tso", 1, 1},
		{"resume", "weak", walked, 1},
		{"register", "tso", whole, whole},
		{"register", "weak", whole, whole},
		{"append", "tso", 3, 3},
		{"append", "weak", 2, 2},
		{"same slot", "tso", 3, 3},
		{"same slot", "weak", 2, 2},
		{"both append", "tso", 1, 1},
		{"both append", "weak", walked, 1},
		{"reuse", "tso", 2, 2},
		{"reuse", "weak", 2, 2},
		{"shared", "tso", 3, 3},
		{"shared", "weak", 2, 2},
	} {
		bound := run.preemptions
		if deep {
			bound = run.deep
		}
		if bound == walked {
			continue
		}
		t.Run(run.scenario+"/"+run.model, func(t *testing.T) {
			t.Parallel()
			if out, broken := built.run(t, "-p", fmt.Sprint(bound), run.model, run.scenario); broken {
				t.Error(out)
			}
		})
	}
}

// What is too large to be explored whole is walked at random.
func TestExplorerWalksFindNothingInTheGate(t *testing.T) {
	for _, scenario := range []string{"threads", "resume", "late closer", "both append", "reuse", "large"} {
		for _, model := range []string{"tso", "weak"} {
			t.Run(scenario+"/"+model, func(t *testing.T) {
				t.Parallel()
				if out, broken := built.run(t, "-w", "3000", "-s", "1", model, scenario); broken {
					t.Error(out)
				}
			})
		}
	}
}

// found says in which memory models a flaw is to be found. Where it is not, all
// of the scenario holds in spite of it: plain interleavings show no missing
// fence, and x86-64 forgives what arm64 does not.
type found struct{ sc, tso, weak bool }

var (
	everywhere = found{true, true, true}
	buffered   = found{false, true, true}
	weakOnly   = found{false, false, true}
)

func TestExplorerFindsWeakenedOrders(t *testing.T) {
	for _, flaw := range []struct {
		name, scenario string
		found          found
	}{
		// A plain store, on x86-64.
		{"slot_in release", "close", buffered},
		{"slot_in release", "append", buffered},
		{"slot_in relaxed", "close", buffered},
		{"slot_empty acquire", "close", weakOnly},
		{"slot_empty relaxed", "close", weakOnly},
		{"slot_out relaxed", "close", weakOnly},
		{"slot_take split", "same slot", everywhere},
		{"slot_free relaxed", "reuse", weakOnly},
		{"slots_used acquire", "register", weakOnly},
		{"slots_used relaxed", "register", weakOnly},
		{"slots_reach acq_rel", "register", weakOnly},
		// The store that follows saves it on x86-64, where one thread registers.
		{"slots_reach split", "register", weakOnly},
		{"slots_reach split", "both append", everywhere},
		{"chunk_append split", "both append", everywhere},
		{"count_in split", "shared", buffered},
		{"count_in release", "shared", weakOnly},
		{"count_in relaxed", "shared", weakOnly},
		{"word_load acquire", "close", weakOnly},
		{"word_load relaxed", "close", weakOnly},
		{"word_cas split", "close", everywhere},
		{"word_cas acq_rel", "close", weakOnly},
		{"word_cas acq_rel", "idle", weakOnly},
		{"word_cas relaxed", "close", weakOnly},
		{"count_empty acquire", "shared", weakOnly},
		{"count_empty relaxed", "shared", weakOnly},
		{"count_out split", "shared", weakOnly},
		{"count_out relaxed", "shared", weakOnly},
		{"wanted acquire", "idle", weakOnly},
		{"wanted relaxed", "idle", weakOnly},
		{"waiting_raise split", "grant", everywhere},
		{"record late", "close", everywhere},
	} {
		built.expect(t, flaw.name, flaw.scenario, flaw.found)
	}
}

func TestExplorerFindsFlawsOfTheArbiter(t *testing.T) {
	for _, flaw := range []struct{ name, scenario string }{
		{"arbiter reads before wanted", "idle"},
		{"arbiter does not wake", "grant"},
		{"arbiter does not nudge", "close"},
		{"arbiter believes the bell", "revoke"},
		{"arbiter resumes in the same epoch", "resume"},
	} {
		built.expect(t, flaw.name, flaw.scenario, everywhere)
	}
}

// What is no matter of an order is planted in a copy of the source.
func TestExplorerFindsFlawsOfTheSource(t *testing.T) {
	for _, flaw := range []struct {
		name, scenario string
		found          found
		file           string
		edits          []string // old, new, ...
	}{
		{"wanted is loaded before IDLE is stored", "idle", everywhere, "gate.c", []string{
			"idle = close_word(page, w);", "uint32_t wanted = flag_load(&page->wanted);\n\tidle = close_word(page, w);",
			"if (idle && flag_load(&page->wanted))", "if (idle && wanted)",
		}},
		// The swap that gives closing back saves it on x86-64.
		{"IDLE is stored, not swapped in", "idle", weakOnly, "gate.c", []string{
			"word_cas(&page->word, closing, VGPU_WORD(VGPU_IDLE, VGPU_EPOCH(open)))",
			"(__atomic_store_n(&page->word, VGPU_WORD(VGPU_IDLE, VGPU_EPOCH(open)), __ATOMIC_RELEASE), true)",
		}},
		{"the bell is rung before waiting is raised", "grant", everywhere, "gate.c", []string{
			"if (waiting_raise(&page->waiting) == 0)\n\t\tvgpu_sock_ring(VGPU_PENDING);",
			"vgpu_sock_ring(VGPU_PENDING);\n\twaiting_raise(&page->waiting);",
		}},
		{"a thread sleeps on a word that it reads anew", "grant", everywhere, "gate.c", []string{
			"sleep_on(&page->word, w);", "sleep_on(&page->word, word_load(&page->word));",
		}},
		{"the word is loaded before the thread counts in", "close", everywhere, "slots.h", []string{
			"slot_in(&s->inside);\n\t\tif (__builtin_expect(VGPU_STATE(word_load(s->word)) == VGPU_OPEN, 1))\n\t\t\treturn;",
			"uint64_t w = word_load(s->word);\n\t\tslot_in(&s->inside);\n\t\tif (VGPU_STATE(w) == VGPU_OPEN)\n\t\t\treturn;",
		}},
		{"a slot is used before it is among those that are looked at", "register", everywhere, "slots.c", []string{
			"slots_reach(&vgpu_gate.slots_used, n);\n", "",
		}},
		{"the first chunk alone is looked at", "append", everywhere, "slots.c", []string{
			"if (!slot_empty(&c->slot[i].inside))", "if (c == &vgpu_gate.slots && !slot_empty(&c->slot[i].inside))",
		}},
		{"a thread that waits stays in its slot", "grant", everywhere, "gate.c", []string{
			"count_self_back();\n\t\tif (!may_wait())", "if (!page)\n\t\t\tcount_self_back();\n\t\tif (!may_wait())",
		}},
		{"a thread without a slot is not looked at", "shared", everywhere, "slots.c", []string{
			"if (!count_empty(&vgpu_gate.shared))\n\t\treturn false;\n", "",
		}},
		{"what is in flight is read before the count, to become idle", "close", everywhere, "gate.c", []string{
			"if (vgpu_slots_empty() &&\n\t    flag_load(&page->waiting) == 0 &&\n\t    !vgpu_gate.ops.in_flight(vgpu_gate.ops.arg) &&",
			"if (!vgpu_gate.ops.in_flight(vgpu_gate.ops.arg) &&\n\t    vgpu_slots_empty() &&\n\t    flag_load(&page->waiting) == 0 &&",
		}},
		{"what is in flight is read before the count, to drain", "revoke", everywhere, "thread.c", []string{
			"if (!vgpu_slots_empty())\n\t\treturn false;\n\tif (vgpu_gate.ops.poll(vgpu_gate.ops.arg))\n\t\treturn true;",
			"if (vgpu_gate.ops.poll(vgpu_gate.ops.arg))\n\t\treturn true;\n\tif (!vgpu_slots_empty())\n\t\treturn false;",
		}},
		{"the bell for DRAINED is rung before the word is CLOSED", "revoke", everywhere, "thread.c", []string{
			"if (word_cas(&page->word, w, VGPU_WORD(VGPU_CLOSED, VGPU_EPOCH(w))))\n\t\tvgpu_sock_ring(VGPU_DRAINED);",
			"vgpu_sock_ring(VGPU_DRAINED);\n\tword_cas(&page->word, w, VGPU_WORD(VGPU_CLOSED, VGPU_EPOCH(w)));",
		}},
		{"a published number is taken back", "closers", everywhere, "gate.c", []string{
			"stat_at_least(&vgpu_gate.page->submitted", "stat_store(&vgpu_gate.page->submitted",
		}},
		// Only weak looks at ordinary variables.
		{"an application's thread writes what is the library's", "closers revoked", weakOnly, "gate.c", []string{
			"idle = close_word(page, w);", "idle = close_word(page, w);\n\tvgpu_gate.drain_word = w;",
		}},
	} {
		t.Run(flaw.name, func(t *testing.T) {
			t.Parallel()
			built.planted(t, flaw.file, flaw.edits).expect(t, "", flaw.scenario, flaw.found)
		})
	}
}

// The choices that are printed with a violation lead to it again.
func TestExplorerReplaysWhatItFound(t *testing.T) {
	for _, how := range [][]string{nil, {"-w", "100000", "-s", "7"}} {
		out, _ := built.run(t, append(how, "weak", "close", "slot_in relaxed")...)
		violation, rest, _ := strings.Cut(out, "\nreplay: ")
		choices, _, _ := strings.Cut(rest, "\n")
		again, broken := built.run(t, "-r", choices, "weak", "close", "slot_in relaxed")
		if !broken || !strings.HasPrefix(violation, "violation: ") || !strings.Contains(again, violation) {
			t.Errorf("explored:\n%s\nreplayed:\n%s", out, again)
		}
	}
}

// built is the explorer of the gate as it is.
var built explorer

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "vgpu-explore")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		if built, err = build(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

type explorer struct{ dir string }

func build(dir string, vars ...string) (explorer, error) {
	args := append([]string{"-s", "-C", "../explore", "OUT=" + dir}, vars...)
	if out, err := exec.Command("make", args...).CombinedOutput(); err != nil {
		return explorer{}, fmt.Errorf("failed to build the explorer: %w\n%s", err, out)
	}
	return explorer{dir}, nil
}

// planted is the explorer over a copy of the gate in which edits replace old by
// new text, each at its one place.
func (x explorer) planted(t *testing.T, file string, edits []string) explorer {
	t.Helper()
	gate := t.TempDir()
	sources, err := filepath.Glob("../*.[ch]")
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range sources {
		name := filepath.Base(source)
		b, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		for i := 0; name == file && i < len(edits); i += 2 {
			if n := strings.Count(text, edits[i]); n != 1 {
				t.Fatalf("%s has %d times what the flaw replaces; follow the change of the source here:\n%s", name, n, edits[i])
			}
			text = strings.Replace(text, edits[i], edits[i+1], 1)
		}
		if err := os.WriteFile(filepath.Join(gate, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	planted, err := build(t.TempDir(), "GATE="+gate, "PARTS="+x.dir)
	if err != nil {
		t.Fatal(err)
	}
	return planted
}

// run returns what the explorer printed and whether a rule was broken.
func (x explorer) run(t *testing.T, args ...string) (string, bool) {
	t.Helper()
	b, err := exec.Command(filepath.Join(x.dir, "explore"), args...).CombinedOutput()
	out := strings.TrimSpace(string(b))
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("explore %q: %v\n%s", args, err, out)
	}
	t.Log(out[strings.LastIndexByte(out, '\n')+1:])
	return out, err != nil
}

// expect explores a scenario with a flaw in each memory model.
func (x explorer) expect(t *testing.T, flaw, scenario string, f found) {
	t.Helper()
	for model, want := range map[string]bool{"sc": f.sc, "tso": f.tso, "weak": f.weak} {
		t.Run(strings.ReplaceAll(flaw+" "+scenario+" "+model, " ", "_"), func(t *testing.T) {
			t.Parallel()
			bound := "3"
			if !want && !deep {
				bound = "2" // nothing is found, so all within it is explored
			}
			args := []string{"-p", bound, model, scenario}
			if flaw != "" {
				args = append(args, flaw)
			}
			if out, broken := x.run(t, args...); broken != want {
				t.Errorf("broken is %v, want %v:\n%s", broken, want, out)
			}
		})
	}
}
