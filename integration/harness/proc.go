// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// process is one row of /proc.
type process struct {
	pid  int
	args []string
}

// processes lists all live ones that have a command line; zombies and kernel
// threads have none.
func processes() []process {
	entries, _ := os.ReadDir("/proc") // an error leaves the list empty; nothing works without /proc
	var all []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || len(b) == 0 {
			continue // it ended meanwhile, or has none
		}
		all = append(all, process{pid: pid, args: strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")})
	}
	return all
}

// naming lists the processes whose command line holds dir as a path or the
// beginning of one.
func naming(dir string) []process {
	var found []process
	for _, p := range processes() {
		if p.pid != os.Getpid() && strings.Contains(strings.Join(p.args, "\x00")+"/", dir+"/") {
			found = append(found, p)
		}
	}
	return found
}

// MountsUnder lists the mount points at or below dir, deepest first.
func MountsUnder(dir string) []string {
	b, _ := os.ReadFile("/proc/self/mountinfo") // as above
	var found []string
	for _, line := range strings.Split(string(b), "\n") {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasPrefix(fields[4]+"/", dir+"/") {
			found = append([]string{fields[4]}, found...)
		}
	}
	return found
}
