// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"fmt"
	"math/bits"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// Each file in testdata is one rule, told as a history. A line is an event,
//
//	[TIME] EVENT [NAME] [KEY=VALUE ...]
//
// and what follows it is what the engine answered. TIME, once said, stays until
// the next. The command play (share_test.go) lets containers compete for a while
// and prints the part of the time that each had. Rewrite the answers with: go test ./vgpu/arbiter -rewrite
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt") // not what rapid keeps below it
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			var cfg Config
			var e *Engine
			var now time.Duration
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				switch d.Cmd {
				case "engine":
					cfg = Config{}
					for _, a := range d.CmdArgs {
						switch a.Key {
						case "quantum":
							cfg.Quantum = parseDuration(t, d, a.Vals[0])
						case "drain":
							cfg.DrainDeadline = parseDuration(t, d, a.Vals[0])
						case "min-turn":
							cfg.MinTurn = parseDuration(t, d, a.Vals[0])
						case "ageing":
							cfg.Ageing = parseDuration(t, d, a.Vals[0])
						case "window":
							cfg.Window = parseDuration(t, d, a.Vals[0])
						case "stall":
							cfg.Stall = parseDuration(t, d, a.Vals[0])
						case "switch-cost":
							cfg.SwitchCost = parseDuration(t, d, a.Vals[0])
						case "swap-share":
							fmt.Sscan(a.Vals[0], &cfg.SwapShare)
						case "longest-quantum":
							cfg.LongestQuantum = parseDuration(t, d, a.Vals[0])
						case "oversubscription":
							fmt.Sscan(a.Vals[0], &cfg.Oversubscription)
						case "overrun":
							var err error
							if cfg.Overrun, err = request.ParseOverrun(a.Vals[0]); err != nil {
								d.Fatalf(t, "%v", err)
							}
						case "policy":
							var err error
							if cfg.Policy.Preset, err = request.ParsePreset(a.Vals[0]); err != nil {
								d.Fatalf(t, "%v", err)
							}
						case "slots":
							fmt.Sscan(a.Vals[0], &cfg.Policy.Slots)
						case "linger":
							var err error
							if cfg.Linger, err = ParseLinger(a.Vals[0]); err != nil {
								d.Fatalf(t, "%v", err)
							}
						case "binding":
							var err error
							if cfg.Binding, err = ParseBinding(a.Vals[0]); err != nil {
								d.Fatalf(t, "%v", err)
							}
						default:
							d.Fatalf(t, "unknown argument %s", a.Key)
						}
					}
					e, now = New(cfg), 0
					return ""
				case "events":
					var out strings.Builder
					for line := range strings.Lines(d.Input) {
						fields := strings.Fields(line)
						if at, err := time.ParseDuration(fields[0]); err == nil {
							now, fields = at, fields[1:]
						}
						if fields[0] == "can-set-policy" {
							ev := parseEvent(t, d, append([]string{"set-policy"}, fields[1:]...))
							fmt.Fprintf(&out, "%v %s\n    %v\n", now, strings.Join(fields, " "), e.CanSetPolicy(ev.GPU, ev.Policy))
							continue
						}
						if fields[0] == "can-change" {
							err := e.CanChange(ID(fields[1]), parseEvent(t, d, append([]string{"changed"}, fields[1:]...)).Request)
							fmt.Fprintf(&out, "%v %s\n    %v\n", now, strings.Join(fields, " "), err)
							continue
						}
						ev := parseEvent(t, d, fields)
						fmt.Fprintf(&out, "%v %s\n", now, strings.Join(fields, " "))
						for _, a := range e.Step(now, ev) {
							fmt.Fprintf(&out, "    %s\n", a.describe())
						}
					}
					return out.String()
				case "play":
					return playLines(t, d, New(cfg))
				case "status":
					var out strings.Builder
					for _, id := range e.IDs() {
						s, _ := e.VGPU(id)
						fmt.Fprintf(&out, "%s %s gpus=%v held=%v waited=%v turns=%d drains=%d overruns=%d %s\n",
							id, s.State, s.GPUs, s.Usage.Held, s.Usage.Waited, s.Usage.Turns, s.Usage.Drains, s.Usage.Overruns, s.Reason)
						for _, g := range e.Guests(id) {
							fmt.Fprintf(&out, "    waits for the guest %s of %s\n", g.VGPU, g.GPU)
						}
					}
					for _, g := range e.GPUs() {
						fmt.Fprintf(&out, "%s holder=%q bound=%d pending=%d ledger=%d held=%v %s\n",
							g.UUID, g.Holder, g.Bound, g.Pending, g.Ledger, g.Usage.Held, g.Down)
						if g.Promised > 0 {
							fmt.Fprintf(&out, "    promised=%d guests=%d\n", g.Promised, g.Guests)
						}
					}
					return out.String()
				}
				d.Fatalf(t, "unknown command %s", d.Cmd)
				return ""
			})
		})
	}
}

func parseDuration(t *testing.T, d *datadriven.TestData, s string) time.Duration {
	v, err := time.ParseDuration(s)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}

var eventKinds = map[string]Kind{
	"added": Added, "removed": Removed, "changed": Changed, "bind": Bind, "unused": Unused,
	"pending": Pending, "complete": Complete, "drained": Drained, "deadline": Deadline, "runs": Runs, "swaps": Swaps,
	"gpu-up": GPUUp, "gpu-down": GPUDown, "adopted": Adopted,
	"cordon": Cordon, "gpu-memory": GPUMemory, "set-policy": SetPolicy, "promised": Promised,
}

