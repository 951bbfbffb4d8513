// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Each threat names tests, and these are there; and no vulnerability that others had
// at the same place is left out.
func TestThreatsHaveTheirTests(t *testing.T) {
	text, err := os.ReadFile("threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`^\| (T\d+) \| ([^|]+) \| [^|]+ \| ([^|]+) \|$`)
	check := &checker{t, map[string]map[string][]string{}}
	_, table, _ := strings.Cut(string(text), "\n## Threats\n")
	rows, threats := 0, ""
	for line := range strings.Lines(table) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "| no.") || strings.HasPrefix(line, "|---") {
			continue
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("no row of this table: %s", line)
			continue
		}
		rows++
		if want := fmt.Sprint("T", rows); m[1] != want {
			t.Errorf("%s stands where %s should", m[1], want)
		}
		threats += m[2] + "\n"
		check.cell(m[1], m[3])
	}
	if rows == 0 {
		t.Error("there is no threat")
	}
	for _, id := range []string{
		"CVE-2020-15257", "CVE-2024-0132", "CVE-2025-23359", "CVE-2024-0133", "CVE-2024-0134", "CVE-2025-23266", "CVE-2025-23267",
		"CVE-2024-21626", "CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881", "CVE-2026-41579", "CVE-2024-45310", "CVE-2024-25621",
		"CVE-2021-41103", "CVE-2025-64329", "CVE-2022-23648", "CVE-2021-43816", "RUN-003", "RUN-005", "CRI-004", "CRI-005",
	} {
		if !strings.Contains(threats, id) {
			t.Errorf("no threat is %s", id)
		}
	}
}
