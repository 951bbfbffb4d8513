// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
)

// noise is by which part of itself a row of the short form may be worse than the
// committed one of the full form without meaning anything: samples are fewer, and
// the machine of this run is another one, or is busy. Rows that are not here are not
// compared: floors, what the short form does not measure or measures in another way,
// and tails of hand-overs and drains, which are other programs' more than ours: those
// have their budgets.
var noise = map[string]float64{
	"handover_median":      .5,
	"first_grant":          .5,
	"handovers_per_second": .5,
	"engine_step_512":      .3,
	"engine_step_512_ns":   1,
	"daemon_memory_512":    .15,
	"accounting_error":     1,
	"high_p99":             .4,
	"alone":                .02,
	"makespan_bound_k2":    .06,
	"makespan_bound_k4":    .06,
	"makespan_hw":          .1,
	"jain":                 .01,
	"jain_bursty":          .01,
	"mix_k4":               .15,
}

// readCommitted reads rows that a run has written, by name.
func readCommitted(path string) (map[string]row, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("failed to read the rows to compare with: %w", err)
	}
	var rows []row
	if err := json.Unmarshal(data, &rows); err != nil {
		return nil, fmt.Errorf("failed to read the rows in %s: %w", path, err)
	}
	byName := make(map[string]row, len(rows))
	for _, r := range rows {
		byName[r.name] = r
	}
	return byName, nil
}

// compare notes in r what it is compared with, if it is.
func (r *row) compare(committed map[string]row) {
	c, known := committed[r.name]
	if part, compared := noise[r.name]; known && compared {
		r.committed, r.noise = c.value, part
	}
}

// worse is whether r is worse than the committed one by more than noise.
func (r row) worse() bool {
	switch {
	case r.noise == 0:
		return false
	case r.rule == least:
		return r.value < r.committed*(1-r.noise)
	}
	return r.value > r.committed*(1+r.noise)
}
