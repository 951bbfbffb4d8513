// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"time"
)

// labelWidth is the width of the names before a timeline.
const labelWidth = 12

// shades show for how much of a column something was so.
var shades = []rune{' ', '░', '▒', '▓', '█'}

// shade of a part between 0 and 1; what is there at all is visible.
func shade(part float64) rune {
	i := int(part*float64(len(shades)-1) + 0.5)
	if i == 0 && part > 0 {
		i = 1
	}
	return shades[min(i, len(shades)-1)]
}

// timeline draws a row for each vGPU: for how much of a column it held the GPU,
// or a dot if it only waited.
func timeline(rows int, samples []sample, from, column time.Duration, columns int) []string {
	type cell struct{ all, holding, waiting int }
	cells := make([]cell, rows*columns)
	for _, s := range samples {
		x := int((s.at - from) / column)
		if s.at < from || x >= columns {
			continue
		}
		for y, m := range s.marks {
			c := &cells[y*columns+x]
			c.all++
			switch m {
			case holding:
				c.holding++
			case waiting:
				c.waiting++
			}
		}
	}
	out := make([]string, rows)
	for y := range out {
		var b strings.Builder
		for x := range columns {
			c := cells[y*columns+x]
			switch {
			case c.holding > 0:
				b.WriteRune(shade(float64(c.holding) / float64(c.all)))
			case c.waiting > 0:
				b.WriteRune('·')
			default:
				b.WriteRune(' ')
			}
		}
		out[y] = strings.TrimRight(b.String(), " ")
	}
	return out
}

// span is a time in which something was so.
type span struct{ from, to time.Duration }

// spanline draws one row of spans, exactly: the part of each column that they
// cover. Spans do not overlap.
func spanline(spans []span, from, column time.Duration, columns int) string {
	covered := make([]time.Duration, columns)
	for _, s := range spans {
		for x := max(0, int((s.from-from)/column)); x < columns; x++ {
			begin := from + time.Duration(x)*column
			if begin >= s.to {
				break
			}
			covered[x] += max(0, min(s.to, begin+column)-max(s.from, begin))
		}
	}
	var b strings.Builder
	for _, c := range covered {
		b.WriteRune(shade(float64(c) / float64(column)))
	}
	return strings.TrimRight(b.String(), " ")
}
