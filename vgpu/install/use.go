// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// use is who has a part of a version.
type use struct {
	containers []int // processes that have a library of it mounted, and shims
	others     []int // processes that run another program of it
}

func (u use) any() bool { return len(u.containers)+len(u.others) > 0 }

// ofVersion finds the version's name in a path, whatever stands before: a mount is
// told by its path in its own file system.
var ofVersion = regexp.MustCompile(`/vgpu/versions/([^/]+)/`)

// inUse tells for each version who has a part of it, by the processes in proc.
// Processes that end meanwhile have none.
func inUse(proc string) (map[string]use, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	found := map[string]use{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, e.Name())
		exe, _ := os.Readlink(filepath.Join(dir, "exe"))
		if m := ofVersion.FindStringSubmatch(exe); m != nil {
			u := found[m[1]]
			if strings.HasPrefix(filepath.Base(exe), shimProgram) { // or with " (deleted)"
				u.containers = append(u.containers, pid)
			} else {
				u.others = append(u.others, pid)
			}
			found[m[1]] = u
		}
		for version := range mounted(filepath.Join(dir, "mountinfo")) {
			u := found[version]
			u.containers = append(u.containers, pid)
			found[version] = u
		}
	}
	return found, nil
}

// mounted are the versions of which a part is mounted by itself, as the root of a
// mount (proc(5): the fourth field).
func mounted(mountinfo string) map[string]bool {
	found := map[string]bool{}
	b, err := os.ReadFile(mountinfo)
	if err != nil {
		return found
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 5 {
			continue
		}
		if m := ofVersion.FindStringSubmatch(fields[3]); m != nil {
			found[m[1]] = true
		}
	}
	return found
}
