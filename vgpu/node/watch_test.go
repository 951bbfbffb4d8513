// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// reader reads a stream on a connection of its own.
type reader[T any] struct {
	t     *testing.T
	items chan T
	err   error // why it ended, once items is closed
	close func()
}

func read[T any](n *node, open func(v1.ControlClient) (interface{ Recv() (T, error) }, error)) *reader[T] {
	n.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(n.state, "vgpud.sock"))
	if err != nil {
		n.t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	n.t.Cleanup(func() { client.Close() })
	s, err := open(v1.NewControlClient(client))
	if err != nil {
		n.t.Fatal(err)
	}
	r := &reader[T]{t: n.t, items: make(chan T, 2*maxEvents), close: func() { client.Close() }}
	go func() {
		defer close(r.items)
		for {
			item, err := s.Recv()
			if err != nil {
				r.err = errgrpc.ToNative(err)
				return
			}
			r.items <- item
		}
	}()
	return r
}

func (n *node) watch(r *v1.WatchRequest) *reader[*v1.Event] {
	n.t.Helper()
	return read(n, func(c v1.ControlClient) (interface{ Recv() (*v1.Event, error) }, error) {
		return c.Watch(n.t.Context(), r)
	})
}

func (n *node) watchGPUs() *reader[*v1.WatchGPUsResponse] {
	n.t.Helper()
	return read(n, func(c v1.ControlClient) (interface {
		Recv() (*v1.WatchGPUsResponse, error)
	}, error,
	) {
		return c.WatchGPUs(n.t.Context(), &v1.WatchGPUsRequest{})
	})
}

func (r *reader[T]) next() T {
	r.t.Helper()
	select {
	case item, ok := <-r.items:
		if !ok {
			r.t.Fatalf("the stream ended: %v", r.err)
		}
		return item
	case <-time.After(patience):
		r.t.Fatal("nothing came")
	}
	panic("unreachable")
}

// until reads until something fits, and returns it.
func (r *reader[T]) until(ok func(T) bool) T {
	r.t.Helper()
	for {
		if item := r.next(); ok(item) {
			return item
		}
	}
}

// ends waits until the stream has ended and returns why.
func (r *reader[T]) ends() error {
	r.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case _, ok := <-r.items:
			if !ok {
				return r.err
			}
		case <-timeout:
			r.t.Fatal("the stream does not end")
		}
	}
}

