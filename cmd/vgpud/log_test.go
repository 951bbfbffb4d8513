// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

// slow writes into a buffer, once it may.
type slow struct {
	began, may chan struct{}
	bytes.Buffer
}

func (s *slow) Write(b []byte) (int, error) {
	select {
	case s.began <- struct{}{}:
	default:
	}
	<-s.may
	return s.Buffer.Write(b)
}

func TestASlowLogHoldsUpNobody(t *testing.T) {
	to := &slow{began: make(chan struct{}, 1), may: make(chan struct{})}
	w := newLogWriter(to, 4)
	for i := range 100 {
		if _, err := fmt.Fprintf(w, "line %d\n", i); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			<-to.began
		}
	}
	w.close(0) // does not wait for ever either
	close(to.may)
	<-w.done
	got := to.String()
	if !strings.HasPrefix(got, "line 0\nvgpud: 95 lines of the log were dropped") || !strings.HasSuffix(got, "line 4\n") {
		t.Errorf("%q", got)
	}
	if n := w.Dropped(); n != 95 { // also after it was said
		t.Errorf("%d lines were dropped", n)
	}
}

func TestTheLogIsWrittenToItsEnd(t *testing.T) {
	var to bytes.Buffer
	w := newLogWriter(&to, 1000)
	for i := range 500 {
		fmt.Fprintf(w, "line %d\n", i)
	}
	w.close(time.Minute)
	if n := strings.Count(to.String(), "\n"); n != 500 {
		t.Errorf("%d lines", n)
	}
}
