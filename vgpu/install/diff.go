// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Diff is the change as a unified diff, with one hunk; empty for what is no text,
// and for what nobody but us edits.
func (c Change) Diff() string {
	if c.own {
		return ""
	}
	before, ok := lines(c.before)
	after, ok2 := lines(c.after)
	if !ok || !ok2 {
		return ""
	}
	const context = 3
	head := 0
	for head < len(before) && head < len(after) && before[head] == after[head] {
		head++
	}
	tail := 0
	for tail < len(before)-head && tail < len(after)-head && before[len(before)-1-tail] == after[len(after)-1-tail] {
		tail++
	}
	if head == len(before) && head == len(after) {
		return "" // only its mode changes
	}
	first, last := max(head-context, 0), max(tail-context, 0)
	var b strings.Builder
	name := func(s *state) string {
		if s == nil {
			return "/dev/null"
		}
		return c.Path
	}
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", name(c.before), name(c.after))
	fmt.Fprintf(&b, "@@ -%s +%s @@\n", span(first, len(before)-last-first), span(first, len(after)-last-first))
	put := func(sign string, lines []string) {
		for _, l := range lines {
			b.WriteString(sign + l)
			if !strings.HasSuffix(l, "\n") {
				b.WriteString("\n\\ No newline at end of file\n")
			}
		}
	}
	put(" ", before[first:head])
	put("-", before[head:len(before)-tail])
	put("+", after[head:len(after)-tail])
	put(" ", before[len(before)-tail:len(before)-last])
	return b.String()
}

// span is a range of lines as diff writes it: empty ones are named by the line
// before them.
func span(first, n int) string {
	if n > 0 {
		first++
	}
	return fmt.Sprintf("%d,%d", first, n)
}

// lines are a text's; nothing has none.
func lines(s *state) ([]string, bool) {
	if s == nil {
		return nil, true
	}
	if !s.isFile() || !utf8.Valid(s.data) || bytes.IndexByte(s.data, 0) >= 0 {
		return nil, false
	}
	return slices.Collect(strings.Lines(string(s.data))), true
}
