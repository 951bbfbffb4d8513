// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
)

// Whatever happened to the record of a container that computes, nobody computes
// beside it after a restart, and it keeps its directory.
func TestALostRecordDoesNotGiveTwoHolders(t *testing.T) {
	of := func(change func(k key, b *bolt.Bucket, old []byte) error) func(*node, string) {
		return func(n *node, name string) {
			n.editStore(func(tx *bolt.Tx) error {
				b := tx.Bucket([]byte(recordBucket))
				return change(key{recordBucket, name}, b, bytes.Clone(b.Get([]byte(name))))
			})
		}
	}
	file := func(change func(path string) error) func(*node, string) {
		return func(n *node, _ string) {
			if err := change(filepath.Join(n.state, storeFile)); err != nil {
				n.t.Fatal(err)
			}
		}
	}
	for what, spoil := range map[string]func(n *node, name string){
		"it is cut off": of(func(k key, b *bolt.Bucket, old []byte) error { return b.Put([]byte(k.name), old[:20]) }),
		"it is empty":   of(func(k key, b *bolt.Bucket, _ []byte) error { return b.Put([]byte(k.name), nil) }),
		"one bit of it is another": of(func(k key, b *bolt.Bucket, old []byte) error {
			old[len(old)/2] ^= 1
			return b.Put([]byte(k.name), old)
		}),
		"it is about another": of(func(k key, b *bolt.Bucket, _ []byte) error {
			return b.Put([]byte(k.name), seal(k, []byte(`{"version":1,"id":"0123456789abcdef","dir":"0123456789abcdef-0123456789abcdef"}`)))
		}),
		"the store is cut off": file(func(path string) error { return os.Truncate(path, 9000) }),
		"the store is empty":   file(func(path string) error { return os.Truncate(path, 0) }),
		"the store is gone":    file(os.Remove),
		"the store is of a newer vgpud": func(n *node, _ string) {
			n.editStore(func(tx *bolt.Tx) error {
				k := key{nodeBucket, schemaKey}
				return tx.Bucket([]byte(nodeBucket)).Put([]byte(schemaKey), seal(k, []byte("2")))
			})
		},
		"the store is no database": file(func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("text "), 9999), 0o600) }),
	} {
		t.Run(what, func(t *testing.T) {
			n := newProcessNode(t, settings{})
			dir := n.create("a")
			n.create("b")
			a, b := n.client("a"), n.client("b")
			a.ask("work", "work: passed")
			b.tell("work")
			n.untilState("b", "PENDING")
			n.kill()
			spoil(n, filepath.Base(dir))
			n.startProcess()
			if g := n.gpu(0); g.GetState() != "CORDONED" {
				t.Errorf("the GPU is %s", g.GetState())
			}
			_, err := os.Lstat(filepath.Join(n.state, storeFile+keptSuffix))
			if all := strings.HasPrefix(what, "the store") && what != "the store is gone"; (err == nil) != all {
				t.Errorf("the store is kept beside: %v", err)
			}
			a.expect("reconnected")
			b.expect("reconnected")
			n.waitsNoLonger()
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
			n.waitsNoLonger() // it may have been killed before it had made a new record
			b.tell("work")
			n.until("b waits", func() bool { return n.gpu(0).GetPending() == 1 })
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
	n := newProcessNode(t, settings{})
	dir := n.create("a")
	n.create("b")
	n.kill()
	name := filepath.Base(dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	n.editStore(func(tx *bolt.Tx) error { return tx.Bucket([]byte(recordBucket)).Put([]byte(name), []byte("x")) })
	n.startProcess()
	if g := n.gpu(0); g.GetState() != "CORDONED" {
		t.Errorf("the GPU is %s", g.GetState())
	}
	b := n.process("b")
	b.ask("start "+n.created["b"], "start: ")
	b.tell("bind")
	n.waitsNoLonger()
	b.expect("bind: GPU-")
	b.ask("work", "work: passed")
	n.until("the record is removed", func() bool { return n.stored(recordBucket)[name] == nil })
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
