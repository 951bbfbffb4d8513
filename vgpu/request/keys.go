// SPDX-License-Identifier: Apache-2.0

package request

import (
	"cmp"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// key is one annotation: how it is read, written and carried over.
type key struct {
	allowed string // completes "must be ..."
	set     func(r *Request, value string) bool
	format  func(r *Request) string // "" where the field says nothing
	copy    func(to, from *Request)
	live    bool // Change can change it

	// over says whether r asks for more than most does, if nothing else by what it
	// leaves out; nil if the key can not have a limit.
	over   func(r, most *Request) bool
	ofTime bool // how much of a GPU's time it asks for
}

// keys is the whole vocabulary. It is never written after start-up.
var keys = map[string]key{
	"gpus": {
		allowed: fmt.Sprintf("a whole number from 0 to %d; 0 runs the container without a vGPU", MaxCount),
		set: func(r *Request, v string) bool {
			n, ok := integer(v, 0, MaxCount)
			r.Count = n
			return ok
		},
		format: func(r *Request) string { return strconv.Itoa(r.Count) },
		copy:   func(to, from *Request) { to.Count = from.Count },
		over:   func(r, most *Request) bool { return r.Count > most.Count },
	},
	"memory": {
		allowed: "a quantity of bytes above 0, such as 8Gi, 512Mi, 1G or 1073741824",
		set: func(r *Request, v string) (ok bool) {
			r.MemoryBytes, ok = quantity(v)
			return ok
		},
		format: func(r *Request) string {
			if r.MemoryBytes == 0 {
				return ""
			}
			return FormatBytes(r.MemoryBytes)
		},
		copy: func(to, from *Request) { to.MemoryBytes = from.MemoryBytes },
		live: true,
		over: func(r, most *Request) bool { return r.MemoryBytes == 0 || r.MemoryBytes > most.MemoryBytes },
	},
	"weight": {
		allowed: fmt.Sprintf("a whole number from 1 to 10000; without it, it is %d", DefaultWeight),
		set: func(r *Request, v string) (ok bool) {
			r.Weight, ok = integer(v, 1, 10000)
			return ok
		},
		format: func(r *Request) string {
			if r.Weight == 0 {
				return ""
			}
			return strconv.Itoa(r.Weight)
		},
		copy:   func(to, from *Request) { to.Weight = from.Weight },
		live:   true,
		over:   func(r, most *Request) bool { return cmp.Or(r.Weight, DefaultWeight) > most.Weight },
		ofTime: true,
	},
	"min-share": {
		allowed: "a part of a GPU's time, 0 to 1 or 0% to 100%",
		set: func(r *Request, v string) (ok bool) {
			r.MinShare, ok = share(v)
			return ok
		},
		format: func(r *Request) string { return formatShare(r.MinShare) },
		copy:   func(to, from *Request) { to.MinShare = from.MinShare },
		live:   true,
		over:   func(r, most *Request) bool { return r.MinShare > most.MinShare },
		ofTime: true,
	},
	"max-share": {
		allowed: "a part of a GPU's time, above 0, up to 1 or 100%",
		set: func(r *Request, v string) (ok bool) {
			r.MaxShare, ok = share(v)
			return ok && r.MaxShare > 0
		},
		format: func(r *Request) string { return formatShare(r.MaxShare) },
		copy:   func(to, from *Request) { to.MaxShare = from.MaxShare },
		live:   true,
		over:   func(r, most *Request) bool { return r.MaxShare == 0 || r.MaxShare > most.MaxShare },
		ofTime: true,
	},
	"priority": {
		allowed: "low, normal or high",
		set: func(r *Request, v string) bool {
			for _, p := range []Priority{Low, Normal, High} {
				if v == p.String() {
					r.Priority = p
					return true
				}
			}
			return false
		},
		format: func(r *Request) string {
			if r.Priority == Normal {
				return ""
			}
			return r.Priority.String()
		},
		copy:   func(to, from *Request) { to.Priority = from.Priority },
		live:   true,
		over:   func(r, most *Request) bool { return r.Priority > most.Priority },
		ofTime: true,
	},
	"quantum": {
		allowed: "a duration from 1ms to 10s, such as 20ms",
		set: func(r *Request, v string) bool {
			d, err := time.ParseDuration(v)
			r.Quantum = d
			return err == nil && MinQuantum <= d && d <= MaxQuantum
		},
		format: func(r *Request) string {
			if r.Quantum == 0 {
				return ""
			}
			return r.Quantum.String()
		},
		copy:   func(to, from *Request) { to.Quantum = from.Quantum },
		live:   true,
		over:   func(r, most *Request) bool { return r.Quantum > most.Quantum },
		ofTime: true,
	},
	"model": {
		allowed: "a part of a GPU model's name, 1 to 96 printable characters, such as A100",
		set: func(r *Request, v string) bool {
			r.Model = v
			return printable(v, 96)
		},
		format: func(r *Request) string { return r.Model },
		copy:   func(to, from *Request) { to.Model = from.Model },
	},
	"uuid": {
		allowed: fmt.Sprintf("the UUID of a GPU as nvidia-smi -L prints it (GPU- and 36 characters), or at most %d of them, separated by commas", MaxCount),
		set: func(r *Request, v string) bool {
			r.UUIDs = v
			all := strings.Split(v, ",")
			for _, u := range all {
				if !uuid(u) {
					return false
				}
			}
			return len(all) <= MaxCount
		},
		format: func(r *Request) string { return r.UUIDs },
		copy:   func(to, from *Request) { to.UUIDs = from.UUIDs },
	},
	"gang": {
		allowed: "a name of 1 to 63 letters, digits, '-', '_' or '.'",
		set: func(r *Request, v string) bool {
			r.Gang = v
			return name(v, 63)
		},
		format: func(r *Request) string { return r.Gang },
		copy:   func(to, from *Request) { to.Gang = from.Gang },
	},
	"bind": {
		allowed: "late or early",
		set: func(r *Request, v string) bool {
			for _, b := range []Bind{BindLate, BindEarly} {
				if v == b.String() {
					r.Bind = b
					return true
				}
			}
			return false
		},
		format: func(r *Request) string {
			if r.Bind == BindLate {
				return ""
			}
			return r.Bind.String()
		},
		copy: func(to, from *Request) { to.Bind = from.Bind },
	},
	"when-full": {
		allowed: "wait or fail: what a process does that needs a GPU when there is none for it",
		set: func(r *Request, v string) bool {
			for _, w := range []WhenFull{Wait, Fail} {
				if v == w.String() {
					r.WhenFull = w
					return true
				}
			}
			return false
		},
		format: func(r *Request) string {
			if r.WhenFull == Wait {
				return ""
			}
			return r.WhenFull.String()
		},
		copy: func(to, from *Request) { to.WhenFull = from.WhenFull },
		live: true,
	},
	"policy": {
		allowed: "one of " + strings.Join(presets[:], ", "),
		set: func(r *Request, v string) bool {
			p, err := ParsePreset(v)
			r.Policy = p
			return err == nil
		},
		format: func(r *Request) string {
			if r.Policy == Default {
				return ""
			}
			return r.Policy.String()
		},
		copy: func(to, from *Request) { to.Policy = from.Policy },
		live: true,
	},
	"overrun": {
		allowed: strings.Join(Overruns(), ", ") + ": what becomes of it when a turn does not drain in time; the node's if that is stricter",
		set: func(r *Request, v string) bool {
			o, err := ParseOverrun(v)
			r.Overrun = o
			return err == nil
		},
		format: func(r *Request) string { return r.Overrun.String() },
		copy:   func(to, from *Request) { to.Overrun = from.Overrun },
		live:   true,
	},
}

// The bounds of a quantum, whoever sets it.
const (
	MinQuantum = time.Millisecond
	MaxQuantum = 10 * time.Second
)

// String is the annotation's value.
func (p Priority) String() string {
	switch p {
	case Low:
		return "low"
	case Normal:
		return "normal"
	case High:
		return "high"
	}
	return fmt.Sprintf("Priority(%d)", int8(p))
}

// String is the annotation's value.
func (b Bind) String() string {
	switch b {
	case BindLate:
		return "late"
	case BindEarly:
		return "early"
	}
	return fmt.Sprintf("Bind(%d)", uint8(b))
}

// String is the annotation's value.
func (w WhenFull) String() string {
	switch w {
	case Wait:
		return "wait"
	case Fail:
		return "fail"
	}
	return fmt.Sprintf("WhenFull(%d)", uint8(w))
}

// NamesGPU says whether a list of UUIDs has this one; an empty list has all.
func NamesGPU(uuids, uuid string) bool {
	if uuids == "" {
		return true
	}
	for u := range strings.SplitSeq(uuids, ",") {
		if strings.EqualFold(u, uuid) {
			return true
		}
	}
	return false
}

// uuid says whether v is a GPU's UUID as NVML prints it.
func uuid(v string) bool {
	rest, ok := strings.CutPrefix(v, "GPU-")
	if !ok || len(rest) != 36 {
		return false
	}
	for i, c := range []byte(rest) {
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			ok = c == '-'
		default:
			ok = '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
		}
		if !ok {
			return false
		}
	}
	return true
}

