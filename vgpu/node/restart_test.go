// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// directory identifies the inode that a container has mounted.
func directory(t *testing.T, path string) (dev, ino uint64) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Dev, st.Ino
}

func TestTurnsGoOnAfterVgpudIsKilled(t *testing.T) {
	n := newProcessNode(t, settings{gpus: 1})
	n.create("a")
	n.create("b")
	n.create("c")
	a, b, c := n.client("a"), n.client("b"), n.client("c")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	_, before := directory(t, n.created["a"])

	n.kill()
	// While vgpud is away: the holder goes on, a newcomer waits.
	a.ask("work", "work: passed")
	c.tell("work")
	n.startProcess()
	if _, after := directory(t, n.created["a"]); after != before {
		t.Error("the directory that is mounted in the container is another one now")
	}
	for _, p := range []*clientProcess{a, b, c} {
		p.expect("reconnected")
	}
	n.untilState("a", "HOLDING")
	n.untilState("b", "PENDING")
	n.untilState("c", "PENDING")
	if b.passed() || c.passed() {
		t.Fatal("another one was granted beside the holder")
	}
	a.ask("done", "done: ")
	n.until("a waiter passes", func() bool { return b.passed() || c.passed() })
	b.tell("done")
	c.tell("done")
	n.until("both are through", func() bool {
		return n.vgpu("b").GetUsage().GetSubmissions() == 1 && n.vgpu("c").GetUsage().GetSubmissions() == 1
	})
}

func TestAfterARestartAnIdleHolderIsTakenFrom(t *testing.T) {
	n := newProcessNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	a.ask("done", "done: IDLE")
	n.kill()
	n.startProcess()
	a.expect("reconnected")
	b.expect("reconnected")
	n.untilState("a", "IDLE")
	b.ask("work", "work: passed")
}

func TestAHolderThatDiedWhileVgpudWasAwayHoldsNothing(t *testing.T) {
	n := newProcessNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	n.kill()
	a.kill()
	n.startProcess()
	b.expect("work: passed")
}

func TestNothingIsGrantedBeforeAStoppedProcessIsGivenUp(t *testing.T) {
	n := newProcessNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	n.kill()
	a.pause()
	n.startProcess()
	b.expect("reconnected")
	if g := n.gpu(0); g.GetState() != "CORDONED" || !strings.Contains(g.GetReason(), "restarted") {
		t.Errorf("GPU: %v", g)
	}
	if b.passed() {
		t.Fatal("b was granted before a was back")
	}
	n.waitsNoLonger()
	b.expect("work: passed") // an overrun like any other
	// When it is back its open word gets it no turn.
	a.signal(syscall.SIGCONT)
	a.expect("reconnected")
	a.ask("silent", "silent: ok")
	n.until("the word of a is closed", func() bool { return strings.HasPrefix(a.ask("word", "word: "), "CLOSED") })
	b.ask("done", "done: ")
	a.ask("work", "work: passed")
}

func TestAProcessThatDoesNotComeBackIsGivenUp(t *testing.T) {
	t.Parallel() // waits for the reconnection deadline
	n := newProcessNode(t, settings{drain: 100 * time.Millisecond})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	n.kill()
	a.pause()
	n.startProcess()
	b.expect("work: passed")
}

func TestARestartInADrainFinishesIt(t *testing.T) {
	n := newProcessNode(t, settings{quantum: time.Millisecond})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("a", "DRAINING")
	n.kill()
	n.startProcess()
	a.expect("reconnected")
	n.untilState("a", "DRAINING")
	n.untilState("b", "PENDING")
	if b.passed() {
		t.Fatal("b passed beside the drain")
	}
	a.ask("silent", "silent: ok")
	b.expect("work: passed")
}

// anOverrunIsBackFirst restarts vgpud when a is an overrun beside b, which holds
// and is stopped, and c waits. The others are back.
func anOverrunIsBackFirst(t *testing.T, annotations ...string) (n *node, a, b, c *clientProcess) {
	t.Helper()
	n = newProcessNode(t, settings{quantum: time.Millisecond, drain: 100 * time.Millisecond})
	n.create("a", annotations...)
	n.create("b")
	n.create("c")
	a, b, c = n.client("a"), n.client("b"), n.client("c")
	a.ask("work", "work: passed")
	b.ask("work", "work: passed") // beside a
	n.untilState("a", "OVERRUN")
	n.untilState("b", "HOLDING")
	n.kill()
	n.settings = settings{gpus: 1} // no quantum and no drain ends by itself
	b.pause()
	c.tell("work")
	n.startProcess()
	a.expect("reconnected")
	c.expect("reconnected")
	return n, a, b, c
}

