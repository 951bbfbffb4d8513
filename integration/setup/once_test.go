// SPDX-License-Identifier: Apache-2.0

package setup_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What passed is run again when a file or a tool is another, and what failed always.
func TestOnce(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script, err := os.ReadFile("once.sh")
	if err != nil {
		t.Fatal(err)
	}
	write("integration/setup/once.sh", string(script))
	write("search/one", "1")
	write("bin/spin", "#!/bin/sh\necho 1\n")
	write("other", "1")
	if out, err := exec.Command("git", "init", "--quiet", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	once := func(command string) (said string, err error) {
		cmd := exec.Command(filepath.Join(root, "integration/setup/once.sh"), "stamp/search", "search", "--", "sh", "-c", command)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, step := range []struct {
		description string
		change      func()
		runs        bool
	}{
		{"at first", func() {}, true},
		{"once more", func() {}, false},
		{"a file that it does not hang on", func() { write("other", "2") }, false},
		{"another file", func() { write("search/one", "2") }, true},
		{"one file more", func() { write("search/two", "1") }, true},
		{"one file less", func() { os.Remove(filepath.Join(root, "search/two")) }, true},
		{"another tool", func() { write("bin/spin", "#!/bin/sh\necho 2\n") }, true},
		{"once more after all", func() {}, false},
	} {
		step.change()
		said, err := once("echo it runs")
		if ran := strings.HasSuffix("\n"+said, "\nit runs\n"); err != nil || ran != step.runs {
			t.Errorf("%s: %v, it says %q", step.description, err, said)
		}
	}
	for range 2 {
		if said, err := once("echo it fails; exit 1"); err == nil || said != "it fails\n" {
			t.Errorf("of what fails: %v, it says %q", err, said)
		}
	}
	if said, err := once("echo it runs"); err != nil || said != "it runs\n" {
		t.Errorf("after another command failed: %v, it says %q", err, said)
	}
}
