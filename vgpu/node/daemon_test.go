// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"
	"testing"
	"time"
)

func TestStatusIsTheLoopsAnswer(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	n.create("a")
	p := n.daemon.loop.poller
	stuck, stay := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(stay) })
	t.Cleanup(release)
	p.post(func() { close(stuck); <-stay })
	<-stuck
	answer := make(chan Status, 1)
	go func() {
		s, err := n.daemon.Status()
		if err != nil {
			t.Error(err)
		}
		answer <- s
	}()
	n.until("the loop is asked", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.posted) > 0
	})
	select {
	case s := <-answer:
		t.Fatalf("%+v, while the loop is stuck", s)
	default:
	}
	release()
	if got, want := <-answer, (Status{VGPUs: 1, GPUs: 2}); got != want {
		t.Errorf("%+v, not %+v", got, want)
	}
	n.stop()
	if _, err := n.daemon.Status(); err == nil {
		t.Error("it answers after its end")
	}
}

// vgpud looks for sockets to make every few seconds: a Create that takes long must
// not make the others wait for that.
func TestWithoutASocketToMakeNobodyWaits(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	defer n.daemon.alone("another")()
	over := make(chan struct{})
	go func() {
		defer close(over)
		n.daemon.relisten()
	}()
	select {
	case <-over:
	case <-time.After(patience):
		t.Fatal("it waits for a Create")
	}
}
