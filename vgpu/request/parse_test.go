// SPDX-License-Identifier: Apache-2.0

package request

import (
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	gpu1 = "GPU-8c1a45e2-0d3b-4f6a-9e77-0123456789ab"
	gpu2 = "GPU-8C1A45E2-0d3b-4f6a-9e77-0123456789ac"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		description string
		annotations map[string]string // keys without the prefix
		container   string
		count       int
		want        Request
	}{
		{"no annotation gives the handler's count", nil, "", 1, Request{Count: 1}},
		{"no annotation under a handler that defaults to none", nil, "", 0, Request{}},
		{"zero GPUs pass the container through", map[string]string{"gpus": "0"}, "", 1, Request{}},
		{"every key", map[string]string{
			"gpus": "2", "memory": "8Gi", "weight": "200", "min-share": "0.25", "max-share": "75%",
			"priority": "high", "quantum": "20ms", "model": "A100", "gang": "job-1", "bind": "early",
			"uuid": gpu1 + "," + gpu2, "when-full": "fail", "policy": "online-offline", "overrun": "kill",
		}, "", 1, Request{
			Count: 2, MemoryBytes: 8 << 30, Weight: 200, MinShare: 0.25, MaxShare: 0.75,
			Priority: High, Quantum: 20 * time.Millisecond, Model: "A100", Gang: "job-1", Bind: BindEarly,
			UUIDs: gpu1 + "," + gpu2, WhenFull: Fail, Policy: OnlineOffline, Overrun: Kill,
		}},
		{"binary memory", map[string]string{"memory": "512Mi"}, "", 1, Request{Count: 1, MemoryBytes: 512 << 20}},
		{"decimal memory", map[string]string{"memory": "1G"}, "", 1, Request{Count: 1, MemoryBytes: 1e9}},
		{"plain bytes", map[string]string{"memory": "4096"}, "", 1, Request{Count: 1, MemoryBytes: 4096}},
		{"a fraction of a unit", map[string]string{"memory": "1.5Gi"}, "", 1, Request{Count: 1, MemoryBytes: 3 << 29}},
		{
			"the container's own key wins over the plain one",
			map[string]string{"memory": "1Gi", "weight": "7", "train.memory": "8Gi"},
			"train", 1,
			Request{Count: 1, MemoryBytes: 8 << 30, Weight: 7},
		},
		{
			"a container beside one that is named gets none by default",
			map[string]string{"train.memory": "8Gi"},
			"web", 1,
			Request{},
		},
		{
			"a plain count is for all containers, named or not",
			map[string]string{"gpus": "1", "train.memory": "8Gi"},
			"web", 0,
			Request{Count: 1},
		},
		{
			"taking the GPU from one container leaves the others theirs",
			map[string]string{"log.gpus": "0"},
			"web", 1,
			Request{Count: 1},
		},
		{
			"a container's own zero takes the pod's GPU away",
			map[string]string{"gpus": "1", "log.gpus": "0"},
			"log", 0,
			Request{},
		},
		{"a container name may hold dots", map[string]string{"a.b.weight": "3"}, "a.b", 1, Request{Count: 1, Weight: 3}},
		{"a share of zero is no guarantee", map[string]string{"min-share": "0"}, "", 1, Request{Count: 1}},
		{"the normal class by name", map[string]string{"priority": "normal"}, "", 1, Request{Count: 1}},
	} {
		t.Run(tc.description, func(t *testing.T) {
			in := map[string]string{"other.dev/memory": "lots"}
			for k, v := range tc.annotations {
				in[Prefix+k] = v
			}
			got, err := Parse(in, tc.container, tc.count)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Fatalf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tc := range []struct {
		description, key, value, says string
	}{
		{"an unknown key", "memroy", "8Gi", "known are bind, gang, gpus, max-share, memory"},
		{"what becomes of an overrun in another word", "overrun", "wait", "corun, freeze, kill"},
		{"what becomes of an overrun, empty", "overrun", "", "corun, freeze, kill"},
		{"a claim, which is none of an annotation's", "claim", "pod/other", "unknown key"},
		{"an unknown key of one container", "train.memroy", "8Gi", "unknown key"},
		{"a bad value of another container", "train.weight", "-1", "1 to 10000"},
		{"a dot without a container", ".gpus", "1", "no container name"},
		{"the bare prefix", "", "1", "unknown key"},
		{"negative GPUs", "gpus", "-1", "0 to 16"},
		{"too many GPUs", "gpus", "17", "0 to 16"},
		{"a signed number", "gpus", "+1", "0 to 16"},
		{"a number with spaces", "gpus", " 1", "0 to 16"},
		{"an empty number", "gpus", "", "0 to 16"},
		{"a number that overflows", "gpus", "99999999999999999999999", "0 to 16"},
		{"memory that does not parse", "memory", "lots", "8Gi, 512Mi"},
		{"negative memory", "memory", "-8Gi", "8Gi, 512Mi"},
		{"no memory", "memory", "0", "above 0"},
		{"a fraction of a byte", "memory", "1.5", "8Gi"},
		{"an unknown unit", "memory", "8GB", "8Gi"},
		{"a unit without a number", "memory", "Gi", "8Gi"},
		{"memory beyond 64 bits", "memory", "17Ei", "8Gi"},
		{"an exponent", "memory", "1e9", "8Gi"},
		{"negative weight", "weight", "-5", "1 to 10000"},
		{"no weight", "weight", "0", "1 to 10000"},
		{"too much weight", "weight", "10001", "1 to 10000"},
		{"a share above the whole", "min-share", "1.1", "0 to 1"},
		{"a percentage above the whole", "max-share", "101%", "up to 1"},
		{"a cap of nothing", "max-share", "0", "above 0"},
		{"a share that is no number", "max-share", "NaN", "above 0"},
		{"another class", "priority", "urgent", "low, normal or high"},
		{"a class in capitals", "priority", "High", "low, normal or high"},
		{"a quantum without a unit", "quantum", "20", "1ms to 10s"},
		{"a quantum too short", "quantum", "999us", "1ms to 10s"},
		{"a quantum too long", "quantum", "11s", "1ms to 10s"},
		{"a negative quantum", "quantum", "-20ms", "1ms to 10s"},
		{"no UUID", "uuid", "", "GPU-"},
		{"an index", "uuid", "0", "GPU-"},
		{"a UUID that is cut off", "uuid", gpu1[:39], "GPU-"},
		{"a UUID with a wrong digit", "uuid", gpu1[:39] + "g", "GPU-"},
		{"a MIG instance", "uuid", "MIG-" + gpu1[4:], "GPU-"},
		{"a space between UUIDs", "uuid", gpu1 + ", " + gpu2, "GPU-"},
		{"too many UUIDs", "uuid", strings.Repeat(gpu1+",", 16) + gpu1, "at most 16"},
		{"when-full in another word", "when-full", "block", "wait or fail"},
		{"an unknown policy", "policy", "best", "native"},
		{"an empty model", "model", "", "printable"},
		{"a model with a line break", "model", "A100\n", "printable"},
		{"a gang with a slash", "gang", "a/b", "letters"},
		{"another time of binding", "bind", "never", "late or early"},
	} {
		t.Run(tc.description, func(t *testing.T) {
			_, err := Parse(map[string]string{Prefix + tc.key: tc.value}, "", 1)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("Parse returned %v, not an *Error", err)
			}
			if len(e.Faults) != 1 || e.Faults[0].Key != Prefix+tc.key || e.Faults[0].Value != tc.value {
				t.Fatalf("faults: %v", e.Faults)
			}
			for _, part := range []string{Prefix + tc.key, quote(tc.value), tc.says} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

func TestParseNamesAllFaultsSorted(t *testing.T) {
	_, err := Parse(map[string]string{
		Prefix + "weight": "-1", Prefix + "memory": "x", Prefix + "a.nonsense": "1", Prefix + "gpus": "1",
	}, "", 1)
	var e *Error
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	var got []string
	for _, f := range e.Faults {
		got = append(got, strings.TrimPrefix(f.Key, Prefix))
	}
	if diff := cmp.Diff([]string{"a.nonsense", "memory", "weight"}, got); diff != "" {
		t.Fatal(diff)
	}
}

func TestParseRefusesAGuaranteeAboveTheCap(t *testing.T) {
	_, err := Parse(map[string]string{Prefix + "min-share": "50%", Prefix + "c.max-share": "25%"}, "c", 1)
	if err == nil || !strings.Contains(err.Error(), Prefix+`min-share="50%": must not be above max-share (0.25)`) {
		t.Fatal(err)
	}
}

func TestErrorsStayShort(t *testing.T) {
	_, err := Parse(map[string]string{Prefix + "memory": strings.Repeat("9", 100000)}, "", 1)
	if err == nil || len(err.Error()) > 400 {
		t.Fatalf("%d characters", len(err.Error()))
	}
}

// quantity does by hand what big numbers would do, because the shim is to stay
// small; here they are the judge.
func TestQuantityIsExact(t *testing.T) {
	numbers := []string{
		"0", "1", "7", "007", "15", "16", "17", "1.5", "0.5", "0.50", "1.0", "0.0", "2.75", "0.1", "0.125", "0.001",
		"0.0009765625", "0.00048828125", "8.333", "15.9999999", "15.9999999999999999",
		"15.99999999999999999913263826201159645529", "123456789.000000000931322574615478515625",
		"18446744073709551615", "18446744073709551616", "18446744073709551615.5", "18446744073.709551615", "18446744073.709551616",
		"18014398509481983.9990234375", "18014398509481984", "0.00000000000000000000000000000000000001",
	}
	units := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "k", "K", "M", "G", "T", "P", "E"}
	for _, n := range numbers {
		for _, u := range units {
			judge(t, n, u)
		}
	}
}

func FuzzQuantity(f *testing.F) {
	f.Add("1.5", uint8(3))
	f.Add("18446744073709551615", uint8(0))
	f.Fuzz(func(t *testing.T, number string, unit uint8) {
		if !decimal(number) {
			return
		}
		name := ""
		if i := int(unit) % (len(suffixes) + 1); i < len(suffixes) {
			name = suffixes[i].name
		}
		judge(t, number, name)
	})
}

func judge(t *testing.T, number, unit string) {
	t.Helper()
	want, ok := new(big.Rat).SetString(number)
	if !ok {
		t.Fatalf("%q is no number", number)
	}
	for _, s := range suffixes {
		if s.name == unit {
			want.Mul(want, new(big.Rat).SetInt(new(big.Int).SetUint64(s.bytes)))
		}
	}
	right := want.IsInt() && want.Num().IsUint64() && want.Sign() > 0
	got, ok := quantity(number + unit)
	if ok != right || ok && got != want.Num().Uint64() {
		t.Errorf("%s%s is %s bytes; quantity says %d, %v", number, unit, want.RatString(), got, ok)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("memory", "1.5Gi", "c")
	f.Add("c.max-share", "25%", "c")
	f.Add("quantum", "20ms", "")
	f.Add("gpus", "-1", "")
	f.Fuzz(func(t *testing.T, key, value, container string) {
		r, err := Parse(map[string]string{Prefix + key: value}, container, 1)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || len(e.Faults) == 0 || r != (Request{}) {
				t.Fatalf("%+v %v", r, err)
			}
			return
		}
		if r.Count < 0 || r.Count > MaxCount || r.MinShare < 0 || r.MinShare > 1 || r.MaxShare < 0 || r.MaxShare > 1 ||
			r.Weight < 0 || r.Quantum < 0 {
			t.Fatalf("out of bounds: %+v", r)
		}
		// What was accepted survives the way back.
		again, err := Parse(r.Annotations(), "", 0)
		if err != nil || again != r {
			t.Fatalf("%+v became %+v (%v)", r, again, err)
		}
	})
}

func TestChange(t *testing.T) {
	had := map[string]string{Prefix + "gpus": "2", Prefix + "memory": "1Gi", Prefix + "weight": "7", Prefix + "max-share": "0.5"}
	got, err := Change(had, map[string]string{Prefix + "weight": "", Prefix + "min-share": "10%", Prefix + "quantum": ""})
	if want := (Request{Count: 2, MemoryBytes: 1 << 30, MinShare: 0.1, MaxShare: 0.5}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if len(had) != 4 || had[Prefix+"weight"] != "7" {
		t.Errorf("what it had became %v", had)
	}
	for _, name := range Keys() {
		want := name == "weight" || name == "min-share" || name == "max-share" || name == "priority" || name == "quantum" ||
			name == "memory" || name == "policy" || name == "when-full" || name == "overrun"
		if _, err := Change(had, map[string]string{Prefix + name: ""}); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = Change(had, map[string]string{"weight": "1", Prefix + "nonsense": "1", Prefix + "a.weight": "1", Prefix + "min-share": "0.6"})
	var wrong *Error
	if !errors.As(err, &wrong) || len(wrong.Faults) != 4 {
		t.Errorf("%v", err)
	}
}
