// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// runcFaults are vulnerabilities of runc by which a container reaches its host, and
// the versions that are without, one of each line; a later line is without them from
// its first version on. From runc's change log (CHANGELOG.md of 1.3.7, 1.4.4 and
// 1.5.3) and the advisories that it names, GHSA-....
var runcFaults = []struct {
	cve   string
	fixed []string
}{
	{"CVE-2024-21626", []string{"1.1.12"}},                   // xr7r-f8xq-vfvv: a leaked descriptor of the host's
	{"CVE-2024-45310", []string{"1.1.14", "1.2.0"}},          // jfvp-7x6p-h2pv: empty files on the host
	{"CVE-2025-31133", []string{"1.2.8", "1.3.3", "1.4.0"}},  // 9493-h29p-rfm2: masked paths
	{"CVE-2025-52565", []string{"1.2.8", "1.3.3", "1.4.0"}},  // qw9x-cqr3-wc7r: /dev/console
	{"CVE-2025-52881", []string{"1.2.8", "1.3.3", "1.4.0"}},  // cgrx-mc8f-2prm: writes to /proc
	{"CVE-2026-41579", []string{"1.3.6", "1.4.3", "1.5.0"}},  // xjvp-4fhw-gc47: /dev is a link
	{"CVE-2026-119101", []string{"1.3.7", "1.4.4", "1.5.3"}}, // g2c3-j8g3-7gpw: restore of a checkpoint
}

// release is a version of runc: a candidate comes before what it is one for.
type release struct {
	numbers   [3]int
	candidate bool
	vendor    string // what a distribution put behind it
}

var releases = regexp.MustCompile(`^v?(\d+)\.(\d+)\.(\d+)(-rc\.?\d+)?(\S*)`)

func parseRelease(text string) (r release, ok bool) {
	m := releases.FindStringSubmatch(text)
	if m == nil {
		return r, false
	}
	for i := range r.numbers {
		n, err := strconv.Atoi(m[i+1])
		if err != nil {
			return r, false
		}
		r.numbers[i] = n
	}
	r.candidate, r.vendor = m[4] != "", m[5]
	return r, true
}

func (r release) before(o release) bool {
	if c := slices.Compare(r.numbers[:], o.numbers[:]); c != 0 {
		return c < 0
	}
	return r.candidate && !o.candidate
}

// has tells whether a release has a vulnerability.
func (r release) has(fixed []string) bool {
	for i, text := range fixed {
		f, _ := parseRelease(text)
		line := slices.Compare(r.numbers[:2], f.numbers[:2])
		if line == 0 || line > 0 && i == len(fixed)-1 {
			return r.before(f)
		}
	}
	return true // of a line that is older than all
}

func checkRunc(p *patient) []finding {
	if p.host.runc.err != nil {
		return []finding{fault("install runc, or name it with --runc", "%s", p.host.runc.err)}
	}
	// "runc version 1.1.5+ds1", then lines such as "commit: 1.1.5+ds1-1+deb12u1".
	lines := strings.Split(p.host.runc.version, "\n")
	words := strings.Fields(lines[0])
	if len(words) < 3 || words[0] != "runc" {
		return []finding{{Result: checkSkipped, Detail: fmt.Sprintf("it is %q, not runc: nothing is known of it", lines[0])}}
	}
	r, known := parseRelease(words[2])
	if !known {
		return []finding{{Result: checkSkipped, Detail: fmt.Sprintf("its version %q is none", words[2])}}
	}
	var has []string
	var last []string
	for _, f := range runcFaults {
		if r.has(f.fixed) {
			has, last = append(has, f.cve), f.fixed
		}
	}
	switch {
	case len(has) == 0:
		return []finding{ok("version %s, without the vulnerabilities that are known here", words[2])}
	case r.vendor != "":
		build := words[2]
		for _, l := range lines {
			if commit, is := strings.CutPrefix(l, "commit: "); is && strings.HasPrefix(commit, words[2]) {
				build = commit
			}
		}
		return []finding{{Result: checkSkipped, Detail: fmt.Sprintf("%s is a distribution's: whether that has mended %s, its security tracker says", build, strings.Join(has, ", "))}}
	}
	return []finding{fault(fmt.Sprintf("upgrade runc, to %s or later: an image can reach the host", strings.Join(last, ", ")), "version %s has %s", words[2], strings.Join(has, ", "))}
}
