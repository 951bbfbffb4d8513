// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// outcome of a test.
type outcome string

const (
	passed  outcome = "pass"
	failed  outcome = "fail"
	skipped outcome = "skip"
	absent  outcome = "absent" // not among the results
)

// results are the outcomes of a run, by the tests' names.
type results map[string]outcome

func (r results) of(test string) outcome {
	if o, ok := r[test]; ok {
		return o
	}
	return absent
}

func (r results) count(o outcome) int {
	n := 0
	for _, have := range r {
		if have == o {
			n++
		}
	}
	return n
}

// parseGoTest reads the output of a program made by go test, as it is with
// -test.v=test2json. A test that began and did not end has failed.
func parseGoTest(output, _ string) (results, error) {
	f, err := os.Open(output)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd := exec.Command("go", "tool", "test2json")
	cmd.Stdin, cmd.Stderr = f, os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r, err := goTestEvents(json.NewDecoder(bufio.NewReader(events)))
	return r, errors.Join(err, cmd.Wait())
}

func goTestEvents(events *json.Decoder) (results, error) {
	r := results{}
	for events.More() {
		var e struct{ Action, Test string }
		if err := events.Decode(&e); err != nil {
			return nil, err
		}
		switch {
		case e.Test == "":
		case e.Action == "run":
			r[e.Test] = failed
		case e.Action == string(passed), e.Action == string(failed), e.Action == string(skipped):
			r[e.Test] = outcome(e.Action)
		}
	}
	return r, nil
}

// parseGinkgo reads the report that Ginkgo writes. A test that the run did not
// select is none of its results.
func parseGinkgo(_, report string) (results, error) {
	data, err := os.ReadFile(report)
	if err != nil {
		return nil, err
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts           []string
			LeafNodeText, LeafNodeType, State string
			Failure                           struct{ Message string }
		}
	}
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, fmt.Errorf("%s: %w", report, err)
	}
	r := results{}
	for _, s := range suites {
		for _, spec := range s.SpecReports {
			name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
			switch {
			case spec.LeafNodeType != "It" && spec.State == "passed":
			case spec.LeafNodeType != "It":
				return nil, fmt.Errorf("%s: %s: %s", report, spec.LeafNodeType, spec.Failure.Message)
			case spec.State == "passed":
				r[name] = passed
			case spec.State == "skipped" || spec.State == "pending":
				if spec.Failure.Message != "" {
					r[name] = skipped
				}
			default:
				r[name] = failed
			}
		}
	}
	return r, nil
}