// integer reads a plain decimal number: no sign, no spaces, no underscores.
func integer(v string, least, most int) (int, bool) {
	if !digits(v) {
		return 0, false
	}
	n, err := strconv.Atoi(v)
	return n, err == nil && least <= n && n <= most
}

var suffixes = []struct {
	name  string
	bytes uint64
}{
	// Two-letter names first: "Mi" must not be read as "M" with a stray "i".
	{"Ki", 1 << 10},
	{"Mi", 1 << 20},
	{"Gi", 1 << 30},
	{"Ti", 1 << 40},
	{"Pi", 1 << 50},
	{"Ei", 1 << 60},
	{"k", 1e3},
	{"K", 1e3},
	{"M", 1e6},
	{"G", 1e9},
	{"T", 1e12},
	{"P", 1e15},
	{"E", 1e18},
}

// quantity reads what Kubernetes calls a quantity, without its exponents and
// its parts of a unit: the result is a whole number of bytes, above 0.
func quantity(v string) (uint64, bool) {
	unit := uint64(1)
	for _, s := range suffixes {
		if rest, ok := strings.CutSuffix(v, s.name); ok {
			v, unit = rest, s.bytes
			break
		}
	}
	if !decimal(v) {
		return 0, false
	}
	whole, frac, _ := strings.Cut(v, ".")
	n, err := strconv.ParseUint(whole, 10, 64)
	if err != nil {
		return 0, false
	}
	overflow, n := bits.Mul64(n, unit)
	// What the digits behind the dot are in bytes, from the last digit on. It is
	// below one unit, so ten times that fits. If one digit's division by ten
	// leaves a rest, no later one makes it whole: a fraction of a byte is a
	// typing error, such as 1.5 for 1.5Gi.
	var part uint64
	for i := len(frac) - 1; i >= 0; i-- {
		part += uint64(frac[i]-'0') * unit
		if part%10 != 0 {
			return 0, false
		}
		part /= 10
	}
	n, carry := bits.Add64(n, part, 0)
	return n, n > 0 && overflow == 0 && carry == 0
}