func (n *node) info() *v1.InfoResponse {
	n.t.Helper()
	info, err := n.control.Info(n.t.Context(), &v1.InfoRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	return info
}

// flood makes events without anything else.
func (n *node) flood(events int) {
	n.t.Helper()
	if err := n.daemon.call(func(l *loop) {
		for range events {
			l.tellGPU(eventGPUXid, "GPU-x", strings.Repeat("x", maxEventReason))
		}
	}); err != nil {
		n.t.Fatal(err)
	}
}

func TestWatchTellsWhatHappensToAVGPU(t *testing.T) {
	n := newNode(t, settings{quantum: time.Millisecond, drain: 10 * time.Millisecond})
	w := n.watch(&v1.WatchRequest{})
	n.create("a", "weight=7")
	n.create("b")
	id := n.vgpu("a").GetId()
	a := n.client("a")
	if _, err := n.update("a", "weight=8"); err != nil {
		t.Fatal(err)
	}
	a.ask("work", "work: passed")
	a.ask("leave", "leave: ok") // nobody is there to drain it
	b := n.client("b")
	b.ask("work", "work: passed")
	b.ask("done", "done: ")
	a.kill()
	n.untilState("a", "UNBOUND") // vgpud has seen that it died
	n.delete("a")
	var last uint64
	var got []string
	for last == 0 || got[len(got)-1] != eventRemoved {
		ev := w.next()
		if ev.GetSequence() != last+1 || ev.GetEpoch() != n.info().GetEpoch() || ev.GetAt().AsTime().IsZero() {
			t.Fatalf("behind %d came %v", last, ev)
		}
		last = ev.GetSequence()
		if ev.GetVgpu() != id {
			continue
		}
		if c := ev.GetContainer(); c.GetId() != "a" || c.GetNamespace() != "test" || c.GetContainerd() == "" {
			t.Errorf("%v", ev)
		}
		switch ev.GetType() {
		case eventChanged:
			if c := ev.GetChanges(); len(c) != 1 || c["vgpu-shim.dev/weight"] != "8" {
				t.Errorf("%v", ev)
			}
			fallthrough
		case eventBound, eventOverrun, eventUnbound:
			if !slices.Equal(ev.GetGpus(), []string{gpuUUID(0)}) {
				t.Errorf("%v", ev)
			}
		}
		got = append(got, ev.GetType())
	}
	if want := []string{eventCreated, eventBound, eventChanged, eventOverrun, eventUnbound, eventRemoved}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestAReaderGoesOnWhereItWas(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	w := n.watch(&v1.WatchRequest{})
	first := w.next()
	if first.GetSequence() != 1 || first.GetType() != eventCreated {
		t.Fatalf("%v", first)
	}
	w.close()
	if err := w.ends(); err == nil {
		t.Error("the stream ended without a reason")
	}
	n.create("b")
	list, err := n.control.List(t.Context(), &v1.ListRequest{})
	if err != nil || list.GetSequence() != 2 || list.GetEpoch() != first.GetEpoch() || len(list.GetVgpus()) != 2 {
		t.Fatalf("%v %v", list, err)
	}
	if info := n.info(); info.GetSequence() != 2 || info.GetEpoch() != first.GetEpoch() {
		t.Errorf("%v", info)
	}
	n.create("c")
	if ev := n.watch(&v1.WatchRequest{After: 1, Epoch: first.GetEpoch()}).next(); ev.GetContainer().GetId() != "b" {
		t.Errorf("%v", ev)
	}
	// What comes behind a list is not in it.
	if ev := n.watch(&v1.WatchRequest{After: list.GetSequence()}).next(); ev.GetContainer().GetId() != "c" {
		t.Errorf("%v", ev)
	}
}

func TestAReaderOfAnotherEpochListsAgain(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	old := n.info()
	n.stop()
	n.start()
	n.create("b")
	now := n.info()
	if now.GetEpoch() == old.GetEpoch() {
		t.Fatal("a restarted vgpud has its old epoch")
	}
	for _, r := range []*v1.WatchRequest{
		{After: old.GetSequence(), Epoch: old.GetEpoch()},
		{After: 1 << 40}, // of an epoch that the reader does not know
	} {
		w := n.watch(r)
		if ev := w.next(); ev.GetType() != eventResync || ev.GetEpoch() != now.GetEpoch() || ev.GetSequence() != 0 {
			t.Errorf("%v", ev)
		}
		// What the new vgpud did so far follows.
		if ev := w.until(func(ev *v1.Event) bool { return ev.GetType() == eventCreated }); ev.GetContainer().GetId() != "b" {
			t.Errorf("%v", ev)
		}
	}
}

func TestAReaderThatIsTooLateListsAgain(t *testing.T) {
	n := newNode(t, settings{})
	n.flood(maxEvents + 10)
	w := n.watch(&v1.WatchRequest{After: 3, Epoch: n.info().GetEpoch()})
	if ev := w.next(); ev.GetType() != eventResync || ev.GetSequence() != 10 {
		t.Errorf("%v", ev)
	}
	for n := uint64(11); n <= maxEvents+10; n++ {
		if ev := w.next(); ev.GetType() != eventGPUXid || ev.GetSequence() != n {
			t.Fatalf("%v, want number %d", ev, n)
		}
	}
	stats, err := n.control.Stats(t.Context(), &v1.StatsRequest{})
	if err != nil || stats.GetEventsDropped() != 7 || stats.GetEvents() != maxEvents+10 {
		t.Errorf("%v %v", stats, err)
	}
}

// stuck is a connection whose reader has stopped reading.
type stuck struct {
	net.Conn
	closed chan struct{}
}

func (s stuck) Read([]byte) (int, error) {
	<-s.closed
	return 0, net.ErrClosed
}

// stuckReader asks for a stream and reads nothing of it.
func (n *node) stuckReader() {
	n.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(n.state, "vgpud.sock"))
	if err != nil {
		n.t.Fatal(err)
	}
	s := stuck{conn, make(chan struct{})}
	client := ttrpc.NewClient(s)
	n.t.Cleanup(func() {
		close(s.closed)
		client.Close()
	})
	if _, err := v1.NewControlClient(client).Watch(n.t.Context(), &v1.WatchRequest{}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) readers() int {
	_, readers := n.daemon.loop.events.counts()
	return readers
}

// More than the socket and the ring hold, several times over.
func TestAStuckReaderHoldsUpNobody(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	a := n.client("a")
	n.stuckReader()
	n.until("it reads", func() bool { return n.readers() == 1 })
	quick := n.watch(&v1.WatchRequest{})
	for range 8 {
		n.flood(maxEvents / 2)
		a.ask("work", "work: passed")
		a.ask("done", "done: ")
		newest := n.info().GetSequence()
		quick.until(func(ev *v1.Event) bool { return ev.GetSequence() == newest })
	}
	if dropped, _ := n.daemon.loop.events.counts(); dropped != 0 {
		t.Errorf("%d events were missed by a reader that reads", dropped)
	}
	// The stuck one is still where the socket was full; vgpud stops all the same.
	if n.readers() != 2 {
		t.Errorf("%d readers", n.readers())
	}
}

func TestVgpudStopsWithReadersAttached(t *testing.T) {
	n := newNode(t, settings{})
	w, g := n.watch(&v1.WatchRequest{}), n.watchGPUs()
	n.create("a")
	w.next() // so both are there
	g.next()
	n.stop()
	for _, err := range []error{w.ends(), g.ends()} {
		// Told, not cut off: so Shutdown did not run into its time limit.
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "vgpud is stopping") {
			t.Errorf("it ended with %v", err)
		}
	}
}

func TestAReaderThatHangsUpLeavesNothing(t *testing.T) {
	n := newNode(t, settings{})
	w, g := n.watch(&v1.WatchRequest{}), n.watchGPUs()
	watchers := func() uint32 {
		stats, err := n.control.Stats(t.Context(), &v1.StatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return stats.GetWatchers()
	}
	n.until("both are there", func() bool { return watchers() == 2 })
	w.close()
	g.close()
	n.until("both are gone", func() bool { return watchers() == 0 })
}

func TestWhatAReaderOfGPUsWaitsFor(t *testing.T) {
	for field, change := range map[string]func(*v1.GPU){
		"uuid": func(g *v1.GPU) { g.Uuid = "x" }, "state": func(g *v1.GPU) { g.State = "x" }, "reason": func(g *v1.GPU) { g.Reason = "x" },
		"cordon": func(g *v1.GPU) { g.Cordon = "x" }, "bound": func(g *v1.GPU) { g.Bound++ }, "vgpus": func(g *v1.GPU) { g.Vgpus = []string{"x"} },
		"policy": func(g *v1.GPU) { g.Policy = &v1.Policy{Name: "fair"} }, "slots": func(g *v1.GPU) { g.Policy = &v1.Policy{Slots: 1} },
		"own policy": func(g *v1.GPU) { g.OwnPolicy = true },
	} {
		a, b := &v1.GPU{Policy: &v1.Policy{}}, &v1.GPU{Policy: &v1.Policy{}, Turns: 7, Pending: 1, Holder: "x"}
		if !sameForWatch(a, b) {
			t.Fatal("counters are sent")
		}
		if change(b); sameForWatch(a, b) {
			t.Errorf("%s: not sent", field)
		}
	}
}

func TestWatchGPUsSendsWhatChanged(t *testing.T) {
	n := newNode(t, settings{gpus: 2})
	w := n.watchGPUs()
	all := w.next().GetGpus()
	if len(all) != 2 || all[0].GetState() != "FREE" || all[0].GetPolicy().GetName() != "default" {
		t.Fatalf("%v", all)
	}
	first := func(ok func(*v1.GPU) bool) {
		t.Helper()
		w.until(func(r *v1.WatchGPUsResponse) bool { return len(r.GetGpus()) == 2 && ok(r.GetGpus()[0]) })
	}
	n.create("a")
	a := n.client("a")
	id := n.vgpu("a").GetId()
	first(func(g *v1.GPU) bool { return g.GetBound() == 1 && slices.Equal(g.GetVgpus(), []string{id}) })
	a.ask("work", "work: passed")
	first(func(g *v1.GPU) bool { return g.GetState() == "HELD" })
	if _, err := n.control.CordonGPU(t.Context(), &v1.CordonGPURequest{Uuid: gpuUUID(0), Reason: "repair"}); err != nil {
		t.Fatal(err)
	}
	first(func(g *v1.GPU) bool { return g.GetState() == "CORDONED" && strings.Contains(g.GetReason(), "repair") })
	if _, err := n.control.SetPolicy(t.Context(), &v1.SetPolicyRequest{Policy: "fair"}); err != nil {
		t.Fatal(err)
	}
	first(func(g *v1.GPU) bool { return g.GetPolicy().GetName() == "fair" })
	// Taken up again without a word to vgpud: a look finds it.
	if _, err := n.control.UncordonGPU(t.Context(), &v1.UncordonGPURequest{Uuid: gpuUUID(0)}); err != nil {
		t.Fatal(err)
	}
	a.ask("done", "done: IDLE")
	first(func(g *v1.GPU) bool { return g.GetState() == "FREE" })
	a.ask("work", "work: passed")
	first(func(g *v1.GPU) bool { return g.GetState() == "HELD" })
}
