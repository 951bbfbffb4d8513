// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
)

// someKept is an account in which each number is another one for each i.
func someKept(i int) kept {
	n := uint64(1000 * i)
	d := func(k uint64) time.Duration { return time.Duration(n + k) }
	k := kept{
		usage:       arbiter.Usage{Held: d(1), Waited: d(2), Lingered: d(3), Turns: n + 4, Drains: n + 5, Overruns: n + 6},
		submissions: n + 7, rubbish: n + 8, stats: stats{n + 9, n + 10},
		shown:   shown{d(11), n + 12, n + 13, n + 14},
		granted: d(15), waited: d(16), pending: d(17), done: work{i%2 == 1, d(18), d(19)},
		clients: i % (maxBaselines + 1),
	}
	for c := range k.clients {
		k.baselines[c] = baseline{n + 20, n + 21, n + uint64(c)}
	}
	return k
}

func packed(name string, k kept) account {
	a := account{kind: slotVGPU, key: name}
	k.pack(&a)
	return a
}

// torn is memory whose writer is killed after some stores.
type torn struct {
	memory
	left int
}

func (m *torn) store(i int, v uint64) {
	if m.left > 0 {
		m.left--
		m.memory.store(i, v)
	}
}

func (m *torn) publish(i int, v uint64) { m.store(i, v) }

func TestAnAccountIsWholeWhereverItsWriterIsKilled(t *testing.T) {
	for i := range 12 {
		for stop := 0; ; stop++ {
			mem := &torn{memory: make(memory, slotBytes/8), left: 1 << 20}
			s := &slot{mem: mem, no: 1}
			for before := range i {
				a := packed("v", someKept(before))
				s.write(&a)
			}
			mem.left = stop
			a := packed("v", someKept(i))
			s.write(&a)

			next := &slot{mem: mem.memory, no: 1}
			if !next.readNumber() {
				t.Fatalf("killed after %d stores: the number is damaged", stop)
			}
			got, ok := next.read(next.seq)
			if !ok {
				t.Fatalf("killed after %d stores: the account is damaged", stop)
			}
			want := i
			if mem.left == 0 && next.seq == uint64(i) {
				want-- // it was killed too early
			}
			switch {
			case want < 0 && got.kind != slotFree:
				t.Fatalf("killed after %d stores in a new slot: there is %+v", stop, got)
			case want >= 0 && (got.key != "v" || got.unpack() != someKept(want)):
				t.Fatalf("killed after %d stores: there is %+v, not %+v", stop, got.unpack(), someKept(want))
			}
			if mem.left > 0 {
				break // it was not killed
			}
		}
	}
}

// A turn counts for the vGPU and for its GPUs, or for none of them.
func TestATurnIsAccountedOnceWhereverVgpudIsKilled(t *testing.T) {
	const gpus = 2
	stops := 0
	for stop := 0; ; stop++ {
		mem := &torn{memory: make(memory, (1+gpus)*slotBytes/8), left: 1 << 20}
		slots := func() (all []*slot) {
			for i := range 1 + gpus {
				all = append(all, &slot{mem: mem, base: i * slotBytes / 8, no: uint64(i + 1)})
			}
			return all
		}
		turn := func(s []*slot, n uint64) {
			u := arbiter.Usage{Turns: n, Held: time.Duration(10 * n)}
			for i := range gpus {
				a := packGPU(arbiter.UUID(fmt.Sprint("g", i)), u, s[0].no, s[0].seq+1)
				s[1+i].write(&a)
			}
			a := packed("v", kept{usage: u})
			s[0].write(&a)
		}
		s := slots()
		turn(s, 1)
		turn(s, 2)
		mem.left = stop
		turn(s, 3)
		done := mem.left > 0
		// Two restarts; a kill in the first one changes nothing.
		for kill := range 3 {
			mem.left = kill
			if kill == 2 {
				mem.left = 1 << 20
			}
			a := &accounts{found: make(map[accountKey]foundAccount), free: slots()}
			if err := a.readSlots(); err != nil {
				t.Fatalf("killed after %d stores: %v", stop, err)
			}
			_, v := a.take(slotVGPU, "v")
			want := v.unpack().usage
			if want.Turns != 2 && want.Turns != 3 || done && want.Turns != 3 {
				t.Fatalf("killed after %d stores: %+v", stop, want)
			}
			for i := range gpus {
				if _, got := a.takeGPU(arbiter.UUID(fmt.Sprint("g", i))); got != want {
					t.Fatalf("killed after %d stores: GPU %d has %+v, the vGPU %+v", stop, i, got, want)
				}
			}
		}
		// And it goes on from there.
		mem.left = 1 << 20
		a := &accounts{found: make(map[accountKey]foundAccount), free: slots()}
		if err := a.readSlots(); err != nil {
			t.Fatal(err)
		}
		var again []*slot
		vs, _ := a.take(slotVGPU, "v")
		again = append(again, vs)
		for i := range gpus {
			gs, _ := a.takeGPU(arbiter.UUID(fmt.Sprint("g", i)))
			again = append(again, gs)
		}
		turn(again, 4)
		if g, ok := again[1].read(again[1].seq); !ok || g.gpuUsage().Turns != 4 {
			t.Fatalf("killed after %d stores: after another turn %+v", stop, g)
		}
		stops++
		if done {
			break
		}
	}
	if stops < 30 {
		t.Errorf("only %d stores", stops)
	}
}

