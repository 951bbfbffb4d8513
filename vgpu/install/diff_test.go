// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// applied is a text after git has applied a diff to it.
func applied(t interface{ TempDir() string }, before, diff string) (string, error) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
		return "", err
	}
	lines := strings.SplitN(diff, "\n", 3)
	cmd := exec.Command("git", "apply", "--unidiff-zero", "-")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	cmd.Stdin = strings.NewReader("--- a/f\n+++ b/f\n" + lines[2])
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s\n%s", err, out, diff)
	}
	b, err := os.ReadFile(file)
	return string(b), err
}

func TestRandomDiffsCanBeApplied(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		line := rapid.SampledFrom([]string{"a\n", "b\n", "\n", "c\n"})
		text := rapid.Custom(func(r *rapid.T) string {
			return strings.Join(rapid.SliceOfN(line, 1, 12).Draw(r, "lines"), "") + rapid.SampledFrom([]string{"", "end"}).Draw(r, "end")
		})
		before, after := text.Draw(r, "before"), text.Draw(r, "after")
		diff := Change{Path: "f", before: &state{mode: 0o600, data: []byte(before)}, after: &state{mode: 0o600, data: []byte(after)}}.Diff()
		if before == after {
			if diff != "" {
				r.Fatal(diff)
			}
			return
		}
		got, err := applied(t, before, diff)
		if err != nil || got != after {
			r.Fatalf("%v: %q, want %q", err, got, after)
		}
	})
}
