// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// stacksOf says what all threads of a process group do: where each sleeps in the
// kernel, and in which system call.
func stacksOf(group int) string {
	var b strings.Builder
	dirs, _ := filepath.Glob("/proc/[0-9]*") // an error leaves it empty
	for _, dir := range dirs {
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil || groupOf(string(stat)) != group {
			continue
		}
		tasks, _ := filepath.Glob(filepath.Join(dir, "task", "*"))
		for _, task := range tasks {
			fmt.Fprintf(&b, "%s", strings.TrimPrefix(task, "/proc/"))
			for _, file := range []string{"comm", "wchan", "syscall", "stack"} {
				if text, err := os.ReadFile(filepath.Join(task, file)); err == nil {
					fmt.Fprintf(&b, " %s=%s", file, strings.Join(strings.Fields(string(text)), " "))
				}
			}
			if text, err := os.ReadFile(filepath.Join(task, "stat")); err == nil {
				_, after, _ := strings.Cut(string(text), ") ")
				fmt.Fprintf(&b, " state=%.1s", after)
			}
			b.WriteByte('\n')
			if b.Len() > 16<<10 {
				return b.String()
			}
		}
	}
	return b.String()
}

// groupOf is field 5 of /proc/PID/stat; the second one may have any character.
func groupOf(stat string) int {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 3 {
		return -1
	}
	group, err := strconv.Atoi(fields[2])
	if err != nil {
		return -1
	}
	return group
}