// filledAccounts makes a file with the accounts of n vGPUs.
func filledAccounts(t *testing.T, path string, n int) {
	t.Helper()
	a := openAccounts(path, "boot", discard())
	for i := range n {
		if err := a.reserve(); err != nil {
			t.Fatal(err)
		}
		s, old := a.take(slotVGPU, fmt.Sprint("v", i))
		if old.kind != slotFree {
			t.Fatalf("a new account is %+v", old)
		}
		for k := range 3 {
			b := packed(fmt.Sprint("v", i), someKept(i+k))
			s.write(&b)
		}
	}
	a.drop()
}

// foundIn counts those that are as they were written; there are no others.
func foundIn(t *testing.T, a *accounts, n int) (whole int) {
	t.Helper()
	for i := range n {
		_, got := a.take(slotVGPU, fmt.Sprint("v", i))
		switch {
		case got.kind == slotFree:
		case got.unpack() != someKept(i+2):
			t.Fatalf("account %d is %+v", i, got.unpack())
		default:
			whole++
		}
	}
	return whole
}

func TestAccountsOutgrowAChunk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "accounts")
	const n = 3 * chunkSlots
	filledAccounts(t, path, n)
	a := openAccounts(path, "boot", discard())
	defer a.drop()
	if got := foundIn(t, a, n); got != n {
		t.Errorf("%d of %d accounts are found", got, n)
	}
	if len(a.chunks) > 4 {
		t.Errorf("%d chunks", len(a.chunks))
	}
}

func TestAnAccountGivesItsPlaceBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "accounts")
	filledAccounts(t, path, 10)
	a := openAccounts(path, "boot", discard())
	s, _ := a.take(slotVGPU, "v3")
	a.release(s)
	gpu, _ := a.takeGPU("g")
	b := packGPU("g", arbiter.Usage{Turns: 7}, 0, 0)
	gpu.write(&b)
	a.releaseRest() // v0 to v9 without v3: nobody asked for them
	if got := len(a.free); got != chunkSlots-2 {
		t.Errorf("%d are free", got)
	}
	a.drop()
	a = openAccounts(path, "boot", discard())
	defer a.drop()
	if got := foundIn(t, a, 10); got != 0 {
		t.Errorf("%d are left", got)
	}
	if _, u := a.takeGPU("g"); u.Turns != 7 {
		t.Errorf("the GPU's went with them: %+v", u)
	}
}

