// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
)

// difference is a test whose outcome with a runtime is not that with the stock
// one.
type difference struct {
	run   run
	test  string
	stock outcome
	ours  outcome
	cause string // empty if nobody has said it
}

// compare lists the differences between the results of a run and those of the
// same suite with the stock runtime, in the order of the tests' names.
func compare(r run, stock, ours results) []difference {
	names := maps.Clone(stock)
	maps.Copy(names, ours)
	var all []difference
	for _, test := range slices.Sorted(maps.Keys(names)) {
		if a, b := stock.of(test), ours.of(test); a != b {
			all = append(all, difference{run: r, test: test, stock: a, ours: b})
		}
	}
	return all
}

// remaining tells the differences that are left after several tries from the tests
// that agree: those with an outcome that they had with both.
func remaining(all []difference, stocks, ours []results) (left []difference, agreed []string) {
	for _, d := range all {
		if slices.ContainsFunc(stocks, func(stock results) bool {
			o := stock.of(d.test)
			return o != absent && slices.ContainsFunc(ours, func(r results) bool { return r.of(d.test) == o })
		}) {
			agreed = append(agreed, d.test)
			continue
		}
		// What is told is the last outcome. It may have been left out of a try.
		if a, b := stocks[len(stocks)-1].of(d.test), ours[len(ours)-1].of(d.test); a != absent || b != absent {
			d.stock, d.ours = a, b
		}
		left = append(left, d)
	}
	return left, agreed
}

// cause is a line of differences.tsv: why tests differ.
type cause struct {
	runs, tests *regexp.Regexp // whole names
	stock, ours outcome
	why         string

	used bool // by a difference that was found
}

// readCauses reads differences.tsv: fields between tabs, and lines that begin
// with # for the reader alone.
func readCauses(r io.Reader) ([]*cause, error) {
	lines := csv.NewReader(r)
	lines.Comma, lines.Comment, lines.LazyQuotes, lines.FieldsPerRecord = '\t', '#', true, 5
	records, err := lines.ReadAll()
	if err != nil {
		return nil, err
	}
	var causes []*cause
	for _, f := range records {
		c := &cause{stock: outcome(f[2]), ours: outcome(f[3]), why: f[4]}
		for _, o := range []outcome{c.stock, c.ours} {
			if !slices.Contains([]outcome{passed, failed, skipped, absent}, o) {
				return nil, fmt.Errorf("%s: %q is no outcome", f[1], o)
			}
		}
		if c.why == "" {
			return nil, fmt.Errorf("%s: the cause is empty", f[1])
		}
		if c.runs, err = regexp.Compile("^(?:" + f[0] + ")$"); err != nil {
			return nil, err
		}
		if c.tests, err = regexp.Compile("^(?:" + f[1] + ")$"); err != nil {
			return nil, err
		}
		causes = append(causes, c)
	}
	return causes, nil
}

// explain gives each difference its cause, and returns how many have none.
func explain(all []difference, causes []*cause) (unexplained int) {
	for i, d := range all {
		for _, c := range causes {
			if c.stock == d.stock && c.ours == d.ours && c.runs.MatchString(d.run.name()) && c.tests.MatchString(d.test) {
				all[i].cause, c.used = c.why, true
				break
			}
		}
		if all[i].cause == "" {
			unexplained++
		}
	}
	return unexplained
}