// ParseBytes reads what FormatBytes writes, and what the memory annotation takes.
func ParseBytes(v string) (uint64, bool) { return quantity(v) }

// FormatBytes writes n as the shortest exact quantity: 8Gi, 512Mi, 1000.
func FormatBytes(n uint64) string {
	for i := 5; i >= 0; i-- {
		if s := suffixes[i]; n >= s.bytes && n%s.bytes == 0 {
			return strconv.FormatUint(n/s.bytes, 10) + s.name
		}
	}
	return strconv.FormatUint(n, 10)
}

func share(v string) (float64, bool) {
	v, percent := strings.CutSuffix(v, "%")
	if !decimal(v) {
		return 0, false
	}
	f, err := strconv.ParseFloat(v, 64)
	if percent {
		f /= 100
	}
	return f, err == nil && 0 <= f && f <= 1
}

func formatShare(f float64) string {
	if f == 0 {
		return ""
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// decimal: digits, with at most one dot between or behind digits, and few
// enough of them that no arithmetic on them costs anything.
func decimal(s string) bool {
	whole, frac, dot := strings.Cut(s, ".")
	return len(s) <= 40 && digits(whole) && (!dot || digits(frac))
}

func printable(s string, most int) bool {
	if s == "" || len(s) > most || strings.TrimSpace(s) != s {
		return false
	}
	return !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' })
}

func name(s string, most int) bool {
	if s == "" || len(s) > most {
		return false
	}
	return !strings.ContainsFunc(s, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.')
	})
}