func TestNoDamageToTheAccountsStopsVgpudOrIsTakenForAnAccount(t *testing.T) {
	dir := inMemory(t)
	path := filepath.Join(dir, "accounts")
	const n = 20
	filledAccounts(t, path, n)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, damaged []byte) int {
		t.Helper()
		if err := errors.Join(os.RemoveAll(path+keptSuffix), os.Remove(path), os.WriteFile(path, damaged, 0o600)); err != nil {
			t.Fatal(err)
		}
		a := openAccounts(path, "boot", discard())
		got := foundIn(t, a, n)
		s, _ := a.take(slotVGPU, "another")
		b := packed("another", someKept(1))
		s.write(&b)
		a.drop()
		if kept, err := os.ReadFile(path + keptSuffix); err == nil && !bytes.Equal(kept, damaged) {
			t.Fatalf("%s: what is kept is not what was there", what)
		} else if err != nil && got != n {
			t.Fatalf("%s: %d are found, and nothing is kept", what, got)
		}
		a = openAccounts(path, "boot", discard())
		defer a.drop()
		if again := foundIn(t, a, n); again != got {
			t.Fatalf("%s: then %d, then %d", what, got, again)
		}
		if _, c := a.take(slotVGPU, "another"); c.unpack() != someKept(1) {
			t.Fatalf("%s: nothing can be written", what)
		}
		return got
	}
	if got := try("nothing", whole); got != n {
		t.Fatalf("%d accounts", got)
	}
	for _, size := range []int{0, 1, 4096, 5000, len(whole) / 2, len(whole) - 1} {
		try(fmt.Sprintf("cut off at %d", size), whole[:size])
	}
	if got := try("longer", append(bytes.Clone(whole), 0)); got != n {
		t.Errorf("with a byte too much %d accounts are found", got)
	}
	for at := 0; at < (n+2)*slotBytes; at += slotBytes / 2 {
		damaged := bytes.Clone(whole)
		copy(damaged[at:], make([]byte, slotBytes/2))
		try(fmt.Sprintf("zeroed at %d", at), damaged)
	}
	first := (chunkSlots - 1) * slotBytes // the last slot is used first
	for bit := range 64 {
		damaged := bytes.Clone(whole)
		damaged[first+bit/8] ^= 1 << (bit % 8)
		if got := try(fmt.Sprintf("bit %d of a number", bit), damaged); got != n-1 {
			t.Fatalf("bit %d of a number cost %d accounts", bit, n-got)
		}
	}
	random := rand.New(rand.NewPCG(2, 2))
	for range 500 {
		damaged := bytes.Clone(whole)
		at := random.IntN(chunkSlots * slotBytes)
		if random.IntN(4) > 0 {
			at = len(whole) - 1 - random.IntN((n+1)*slotBytes)
		}
		damaged[at] ^= 1 << random.IntN(8)
		if got := try(fmt.Sprintf("a bit at %d", at), damaged); got < n-1 && at >= slotBytes {
			t.Fatalf("a bit at %d cost %d accounts", at, n-got)
		}
	}
}

func TestAccountsOfAnotherBootStartAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "accounts")
	filledAccounts(t, path, 3)
	a := openAccounts(path, "another boot", discard())
	defer a.drop()
	if got := foundIn(t, a, 3); got != 0 {
		t.Errorf("%d are found", got)
	}
	if _, err := os.Lstat(path + keptSuffix); err == nil {
		t.Error("the old ones are kept, as if they were damaged")
	}
}