// An overrun that is back before the holder beside it must not be taken for the
// holder: it would give the GPU away while the other still computes.
func TestAnOverrunThatIsBackFirstDoesNotHold(t *testing.T) {
	n, a, b, c := anOverrunIsBackFirst(t)
	b.signal(syscall.SIGCONT)
	b.expect("reconnected")
	n.untilState("c", "PENDING")
	n.untilState("b", "HOLDING")
	n.untilState("a", "DRAINING")
	a.ask("silent", "silent: ok")
	n.untilState("a", "IDLE")
	if c.passed() {
		t.Fatal("c passed beside b")
	}
	b.ask("done", "done: ")
	c.expect("work: passed")
}

func TestADeleteRightAfterARestartDoesNotForgetWhatDrains(t *testing.T) {
	n, a, b, c := anOverrunIsBackFirst(t)
	n.delete("a")
	b.signal(syscall.SIGCONT)
	b.expect("reconnected")
	n.untilState("a", "DRAINING")
	b.ask("done", "done: ")
	n.untilState("b", "IDLE")
	if c.passed() {
		t.Fatal("c passed beside a")
	}
	a.ask("silent", "silent: ok")
	c.expect("work: passed")
	n.until("a is gone", func() bool { return n.vgpu("a") == nil })
}

// Its container has the device node of that GPU alone.
func TestAnEarlyOverrunThatDiesRightAfterARestartKeepsItsGPU(t *testing.T) {
	n, a, b, _ := anOverrunIsBackFirst(t, "bind=early")
	a.kill()
	n.until("a is dead", func() bool { return n.vgpu("a").GetClients() == 0 })
	b.signal(syscall.SIGCONT)
	b.expect("reconnected")
	n.untilState("b", "HOLDING")
	if got := n.vgpu("a").GetGpus(); len(got) != 1 {
		t.Errorf("a is bound to %v", got)
	}
}

func TestARestartKeepsTheGPUOfEachContainer(t *testing.T) {
	n := newProcessNode(t, settings{gpus: 2})
	n.create("a")
	n.create("b")
	n.create("empty")
	a, b := n.client("a"), n.client("b")
	before := n.vgpu("b").GetGpus()[0]
	n.kill()
	n.startProcess()
	a.expect("reconnected")
	b.expect("reconnected")
	n.until("b is found again", func() bool { return n.vgpu("b").GetState() == "IDLE" })
	if after := n.vgpu("b").GetGpus()[0]; after != before {
		t.Errorf("b moved from %s to %s", before, after)
	}
	if got := b.ask("bind", "bind: "); got != before {
		t.Errorf("b is told %s, not %s", got, before)
	}
	if s := n.vgpu("empty").GetState(); s != "UNBOUND" {
		t.Errorf("empty is %s", s)
	}
	// What was made before the restart can still be used and removed.
	c := n.client("empty")
	c.ask("work", "work: passed")
	c.ask("done", "done: IDLE")
	n.delete("empty")
	if n.vgpu("empty") != nil {
		t.Error("empty is still there")
	}
}

func TestACleanStopIsLikeARestart(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	n.stop()
	n.start()
	a.expect("reconnected")
	b.expect("reconnected")
	n.untilState("b", "PENDING")
	a.ask("done", "done: ")
	b.expect("work: passed")
}

func TestADeletedContainersLiveProcessIsRememberedOverARestart(t *testing.T) {
	n := newProcessNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	n.delete("a")
	b.tell("work")
	n.untilState("b", "PENDING")
	n.kill()
	n.startProcess()
	b.expect("reconnected")
	if b.passed() || n.gpu(0).GetState() != "CORDONED" {
		t.Fatalf("GPU is %s", n.gpu(0).GetState())
	}
	a.kill()
	b.expect("work: passed")
	n.until("a is gone", func() bool { return n.vgpu("a") == nil })
}

func TestADeleteRightAfterARestartDoesNotForgetWhatRuns(t *testing.T) {
	n := newProcessNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	n.kill()
	a.pause() // so that it is not back before the Delete
	n.startProcess()
	n.delete("a")
	b.expect("reconnected")
	if b.passed() || n.gpu(0).GetState() != "CORDONED" {
		t.Fatalf("GPU is %s", n.gpu(0).GetState())
	}
	a.kill()
	b.expect("work: passed")
	n.until("a is gone", func() bool { return n.vgpu("a") == nil })
}

func TestARecordOfANewerVgpudIsKept(t *testing.T) {
	t.Parallel() // waits for the reconnection deadline
	n := newNode(t, settings{drain: reconnect})
	dir := n.create("a")
	n.stop()
	name := filepath.Base(dir)
	var newer string
	n.editStore(func(tx *bolt.Tx) error {
		newer = edit(t, tx, name, func(r map[string]any) { r["version"] = recordVersion + 1 })
		return nil
	})
	n.start()
	if n.vgpu("a") != nil {
		t.Error("a record of another version was used")
	}
	n.until("the record is kept", func() bool { return n.stored(keptBucket)[name] != nil })
	if left := string(n.stored(keptBucket)[name]); left != newer {
		t.Errorf("the record was touched: %q, not %q", left, newer)
	}
	if _, err := os.Stat(filepath.Join(dir, "vgpu.json")); err != nil {
		t.Errorf("its directory was touched: %v", err)
	}
	n.create("b") // and the rest goes on
	// Its container can be removed as any other.
	n.delete("a")
	n.until("its directory is removed", func() bool {
		_, err := os.Lstat(dir)
		return errors.Is(err, os.ErrNotExist)
	})
	n.until("its records are removed", func() bool {
		return n.stored(recordBucket)[name] == nil && n.stored(keptBucket)[name] == nil
	})
}

