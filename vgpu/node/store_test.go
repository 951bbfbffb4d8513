// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// stored is what stands in a bucket of the store, whose vgpud may run.
func (n *node) stored(bucket string) map[string][]byte {
	n.t.Helper()
	all := make(map[string][]byte)
	// Of a copy: vgpud has the file locked, and writes it in place.
	n.until("the store can be read", func() bool {
		data, err := os.ReadFile(filepath.Join(n.state, storeFile))
		return err == nil && checkFile(data) == nil && viewStore(n, data, bucket, all)
	})
	return all
}

func viewStore(n *node, data []byte, bucket string, all map[string][]byte) bool {
	n.t.Helper()
	path := filepath.Join(n.t.TempDir(), "copy.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		n.t.Fatal(err)
	}
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		n.t.Fatal(err)
	}
	defer db.Close()
	return db.View(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(bucket)).ForEach(func(k, v []byte) error {
			all[string(k)] = bytes.Clone(v)
			return nil
		})
	}) == nil
}

// editStore changes the store of a vgpud that does not run.
func (n *node) editStore(change func(*bolt.Tx) error) {
	n.t.Helper()
	db, err := openBolt(filepath.Join(n.state, storeFile))
	if err != nil {
		n.t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(change); err != nil {
		n.t.Fatal(err)
	}
}

// failingStore lets each write to the store fail until the returned function is
// called.
func (n *node) failingStore() func() {
	n.t.Helper()
	s := n.daemon.loop.store
	swap := func(db *bolt.DB) (was *bolt.DB) {
		done := make(chan struct{})
		s.remove("nothing", func(error) { // on the goroutine that has it
			was, s.db = s.db, db
			close(done)
		})
		<-done
		return was
	}
	closed, err := openBolt(filepath.Join(n.t.TempDir(), "closed.db"))
	if err != nil {
		n.t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		n.t.Fatal(err)
	}
	was := swap(closed)
	return func() { swap(was) }
}

// saved writes a record and waits for it.
func (s *store) saved(r *record) error {
	done := make(chan error, 1)
	s.save(r, func(err error) { done <- err })
	return <-done
}

// someRecord is a record like that of a container.
func someRecord(i int) *record {
	id := fmt.Sprintf("%016x", i)
	return &record{
		Version: recordVersion, ID: id, Dir: id + "-" + id,
		Container: fmt.Sprintf("container-%d", i), Bundle: "/run/" + strings.Repeat("x", i%97*7),
		Annotations: map[string]string{"vgpu-shim.dev/weight": fmt.Sprint(i)},
		Pages:       []pageRecord{{process: process{PID: i + 1, Start: uint64(i)}, Client: uint64(i), Inode: uint64(i)}},
	}
}

// vgpud removes what a record names.
func TestARecordOfADirectoryElsewhereIsDamaged(t *testing.T) {
	for dir, damaged := range map[string]bool{
		"0123456789abcdef-0123456789abcdef":          false,
		"0123456789abcdef-/../../../home":            true,
		"0123456789abcdef-0123456789abcdef/../../..": true,
		"0123456789abcdef-":                          true,
	} {
		k := key{recordBucket, dir}
		b, err := json.Marshal(record{Version: recordVersion, ID: "0123456789abcdef", Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readRecord(k, seal(k, b)); (err != nil) != damaged {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// filledStore makes a store with n records, whose vGPUs have directories.
func filledStore(t *testing.T, dir string, n int) (path, dirs string) {
	t.Helper()
	path, dirs = filepath.Join(dir, storeFile), filepath.Join(dir, "c")
	if err := os.Mkdir(dirs, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := openStore(path, dirs, discard())
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		r := someRecord(i)
		s.save(r, nil)
		if err := os.Mkdir(filepath.Join(dirs, r.Dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.close()
	return path, dirs
}

func transaction(t *testing.T, path string) uint64 {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newestMeta(data)
	if err != nil {
		t.Fatal(err)
	}
	return m.txid
}

func TestWhatIsQueuedIsWrittenInOneTransaction(t *testing.T) {
	path, dirs := filledStore(t, t.TempDir(), 0)
	s, err := openStore(path, dirs, discard())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	goOn, blocked := make(chan struct{}), make(chan struct{})
	s.remove("blocker", func(error) { close(blocked); <-goOn })
	<-blocked
	before := transaction(t, path)
	const n = 100
	told := make(chan error, 2*n)
	for i := range n {
		s.save(&record{Dir: someRecord(i).Dir}, func(err error) { told <- err }) // overtaken
		s.save(someRecord(i), func(err error) { told <- err })
	}
	close(goOn)
	for range 2 * n {
		if err := <-told; err != nil {
			t.Fatal(err)
		}
	}
	if after := transaction(t, path); after != before+1 {
		t.Errorf("%d transactions", after-before)
	}
	records, unusable := s.load()
	if len(records) != n || len(unusable) != 0 {
		t.Errorf("%d records, unusable are %v", len(records), unusable)
	}
}

func TestManyCreatesAtOnceCostOneCommit(t *testing.T) {
	n := newNode(t, settings{})
	s := n.daemon.loop.store
	goOn, blocked := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(release)
	s.remove("blocker", func(error) { close(blocked); <-goOn })
	<-blocked
	before := transaction(t, s.path)
	const creates = 20
	created := make(chan error, creates)
	var requests []*v1.CreateRequest
	for i := range creates {
		requests = append(requests, n.request(fmt.Sprint("c", i)))
	}
	for _, r := range requests {
		go func() {
			_, err := n.control.Create(t.Context(), r)
			created <- err
		}()
	}
	waiting := func() (all int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.queue)
	}
	// Those whose ids share a lock come one after the other.
	together := 0
	n.until("most wait for the store", func() bool {
		together = waiting()
		return together >= creates*2/3
	})
	release()
	for range creates {
		if err := <-created; err != nil {
			t.Error(err)
		}
	}
	if after, most := transaction(t, s.path), uint64(1+creates-together); after > before+most {
		t.Errorf("%d transactions for %d that waited together and %d others, want at most %d", after-before, together, creates-together, most)
	}
}

// inMemory is a directory of a test that writes many files.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "vgpu-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Whatever happened to the file: vgpud starts, each record is what was written or
// is known to be unusable, and the store can be written.
func TestNoDamageToTheStoreStopsVgpudOrIsTakenForARecord(t *testing.T) {
	dir := inMemory(t)
	const n = 120 // so that there are branch pages
	path, dirs := filledStore(t, dir, n)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newestMeta(whole)
	if err != nil {
		t.Fatal(err)
	}
	used := int(m.pages * m.pageSize)
	if !bytes.Contains(whole[:used], []byte("container-7")) || used < 10*int(m.pageSize) {
		t.Fatalf("only %d bytes are in use", used)
	}
	try := func(what string, damaged []byte) (usable int) {
		t.Helper()
		if err := errors.Join(os.RemoveAll(path+keptSuffix), os.WriteFile(path, damaged, 0o600)); err != nil {
			t.Fatal(err)
		}
		s, err := openStore(path, dirs, discard())
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer s.close()
		records, unusable := s.load()
		for _, r := range records {
			var i int
			if _, err := fmt.Sscanf(r.ID, "%x", &i); err != nil || !reflect.DeepEqual(&r, someRecord(i)) {
				t.Fatalf("%s: there is a record %+v", what, r)
			}
		}
		for i := range n {
			name := someRecord(i).Dir
			if unusable[name] == nil && !slices.ContainsFunc(records, func(r record) bool { return r.Dir == name }) {
				t.Fatalf("%s: nothing is known of %s", what, name)
			}
		}
		if kept, err := os.ReadFile(path + keptSuffix); err == nil && (!bytes.Equal(kept, damaged) || len(records) > 0) {
			t.Fatalf("%s: what is kept is not what was there", what)
		} else if err != nil && len(records) == 0 {
			t.Fatalf("%s: nothing is kept", what)
		}
		if err := s.saved(someRecord(n + 1)); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return len(records)
	}
	if got := try("nothing", whole); got != n {
		t.Fatalf("%d records of an undamaged store", got)
	}
	for _, size := range []int{0, 1, 100, 4096, 8192, 9000, 3 * 4096, used / 2, used - 1, used - 4096} {
		try(fmt.Sprintf("cut off at %d", size), whole[:size])
	}
	if got := try("without what it reserves", whole[:used]); got != n {
		t.Fatalf("%d records", got)
	}
	for at := 0; at < used; at += 4096 {
		for what, fill := range map[string]byte{"zeroed": 0, "filled": 0xff} {
			damaged := bytes.Clone(whole)
			copy(damaged[at:], bytes.Repeat([]byte{fill}, 4096))
			try(fmt.Sprintf("%s at %d", what, at), damaged)
		}
		if at >= 4096 {
			damaged := bytes.Clone(whole)
			copy(damaged[at:at+4096], whole[at-4096:])
			try(fmt.Sprintf("page before at %d", at), damaged)
		}
	}
	random := rand.New(rand.NewPCG(1, 1))
	for range 1500 {
		at, bit := random.IntN(used), random.IntN(8)
		if random.IntN(2) == 0 {
			at = at/4096*4096 + random.IntN(64) // where a page says what it is
		}
		damaged := bytes.Clone(whole)
		damaged[at] ^= 1 << bit
		try(fmt.Sprintf("bit %d at %d", bit, at), damaged)
	}
	if what, err := os.ReadDir(dir); err != nil || len(what) > 3 {
		t.Errorf("left are %v", what)
	}
}

// A branch page that leads back to itself: bbolt would follow it for ever.
func TestAStoreThatLeadsInACircleIsDamaged(t *testing.T) {
	path, _ := filledStore(t, t.TempDir(), 120)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for at := 0; at < len(whole); at += 4096 {
		if p := parsePage(whole[at : at+4096]); p.flags == branchPage && p.count > 0 {
			damaged := bytes.Clone(whole)
			native.PutUint64(damaged[at+pageHeader+8:], p.id)
			if err := checkFile(damaged); err != nil { // else it is a free page
				found++
				if want := fmt.Sprintf("page %d is used twice", p.id); err.Error() != want {
					t.Errorf("%v, not %q", err, want)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no branch page is in use")
	}
}

func TestAStoreThatBreaksWhileVgpudRunsIsMadeAnew(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "weight=7")
	path := filepath.Join(n.state, storeFile)
	if err := os.Truncate(path, 0); err != nil { // a fault in the mapping
		t.Fatal(err)
	}
	n.create("b", "weight=8")
	if _, err := os.Stat(path + keptSuffix); err != nil {
		t.Errorf("the broken one is not kept: %v", err)
	}
	n.stop()
	n.start()
	if a, b := n.vgpu("a"), n.vgpu("b"); a.GetWeight() != 7 || b.GetWeight() != 8 {
		t.Errorf("after a restart there are %v and %v", a, b)
	}
}

func TestAFullDiskFailsWhatIsNewAndNothingElse(t *testing.T) {
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatalf("failed to mount a small tmpfs (this test needs root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	path, dirs := filledStore(t, mount, 3)
	s, err := openStore(path, dirs, discard())
	if err != nil {
		t.Fatal(err)
	}
	fill := filepath.Join(mount, "fill")
	if err := os.WriteFile(fill, make([]byte, 4<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	// The usual writes have their room.
	for i := range 20 {
		if err := s.saved(someRecord(i)); err != nil {
			t.Fatal(err)
		}
	}
	huge := someRecord(20)
	huge.Bundle = strings.Repeat("x", 2<<20)
	goOn, blocked := make(chan struct{}), make(chan struct{})
	s.remove("blocker", func(error) { close(blocked); <-goOn })
	<-blocked
	// In one batch: only what does not fit fails.
	told := make(chan error, 2)
	s.save(huge, func(err error) { told <- err })
	s.save(someRecord(21), func(err error) { told <- err })
	close(goOn)
	if err := <-told; !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a record that does not fit: %v", err)
	}
	if err := <-told; err != nil {
		t.Errorf("one that does: %v", err)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	if err := s.saved(huge); err != nil {
		t.Errorf("with room again: %v", err)
	}
	s.close()
	if s, err = openStore(path, dirs, discard()); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if records, unusable := s.load(); len(records) != 22 || len(unusable) != 0 {
		t.Errorf("%d records, unusable are %v", len(records), unusable)
	}
}

func TestADamagedStoreOnAFullDiskDoesNotStopVgpud(t *testing.T) {
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=2m"); err != nil {
		t.Fatalf("failed to mount a small tmpfs (this test needs root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	path, dirs := filledStore(t, mount, 3)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 100), 0); err != nil {
		t.Fatal(err)
	}
	fill := filepath.Join(mount, "fill")
	if err := os.WriteFile(fill, make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	s, err := openStore(path, dirs, discard())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if _, unusable := s.load(); len(unusable) != 3 {
		t.Errorf("unusable are %v", unusable)
	}
	if err := s.saved(someRecord(4)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v", err)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	if err := s.saved(someRecord(4)); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if data, err := os.ReadFile(path); err != nil || checkFile(data) != nil || !bytes.Contains(data, []byte("container-4")) {
		t.Errorf("the store was not made: %v", err)
	}
}

func TestWhatTheOperatorSetIsKept(t *testing.T) {
	dir := t.TempDir()
	path, dirs := filledStore(t, dir, 1)
	s, err := openStore(path, dirs, discard())
	if err != nil {
		t.Fatal(err)
	}
	set := func(name string, value []byte) {
		done := make(chan error, 1)
		s.saveNode(name, value, func(err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	set("policy", []byte(`"fair"`))
	set("cordon", []byte(`{}`))
	set("cordon", nil)
	s.close()
	if s, err = openStore(path, dirs, discard()); err != nil {
		t.Fatal(err)
	}
	if v, err := s.loadNode("policy"); err != nil || string(v) != `"fair"` {
		t.Errorf("policy is %q, %v", v, err)
	}
	if v, err := s.loadNode("cordon"); err != nil || v != nil {
		t.Errorf("cordon is %q, %v", v, err)
	}
	s.close()
	db, err := openBolt(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(nodeBucket)).Put([]byte("policy"), []byte(`00000000 "fixed"`))
	}), db.Close()); err != nil {
		t.Fatal(err)
	}
	if s, err = openStore(path, dirs, discard()); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if v, err := s.loadNode("policy"); err == nil {
		t.Errorf("a damaged policy is %q", v)
	}
	if records, _ := s.load(); len(records) != 1 {
		t.Error("the record went with it")
	}
}

func TestAStoreThatAnotherProgramHasOpenIsNotTaken(t *testing.T) {
	path, dirs := filledStore(t, t.TempDir(), 1)
	db, err := openBolt(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := openStore(path, dirs, discard()); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(path + keptSuffix); err == nil {
		t.Error("it was moved aside")
	}
}