func TestAccountsOnAFullDisk(t *testing.T) {
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatalf("failed to mount a small tmpfs (this test needs root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	path := filepath.Join(mount, "accounts")
	filledAccounts(t, path, 10)
	if err := os.WriteFile(filepath.Join(mount, "fill"), make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	a := openAccounts(path, "boot", discard())
	if got := foundIn(t, a, 10); got != 10 {
		t.Errorf("%d are found", got)
	}
	var refused error
	for i := 0; refused == nil && i < 2*chunkSlots; i++ {
		if refused = a.reserve(); refused == nil {
			s, _ := a.take(slotVGPU, fmt.Sprint("more", i))
			b := packed("more", someKept(i))
			s.write(&b)
		}
	}
	if !errors.Is(refused, syscall.ENOSPC) {
		t.Errorf("without room: %v", refused)
	}
	// One that can not be in the file is good enough to compute with.
	s, _ := a.take(slotVGPU, "outside")
	b := packed("outside", someKept(1))
	s.write(&b)
	a.drop()

	if err := os.Truncate(path, 100); err != nil { // damaged, and no room for a new one
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mount, "more"), make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	a = openAccounts(path, "boot", discard())
	if err := a.reserve(); err != nil {
		t.Errorf("%v", err)
	}
	s, _ = a.take(slotVGPU, "v")
	s.write(&b)
}

func TestToKeepAnAccountAllocatesNothing(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	a := n.client("a")
	a.ask("work", "work: passed")
	var allocated float64
	if err := n.daemon.call(func(l *loop) {
		for _, v := range l.vgpus {
			allocated = testing.AllocsPerRun(100, func() { l.keepTurn(v) })
		}
	}); err != nil {
		t.Fatal(err)
	}
	if allocated != 0 {
		t.Errorf("%v allocations", allocated)
	}
}

func TestADeadClientsSubmissionsAreKept(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	a.ask("done", "done: IDLE")
	b.ask("work", "work: passed") // the turn of a has ended
	a.kill()
	n.until("it is seen", func() (seen bool) { // without telling anything
		err := n.daemon.call(func(l *loop) {
			for _, v := range l.vgpus {
				seen = seen || len(v.clients) == 0
			}
		})
		return err == nil && seen
	})
	n.stop()
	n.start()
	if u := n.usage("a"); u.GetSubmissions() != 1 || u.GetTurns() != 1 || u.GetHeld().AsDuration() <= 0 {
		t.Errorf("%v", u)
	}
}

// usage of a vGPU as it is told.
func (n *node) usage(name string) *v1.Usage { return n.vgpu(name).GetUsage() }

// notLess checks that no number of a vGPU got smaller.
func notLess(t *testing.T, before, now *v1.VGPU) {
	t.Helper()
	b, u := before.GetUsage(), now.GetUsage()
	if u.GetHeld().AsDuration() < b.GetHeld().AsDuration() || u.GetWaited().AsDuration() < b.GetWaited().AsDuration() ||
		u.GetTurns() < b.GetTurns() || u.GetDrains() < b.GetDrains() || u.GetOverruns() < b.GetOverruns() ||
		u.GetSubmissions() < b.GetSubmissions() || now.GetRubbish() < before.GetRubbish() ||
		now.GetUngated() < before.GetUngated() || now.GetUnknownNames() < before.GetUnknownNames() {
		t.Errorf("%s: it was %v, and is %v now", before.GetContainer().GetId(), before, now)
	}
}

func TestAccountsAreKeptOverARestart(t *testing.T) {
	restarts := map[string]func(*node){
		"a clean one": func(n *node) { n.stop(); n.start() },
		"kill -9":     func(n *node) { n.kill(); n.startProcess() },
	}
	for what, restart := range restarts {
		t.Run(what, func(t *testing.T) {
			make := newNode
			if what == "kill -9" {
				make = newProcessNode
			}
			n := make(t, settings{gpus: 2})
			n.create("a", "gpus=2")
			n.create("b", "gpus=2")
			n.create("rude")
			a, b := n.client("a"), n.client("b")
			for range 3 {
				a.ask("work", "work: passed")
				b.tell("work")
				n.untilState("b", "PENDING")
				a.ask("done", "done: ")
				b.expect("work: passed")
				b.ask("done", "done: ")
			}
			a.ask("work", "work: passed") // takes it from b
			a.ask("done", "done: ")
			a.tell("stats 5 6")
			n.until("the stats came", func() bool { return n.vgpu("a").GetUngated() == 5 })
			rude := n.client("rude")
			rude.ask("raw 00", "raw: sent")
			n.until("the rubbish came", func() bool { return n.vgpu("rude").GetRubbish() == 1 })
			dead := n.client("a")
			dead.kill() // takes what it counted along
			n.until("it is seen", func() bool { return n.vgpu("a").GetClients() == 1 })

			names := []string{"a", "b", "rude"}
			before := map[string]*v1.VGPU{}
			for _, name := range names {
				before[name] = n.vgpu(name)
			}
			gpus := []*v1.GPU{n.gpu(0), n.gpu(1)}
			if u := before["b"].GetUsage(); u.GetTurns() != 3 || u.GetWaited().AsDuration() <= 0 || u.GetHeld().AsDuration() <= 0 || u.GetSubmissions() != 3 {
				t.Fatalf("b has %v", u)
			}
			for range 2 {
				restart(n)
				for _, name := range names {
					notLess(t, before[name], n.vgpu(name))
				}
				a.expect("reconnected")
				b.expect("reconnected")
				n.until("they are found again", func() bool { return n.gpu(0).GetState() != "CORDONED" })
				if u := n.usage("b"); u.String() != before["b"].GetUsage().String() {
					t.Errorf("b had %v, and has %v", before["b"].GetUsage(), u)
				}
				for _, name := range names {
					notLess(t, before[name], n.vgpu(name))
				}
				for i, g := range gpus {
					if now := n.gpu(i); now.GetHeld().AsDuration() != g.GetHeld().AsDuration() || now.GetTurns() != g.GetTurns() {
						t.Errorf("GPU %d had %v, and has %v", i, g, now)
					}
				}
			}
			// It goes on from there.
			b.ask("work", "work: passed")
			if u := n.usage("a"); u.GetTurns() != before["a"].GetUsage().GetTurns()+1 {
				t.Errorf("a had %v, and has %v", before["a"].GetUsage(), u)
			}
			if g := n.gpu(0); g.GetTurns() != gpus[0].GetTurns()+1 {
				t.Errorf("the GPU had %v, and has %v", gpus[0], g)
			}
		})
	}
}

func TestATurnUnderWayAtAKillIsAccountedFromItsStart(t *testing.T) {
	for what, away := range map[string]func(a *clientProcess){
		"it goes on":             nil,
		"it gets idle meanwhile": func(a *clientProcess) { a.ask("done", "done: IDLE") },
		"its process dies":       func(a *clientProcess) { a.kill() },
	} {
		t.Run(what, func(t *testing.T) {
			n := newProcessNode(t, settings{})
			n.create("a")
			n.create("b")
			a, b := n.client("a"), n.client("b")
			start := time.Now()
			a.ask("work", "work: passed")
			granted := time.Now()
			b.tell("work")
			n.untilState("b", "PENDING")
			before, waits := n.vgpu("a"), time.Now()
			told := before.GetUsage().GetHeld().AsDuration()
			if told <= 0 {
				t.Fatalf("told of the turn under way is %v", told)
			}
			n.kill()
			end := time.Now()
			if away != nil {
				away(a)
			}
			n.startProcess()
			notLess(t, before, n.vgpu("a"))
			if away == nil {
				n.untilState("a", "HOLDING")
				n.untilState("b", "PENDING")
				notLess(t, before, n.vgpu("a"))
				end = time.Now()
				a.ask("done", "done: ")
			}
			b.expect("work: passed")
			passed := time.Now()
			now := n.vgpu("a")
			notLess(t, before, now)
			held := now.GetUsage().GetHeld().AsDuration()
			if now.GetUsage().GetTurns() != 1 || held < told || held > time.Since(start) {
				t.Errorf("a was told %v, and has %v", told, now.GetUsage())
			}
			if what == "its process dies" {
				if held != told { // nobody knows of more
					t.Errorf("a was told %v, and has %v", told, held)
				}
			} else if held < end.Sub(granted) {
				t.Errorf("a held for %v, of at least %v", held, end.Sub(granted))
			}
			if g := n.gpu(0); g.GetTurns() != 1 || g.GetHeld().AsDuration() != held {
				t.Errorf("a held for %v, and its GPU is %v", held, g)
			}
			b.ask("done", "done: ")
			b.kill()
			n.until("the turn of b has ended", func() bool { return n.usage("b").GetTurns() == 1 })
			if w := n.usage("b").GetWaited().AsDuration(); w < end.Sub(waits) || w > passed.Sub(granted) {
				t.Errorf("b waited for %v, of at least %v", w, end.Sub(waits))
			}
		})
	}
}

// What a client did before its turn is not part of it, and what it did before the
// kill is.
func TestIdleGapsBeforeAKillAreNotHeld(t *testing.T) {
	n := newProcessNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	b.ask("work", "work: passed")
	b.ask("done", "done: IDLE")
	a.ask(fmt.Sprint("gap ", time.Hour.Nanoseconds()), "gap: ok") // in an earlier turn
	start := time.Now()
	a.ask("work", "work: passed")
	granted := time.Now()
	const gap = 100 * time.Millisecond
	n.until("there was time for a gap", func() bool { return time.Since(granted) > 3*gap/2 })
	a.ask(fmt.Sprint("gap ", gap.Nanoseconds()), "gap: ok")
	n.kill()
	n.startProcess()
	a.expect("reconnected")
	b.expect("reconnected")
	n.untilState("a", "HOLDING")
	end := time.Now()
	a.ask("done", "done: IDLE")
	b.ask("work", "work: passed")
	u := n.usage("a")
	if held := u.GetHeld().AsDuration(); u.GetTurns() != 1 || held < end.Sub(granted)-gap || held > time.Since(start)-gap {
		t.Errorf("a has %v, of about %v", u, end.Sub(granted)-gap)
	}
}

func TestAnOverrunIsKept(t *testing.T) {
	n := newProcessNode(t, settings{quantum: time.Millisecond, drain: 10 * time.Millisecond})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.ask("work", "work: passed")
	n.kill() // and nobody asked
	a.kill()
	n.startProcess()
	b.ask("done", "done: ")
	if u := n.usage("a"); u.GetOverruns() != 1 || u.GetTurns() != 1 {
		t.Errorf("a has %v", u)
	}
}

func TestADrainThatEndsBeforeAKillIsAccounted(t *testing.T) {
	n := newProcessNode(t, settings{quantum: time.Millisecond})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	granted := time.Now()
	b.tell("work")
	n.untilState("a", "DRAINING")
	pause(t, n.pid) // it sees no more
	end := time.Now()
	a.ask("silent", "silent: ok")
	n.until("it has drained", func() bool { return strings.HasPrefix(a.ask("word", "word: "), "CLOSED") })
	n.kill()
	n.startProcess()
	b.expect("work: passed")
	u := n.usage("a")
	if u.GetTurns() != 1 || u.GetDrains() != 1 || u.GetHeld().AsDuration() < end.Sub(granted) {
		t.Errorf("a has %v", u)
	}
	if g := n.gpu(0); g.GetTurns() != 1 || g.GetHeld().AsDuration() != u.GetHeld().AsDuration() {
		t.Errorf("the GPU has %v", g)
	}
}

func TestALoneHolderIsShownToHold(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	a := n.client("a")
	a.ask("work", "work: passed")
	start := time.Now()
	n.until("it holds for a millisecond", func() bool { return n.usage("a").GetHeld().AsDuration() >= time.Millisecond })
	if held := n.usage("a").GetHeld().AsDuration(); held > time.Since(start)+time.Minute {
		t.Errorf("it holds for %v", held)
	}
	a.ask("done", "done: IDLE")
	idle := n.usage("a").GetHeld().AsDuration()
	if again := n.usage("a").GetHeld().AsDuration(); again != idle {
		t.Errorf("idle it holds on, from %v to %v", idle, again)
	}
	if u := n.usage("a"); u.GetTurns() != 0 {
		t.Errorf("its turn has ended: %v", u)
	}
}

func TestWhatIsToldNeverGetsLessWhateverAClientWrites(t *testing.T) {
	n := newProcessNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.tell("stats 7 8")
	a.ask("work", "work: passed")
	n.until("it was told", func() bool {
		v := n.vgpu("a")
		return v.GetUsage().GetHeld().AsDuration() >= time.Millisecond && v.GetUngated() == 7
	})
	before := n.vgpu("a")
	check := func() {
		t.Helper()
		now := n.vgpu("a")
		notLess(t, before, now)
		before = now
	}
	a.ask("lie", "lie: ok")
	check()
	n.kill()
	a.kill()
	n.startProcess()
	check()
	b.ask("work", "work: passed") // the turn of a has ended
	check()
	a = n.client("a")
	check()
	b.ask("done", "done: ")
	a.ask("work", "work: passed")
	if before.GetUsage().GetSubmissions() != 1 || n.usage("a").GetSubmissions() != 2 {
		t.Errorf("after another submission it is %v, was %v", n.usage("a"), before)
	}
	n.kill()
	n.startProcess()
	check()
}

func TestARemovedVGPUIsNotChargedForItsIdleTime(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	a := n.client("a")
	a.ask("work", "work: passed")
	a.ask("done", "done: IDLE")
	held := n.usage("a").GetHeld().AsDuration()
	n.delete("a")
	n.until("it is gone", func() bool { return n.vgpu("a") == nil })
	if got := n.gpu(0).GetHeld().AsDuration(); got != held {
		t.Errorf("%s, not %s", got, held)
	}
}

func TestARemovedVGPUsTurnStaysInTheAccountOfItsGPU(t *testing.T) {
	n := newProcessNode(t, settings{})
	n.create("a")
	a := n.client("a")
	a.ask("work", "work: passed")
	n.delete("a")
	a.kill()
	n.until("a is gone", func() bool { return n.vgpu("a") == nil })
	before := n.gpu(0)
	if before.GetTurns() != 1 || before.GetHeld().AsDuration() <= 0 {
		t.Fatalf("%v", before)
	}
	n.kill()
	n.startProcess()
	if now := n.gpu(0); now.GetTurns() != 1 || now.GetHeld().AsDuration() != before.GetHeld().AsDuration() {
		t.Errorf("it had %v, and has %v", before, now)
	}
}
