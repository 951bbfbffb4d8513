// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
)

// Whatever happened to the record of a container that computes, nobody computes
// beside it after a restart, and it keeps its directory.
func TestALostRecordDoesNotGiveTwoHolders(t *testing.T) {
	for what, spoil := range map[string]func(path string) error{
		"it is cut off": func(path string) error { return os.Truncate(path, 20) },
		"it is empty":   func(path string) error { return os.Truncate(path, 0) },
		"it can not be read": func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink(filepath.Base(path), path))
		},
		"it is about another": func(path string) error {
			return os.WriteFile(path, []byte(`{"version":1,"id":"0123456789abcdef","dir":"0123456789abcdef-0123456789abcdef"}`), 0o600)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel() // waits for the reconnection deadline
			n := newProcessNode(t, settings{drain: reconnect})
			dir := n.create("a")
			n.create("b")
			a, b := n.client("a"), n.client("b")
			a.ask("work", "work: passed")
			b.tell("work")
			n.untilState("b", "PENDING")
			n.kill()
			if err := spoil(filepath.Join(n.state, "v", filepath.Base(dir)+".json")); err != nil {
				t.Fatal(err)
			}
			n.startProcess()
			if g := n.gpu(0); g.GetState() != "CORDONED" {
				t.Errorf("the GPU is %s", g.GetState())
			}
			a.expect("reconnected")
			b.expect("reconnected")
			n.until("the GPU is given to whoever had it", func() bool { return n.gpu(0).GetState() != "CORDONED" })
			if g := n.gpu(0); g.GetHolder() != strings.Split(filepath.Base(dir), "-")[0] {
				t.Errorf("%v", g)
			}
			if b.passed() {
				t.Fatal("b passed beside a")
			}
			a.ask("done", "done: ")
			b.expect("work: passed")
			b.ask("done", "done: ")

			// It goes on as a vGPU, also over the next restart, until it is deleted.
			a.ask("work", "work: passed")
			n.kill()
			n.startProcess()
			a.expect("reconnected")
			b.expect("reconnected")
			b.tell("work")
			n.untilState("b", "PENDING")
			if b.passed() {
				t.Fatal("b passed beside a")
			}
			a.kill()
			b.expect("work: passed")
			n.delete("a")
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("its directory is left: %v", err)
			}
		})
	}
}

func TestALostRecordWithoutADirectoryHoldsUpTheOthersForAWhileOnly(t *testing.T) {
	t.Parallel() // waits for the reconnection deadline
	n := newProcessNode(t, settings{drain: reconnect})
	dir := n.create("a")
	n.create("b")
	n.kill()
	record := filepath.Join(n.state, "v", filepath.Base(dir)+".json")
	if err := errors.Join(os.RemoveAll(dir), os.Truncate(record, 10)); err != nil {
		t.Fatal(err)
	}
	n.startProcess()
	if g := n.gpu(0); g.GetState() != "CORDONED" {
		t.Errorf("the GPU is %s", g.GetState())
	}
	n.client("b").ask("work", "work: passed")
	n.until("the record is removed", func() bool {
		_, err := os.Lstat(record)
		return errors.Is(err, os.ErrNotExist)
	})
}

func TestAStoreThatCanNotBeReadCostsNoDirectory(t *testing.T) {
	state := filepath.Join(t.TempDir(), "vgpu")
	cfg := settings{}.config(state)
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	d, err := newDaemon(cfg, gputest.New(1), discard())
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	id := strings.Repeat("0", 16)
	dir, err := makeDir(d.dirs, id, 1)
	if err != nil {
		t.Fatal(err)
	}
	d.loop.store.dir = filepath.Join(state, "nowhere")
	d.restore()
	if _, err := os.Stat(filepath.Join(d.dirs, dir, "vgpu.json")); err != nil {
		t.Errorf("a directory was removed: %v", err)
	}
	if d.loop.current[id] == nil || d.loop.order[0].causes[causeRecovering] == "" {
		t.Error("a vGPU of which nothing is known is not waited for")
	}
}

// Only a process that is dead for certain is not waited for.
func TestAProcessThatCanNotBeOpenedCountsAsAlive(t *testing.T) {
	cfg := settings{}.config(filepath.Join(t.TempDir(), "vgpu"))
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	d, err := newDaemon(cfg, gputest.New(1), discard())
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	start, err := startTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	self := process{PID: os.Getpid(), Start: start}
	reused := process{PID: os.Getpid(), Start: start + 1}
	v := &vgpu{rec: record{Boot: d.loop.boot}}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Cur: 0, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	d.loop.expect(v, []pageRecord{{process: self}})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if len(v.expected) != 1 || v.expected[0].pidfd >= 0 || !v.missing() {
		t.Fatalf("out of descriptors, expected are %v", v.expected)
	}
	d.loop.expect(v, []pageRecord{{process: reused}})
	if len(v.expected) != 1 {
		t.Errorf("a process that is dead is expected")
	}
	if fateOf(reused, 1) != gone {
		t.Error("a look does not see that a process is dead")
	}
}

func TestAVGPUWhoseSocketCanNotBeMadeKeepsItsTurn(t *testing.T) {
	n := newNode(t, settings{})
	dir := n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	n.stop()
	hindrance := filepath.Join(dir, ".sock")
	if err := os.Mkdir(hindrance, 0o700); err != nil {
		t.Fatal(err)
	}
	n.start()
	b.expect("reconnected")
	if n.gpu(0).GetState() != "CORDONED" || b.passed() {
		t.Fatalf("the GPU is %s", n.gpu(0).GetState())
	}
	if err := os.Remove(hindrance); err != nil {
		t.Fatal(err)
	}
	n.daemon.relisten()
	a.expect("reconnected")
	n.untilState("b", "PENDING")
	if b.passed() {
		t.Fatal("b passed beside a")
	}
	a.ask("done", "done: ")
	b.expect("work: passed")
}