func parseEvent(t *testing.T, d *datadriven.TestData, fields []string) Event {
	kind, ok := eventKinds[fields[0]]
	if !ok {
		d.Fatalf(t, "unknown event %q", fields[0])
	}
	ev := Event{Kind: kind, VGPU: ID(fields[1]), Request: request.Request{Count: 1}}
	switch kind {
	case GPUUp, GPUDown, Cordon, GPUMemory, SetPolicy:
		ev.GPU, ev.VGPU = UUID(fields[1]), ""
		ev.MemoryBytes = 100
		if fields[1] == "node" {
			ev.GPU = ""
		}
	case Promised:
		ev.Promise, ev.VGPU = fields[1], ""
	}
	for _, f := range fields[2:] {
		key, value, _ := strings.Cut(f, "=")
		switch key {
		case "count":
			fmt.Sscan(value, &ev.Request.Count)
		case "memory":
			fmt.Sscan(value, &ev.Request.MemoryBytes)
			ev.MemoryBytes = ev.Request.MemoryBytes
		case "quantum":
			ev.Request.Quantum = parseDuration(t, d, value)
		case "weight":
			fmt.Sscan(value, &ev.Request.Weight)
		case "min":
			fmt.Sscan(value, &ev.Request.MinShare)
		case "max":
			fmt.Sscan(value, &ev.Request.MaxShare)
		case "class":
			ev.Request.Priority = map[string]request.Priority{"low": request.Low, "normal": request.Normal, "high": request.High}[value]
		case "model":
			ev.Request.Model, ev.Model = value, value
		case "reason":
			ev.Reason = value
		case "swap":
			ev.Swap = parseDuration(t, d, value)
		case "last":
			ev.LastWork = parseDuration(t, d, value)
		case "idle":
			ev.Idle = parseDuration(t, d, value)
		case "lingered":
			ev.Lingered = parseDuration(t, d, value)
		case "gaps": // NUMBERxLENGTH
			n, length, _ := strings.Cut(value, "x")
			ev.Gaps = new(Gaps)
			fmt.Sscan(n, &ev.Gaps[bits.Len64(uint64(parseDuration(t, d, length)))-1])
		case "gang":
			ev.Gang = value
		case "reservation":
			ev.Reservation = strings.ReplaceAll(value, ",", " ")
		case "gpu":
			ev.GPU = UUID(value)
		case "claimable":
			fmt.Sscan(value, &ev.Claimable)
		case "policy":
			var err error
			if ev.Policy.Preset, err = request.ParsePreset(value); err != nil {
				d.Fatalf(t, "%v", err)
			}
			ev.Request.Policy = ev.Policy.Preset
		case "slots":
			fmt.Sscan(value, &ev.Policy.Slots)
		case "overrun":
			var err error
			if ev.Request.Overrun, err = request.ParseOverrun(value); err != nil {
				d.Fatalf(t, "%v", err)
			}
		case "uuid":
			ev.Request.UUIDs = value
		case "when-full":
			ev.Request.WhenFull = map[string]request.WhenFull{"wait": request.Wait, "fail": request.Fail}[value]
		case "early":
			ev.Request.Bind = request.BindEarly
		case "since":
			ev.Since = parseDuration(t, d, value)
		case "progress":
			ev.Progress = true
		case "advanced":
			ev.Advanced = true
		case "waiting":
			ev.Waiting = true
		case "holding":
			ev.Holding = true
		case "draining":
			ev.Draining = true
		case "gpus":
			for g := range strings.SplitSeq(value, ",") {
				ev.GPUs = append(ev.GPUs, UUID(g))
			}
		default:
			d.Fatalf(t, "unknown argument %q", key)
		}
	}
	return ev
}

func (a Action) describe() string {
	switch a.Kind {
	case Bound:
		return fmt.Sprintf("bound %s to %v", a.VGPU, a.GPUs)
	case BindWaits:
		return fmt.Sprintf("bind-waits %s: %s", a.VGPU, a.Reason)
	case Resume:
		return fmt.Sprintf("resume %s", a.VGPU)
	case Unbindable:
		return fmt.Sprintf("unbindable %s: %s", a.VGPU, a.Reason)
	case Grant:
		return fmt.Sprintf("grant %s", a.VGPU)
	case Take:
		if a.Linger > 0 {
			return fmt.Sprintf("take %s after %v", a.VGPU, a.Linger)
		}
		return fmt.Sprintf("take %s", a.VGPU)
	case Keep:
		return fmt.Sprintf("keep %s", a.VGPU)
	case Revoke:
		return fmt.Sprintf("revoke %s", a.VGPU)
	case Arm:
		if a.At == 0 {
			return fmt.Sprintf("disarm %s", a.VGPU)
		}
		return fmt.Sprintf("arm %s at %v", a.VGPU, a.At)
	case Overrun:
		return fmt.Sprintf("overrun %s: %s", a.VGPU, a.Overrun)
	case Account:
		s := fmt.Sprintf("account %s held=%v waited=%v", a.VGPU, a.Turn.Held, a.Turn.Waited)
		if a.Turn.Drained {
			s += " drained"
		}
		if a.Turn.Lingered > 0 {
			s += fmt.Sprintf(" lingered=%v", a.Turn.Lingered)
		}
		if a.Turn.Late {
			s += " late"
		}
		return s
	}
	return fmt.Sprintf("unknown action %d", a.Kind)
}