// edit changes a record and returns what it is in the store then.
func edit(t *testing.T, tx *bolt.Tx, name string, change func(map[string]any)) string {
	t.Helper()
	k := key{recordBucket, name}
	var r map[string]any
	data, err := unseal(k, tx.Bucket([]byte(recordBucket)).Get([]byte(name)))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	change(r)
	if data, err = json.Marshal(r); err != nil {
		t.Fatal(err)
	}
	sealed := seal(k, data)
	if err := tx.Bucket([]byte(recordBucket)).Put([]byte(name), sealed); err != nil {
		t.Fatal(err)
	}
	return string(sealed)
}

func TestAVGPUWhoseBundleIsGoneIsCollected(t *testing.T) {
	n := newNode(t, settings{})
	bundles := t.TempDir()
	r := n.request("a")
	r.Bundle = filepath.Join(bundles, "a")
	if err := os.Mkdir(r.Bundle, 0o700); err != nil {
		t.Fatal(err)
	}
	resp, err := n.control.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	n.created["a"] = resp.GetEdits().GetMounts()[0].GetSource()
	a := n.client("a")
	if err := os.Remove(r.Bundle); err != nil {
		t.Fatal(err)
	}
	n.stop()
	n.start() // collects at the start
	a.expect("reconnected")
	if n.vgpu("a") == nil {
		t.Fatal("collected though a process of it lives")
	}
	a.kill()
	n.stop()
	n.start()
	n.until("a is collected", func() bool { return n.vgpu("a") == nil })
	n.until("its directory is removed", func() bool {
		_, err := os.Stat(n.created["a"])
		return errors.Is(err, os.ErrNotExist)
	})
}

func TestAVGPUIsCollectedThoughItsBundlesPathIsInUseAgain(t *testing.T) {
	n := newNode(t, settings{})
	bundles := t.TempDir()
	for _, name := range []string{"a", "b", "new"} {
		if err := os.Mkdir(filepath.Join(bundles, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b"} {
		r := n.request(name)
		r.Bundle = filepath.Join(bundles, name)
		if _, err := n.control.Create(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	// The container was made anew, and this vgpud was not asked.
	if err := errors.Join(os.Remove(filepath.Join(bundles, "a")), os.Rename(filepath.Join(bundles, "new"), filepath.Join(bundles, "a"))); err != nil {
		t.Fatal(err)
	}
	n.stop()
	n.start() // collects at the start
	n.until("a is collected", func() bool { return n.vgpu("a") == nil })
	if n.vgpu("b") == nil {
		t.Error("b was collected, whose bundle is there")
	}
}

func TestAProcessThatBecomesAnotherProgramStartsAnew(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	a.ask("exec", "ready")
	a.ask("start "+n.created["a"], "start: ")
	a.ask("bind", "bind: ")
	b.ask("work", "work: passed") // what the old program held is gone with it
	if c := n.vgpu("a").GetClients(); c != 1 {
		t.Errorf("%d clients", c)
	}
}

func TestAProcessThatBecomesAProgramWithoutCUDAReleasesItsTurn(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	a.ask("exec", "ready") // and says nothing to vgpud
	b.expect("work: passed")
}

func TestASecondVgpudIsRefused(t *testing.T) {
	n := newNode(t, settings{})
	cfg := n.settings.config(n.state)
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	_, err := newDaemon(cfg, gputest.New(1), discard())
	if err == nil || !strings.Contains(err.Error(), "another vgpud runs on "+n.state) {
		t.Fatalf("got %v", err)
	}
	if _, err := n.control.Info(t.Context(), &v1.InfoRequest{}); err != nil {
		t.Errorf("the first one was disturbed: %v", err)
	}
}

func TestAPageIsRecordedBeforeItIsHandedOut(t *testing.T) {
	n := newNode(t, settings{})
	dir := n.create("a")
	a := n.process("a")
	a.ask("start "+dir, "start: ")
	name := filepath.Base(dir)
	r, err := readRecord(key{recordBucket, name}, n.stored(recordBucket)[name])
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Pages) != 1 || r.Pages[0].PID != a.cmd.Process.Pid || r.Pages[0].Start == 0 || r.Pages[0].Inode == 0 {
		t.Errorf("pages: %+v", r.Pages)
	}
	if got := a.ask("word", "word: "); !strings.HasPrefix(got, wire.StateName(wire.Closed)) {
		t.Error(got)
	}
}
