// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// profile is what a container asks for and what runs in it.
type profile struct {
	annotations map[string]string
	programs    [][]string // each in a loop of its own
}

// programs of integration/workload. Kernels are long enough that a run's log
// holds all of them.
var programs = [][]string{
	{"burst", "--bursts", "30", "--launches", "5", "--gpu-us", "30000", "--cpu-us", "0", "--rest-us", "10000"},
	{"burst", "--bursts", "100", "--launches", "2", "--gpu-us", "8000", "--cpu-us", "1000", "--rest-us", "40000"},
	{"burst", "--bursts", "5", "--launches", "8", "--gpu-us", "120000", "--sync-every", "2", "--cpu-us", "0", "--rest-us", "100000"},
	{"hog", "--ms", "4000", "--kernel-us", "6000", "--depth", "4"},
	{"hog", "--ms", "8000", "--kernel-us", "12000", "--depth", "2"},
	{"burst", "--bursts", "40", "--launches", "2", "--gpu-us", "12000", "--cpu-us", "0", "--rest-us", "20000", "--memory", "25165824"},
	{"vecadd", "--n", "200000", "--rounds", "20"},
}

// What a context costs, and what some containers have for all: enough for all
// that can run in one, and those that were killed and are not gone yet.
const (
	contextMemory = "16Mi"
	limitText     = "256Mi"
	limit         = 256 << 20
)

// newProfile chooses for the container of a slot. Each third wants two GPUs, so
// that there always is one that does, and one that does not.
func newProfile(r *rand.Rand, slot int) profile {
	p := profile{annotations: map[string]string{}}
	ask := func(key, value string) { p.annotations[request.Prefix+key] = value }
	one := func(values ...string) string { return values[r.IntN(len(values))] }

	ask("weight", one("50", "100", "200", "400"))
	ask("priority", one("low", "normal", "normal", "normal", "high"))
	switch r.IntN(6) {
	case 0:
		ask("max-share", one("20%", "50%"))
	case 1:
		ask("min-share", "5%") // all of them together fit on one GPU
	}
	if r.IntN(3) == 0 {
		ask("quantum", one("2ms", "50ms"))
	}
	if r.IntN(3) == 0 {
		ask("memory", limitText)
	}
	if slot%3 == 2 {
		ask("gpus", "2")
	}
	for range 1 + r.IntN(3) {
		p.programs = append(p.programs, programs[r.IntN(len(programs))])
	}
	return p
}

// String is what the container asks for.
func (p profile) String() string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(p.annotations)) {
		all = append(all, strings.TrimPrefix(key, request.Prefix)+"="+p.annotations[key])
	}
	return strings.Join(all, " ")
}

// script runs the programs, each again when it has ended, and tells on stdout
// the container's mount namespace, and of each process its start and its end.
func (p profile) script() string {
	var b strings.Builder
	b.WriteString("readlink /proc/self/ns/mnt\n")
	b.WriteString(`run() { /vgpu/"$@" >/dev/null & p=$!; echo "start $1 $p"; wait $p; echo "exit $1 $p $?"; }` + "\n")
	b.WriteString(`keep() { while :; do run "$@"; done; }` + "\n")
	for _, words := range p.programs {
		fmt.Fprintf(&b, "keep %s &\n", strings.Join(words, " "))
	}
	b.WriteString("wait\n")
	return b.String()
}

// once runs one program to its end, and tells the same.
const once = `readlink /proc/self/ns/mnt
/vgpu/vecadd >/dev/null & p=$!; echo "start vecadd $p"; wait $p; s=$?; echo "exit vecadd $p $s"; exit $s
`
