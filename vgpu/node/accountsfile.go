// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// The accounts are kept in a file that is mapped, in slots of a fixed size. The
// loop writes them by plain stores, so that a turn costs no system call, and what
// was stored is there for the next vgpud whenever this one is killed: the memory is
// the kernel's. (Not when the machine goes down; then accounts start anew.)
//
// A slot is a sequence number and two copies of the account. A write fills the copy
// that is not valid and then stores the next number, which makes it valid: after
// each single store the slot has either the account of before or the new one.
//
// A turn is accounted to a vGPU and to its GPUs. The GPUs' slots are written first,
// each with the number that the vGPU's slot is about to get (after): as long as it
// has not got it, the GPU's copy of before is the valid one. So the turn counts for
// all of them or for none.
//
// The file grows by chunks, which are allocated before they are mapped: a store to
// a page that a full tmpfs can not provide would kill vgpud by SIGBUS.

const (
	slotBytes  = 1024
	chunkSlots = 256 // a chunk is a multiple of the page size of every machine

	keyWords   = 8 // at most 64 bytes
	valueWords = 44
	copyWords  = 3 + keyWords + valueWords // sum, kind and length of key, key, number of values, values

	accountsVersion = 1
	accountsMagic   = 0x746363615f757067 // "gpu_acct"

	// spareSlots are free at least after reserve: for what comes up in the loop.
	spareSlots = 64
)

// words is memory that is written one word at a time, in the order of the program.
type words interface {
	load(i int) uint64
	store(i int, v uint64)
	publish(i int, v uint64) // after all that was stored before
}

// memory is mapped from the file; where there is none, it is vgpud's own.
type memory []uint64

func (m memory) load(i int) uint64       { return atomic.LoadUint64(&m[i]) }
func (m memory) store(i int, v uint64)   { m[i] = v }
func (m memory) publish(i int, v uint64) { atomic.StoreUint64(&m[i], v) }

// slot is a place for one account. Its writer is one goroutine at a time.
type slot struct {
	mem  words
	base int // of its first word in mem
	no   uint64
	seq  uint64 // as it stands in mem
}

// What a slot holds.
const (
	slotFree uint64 = iota
	slotVGPU
	slotGPU
)

// account is the content of a slot.
type account struct {
	kind   uint64
	key    string
	values [valueWords]uint64
	n      int // how many of them
}

// write puts a into the slot.
func (s *slot) write(a *account) {
	seq := s.seq + 1
	var w [copyWords]uint64
	n := a.encode(&w)
	w[0] = sumOf(seq, w[1:n])
	at := s.copyAt(seq)
	for i, v := range w[:n] {
		s.mem.store(at+i, v)
	}
	s.number(seq)
}

// number makes the copy of the write seq the valid one.
func (s *slot) number(seq uint64) {
	s.mem.publish(s.base, seq<<16|sumOf(seq, nil)&0xffff)
	s.seq = seq
}

// readNumber finds out which write was the last; false if that is damaged. In a
// slot that was never written it is 0.
func (s *slot) readNumber() bool {
	w := s.mem.load(s.base)
	s.seq = w >> 16
	return w == 0 || w&0xffff == sumOf(s.seq, nil)&0xffff
}

// copyAt is where the copy of a write stands.
func (s *slot) copyAt(seq uint64) int { return s.base + 1 + int(seq%2)*copyWords }

// read reads the copy of the write seq; false if it is damaged.
func (s *slot) read(seq uint64) (a account, ok bool) {
	if seq == 0 {
		return a, true
	}
	var w [copyWords]uint64
	at := s.copyAt(seq)
	for i := range w {
		w[i] = s.mem.load(at + i)
	}
	n, ok := a.decode(&w)
	return a, ok && w[0] == sumOf(seq, w[1:n])
}

func (a *account) encode(w *[copyWords]uint64) int {
	w[1] = a.kind<<32 | uint64(len(a.key))
	var key [8 * keyWords]byte
	copy(key[:], a.key)
	for i := range keyWords {
		w[2+i] = binary.NativeEndian.Uint64(key[8*i:])
	}
	w[2+keyWords] = uint64(a.n)
	return 3 + keyWords + copy(w[3+keyWords:], a.values[:a.n])
}

func (a *account) decode(w *[copyWords]uint64) (n int, ok bool) {
	var key [8 * keyWords]byte
	for i := range keyWords {
		binary.NativeEndian.PutUint64(key[8*i:], w[2+i])
	}
	length, values := uint64(uint32(w[1])), w[2+keyWords]
	if length > uint64(len(key)) || values > valueWords {
		return 0, false
	}
	a.kind, a.key, a.n = w[1]>>32, string(key[:length]), int(values)
	copy(a.values[:a.n], w[3+keyWords:])
	return 3 + keyWords + a.n, a.kind <= slotGPU
}

// sumOf tells a copy that was damaged, or is of another write.
func sumOf(seq uint64, w []uint64) uint64 {
	h := seq ^ 0x9e3779b97f4a7c15
	for _, v := range w {
		hi, lo := bits.Mul64(h^v, 0xd6e8feb86659fd93)
		h = hi ^ lo ^ bits.RotateLeft64(v, 32)
	}
	return h
}

// accounts is the file. Its methods may be called by several goroutines.
type accounts struct {
	path string
	log  *logrus.Entry
	file *os.File // nil: there is none, nothing outlives vgpud

	growing sync.Mutex // before mu

	mu     sync.Mutex
	chunks [][]byte
	free   []*slot
	found  map[accountKey]foundAccount // of an earlier vgpud, not taken yet
}

type accountKey struct {
	kind uint64
	key  string
}

type foundAccount struct {
	slot    *slot
	account account
}

// openAccounts opens the accounts of this boot. A file that is damaged is kept
// beside, and what is sound in it goes into a new one.
func openAccounts(path, boot string, log *logrus.Entry) *accounts {
	a := &accounts{path: path, log: log, found: make(map[accountKey]foundAccount)}
	_ = os.Remove(path + newSuffix) // a crash left it
	err := a.open(boot)
	if err == nil {
		return a
	}
	sound := a.found
	a.drop()
	switch {
	case errors.Is(err, errOtherBoot), errors.Is(err, fs.ErrNotExist):
		sound = nil
	default:
		_ = os.Remove(path + keptSuffix)
		kept := os.Link(path, path+keptSuffix)
		log.WithError(errors.Join(err, kept)).Errorf("the accounts in %s are damaged and kept as %s; %d of them can be used, the others start anew", path, path+keptSuffix, len(sound))
	}
	if err := a.make(boot, sound); err != nil {
		log.WithError(err).Error("accounts will not outlive this vgpud")
		a.drop()
	}
	return a
}

// header is what stands in the first slot.
func header(boot string) (w [12]uint64) {
	w[0], w[1], w[2] = accountsMagic, accountsVersion, slotBytes
	var id [64]byte
	copy(id[:], boot)
	for i := range 8 {
		w[3+i] = binary.NativeEndian.Uint64(id[8*i:])
	}
	w[11] = sumOf(0, w[:11])
	return w
}

var errOtherBoot = errors.New("the machine was started since")

// open takes the file that is there. Whatever it returns, found is what is sound.
func (a *accounts) open(boot string) error {
	f, err := os.OpenFile(a.path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("failed to open them: %w", err)
	}
	a.file = f
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("failed to look at them: %w", err)
	}
	const chunk = chunkSlots * slotBytes
	size := info.Size()
	if !info.Mode().IsRegular() || size < chunk || size > 1<<30 {
		return fmt.Errorf("%s of %d bytes", info.Mode(), size)
	}
	for range size / chunk {
		if err := a.grow(); err != nil {
			return err
		}
	}
	first := a.chunk(0)
	want := header(boot)
	var have [len(want)]uint64
	for i := range have {
		have[i] = first.load(i)
	}
	switch {
	case have[0] != accountsMagic || have[len(have)-1] != sumOf(0, have[:len(have)-1]):
		return errors.New("they have no header")
	case have[1] != accountsVersion || have[2] != slotBytes:
		return fmt.Errorf("they have version %d, this vgpud knows %d", have[1], accountsVersion)
	case have != want:
		return errOtherBoot
	}
	err = a.readSlots()
	if size%chunk != 0 {
		err = errors.Join(err, fmt.Errorf("%d bytes", size))
	}
	return err
}

// readSlots finds what the slots hold.
func (a *accounts) readSlots() error {
	all := a.free
	a.free = nil
	bad := 0
	numbered := make([]bool, len(all))
	for i, s := range all {
		numbered[i] = s.readNumber()
	}
	for i, s := range all {
		acc, ok := s.read(s.seq)
		ok = ok && numbered[i]
		if ok && acc.kind == slotGPU {
			if no, seq := acc.after(); no > uint64(len(all)) {
				ok = false
			} else if no != 0 && all[no-1].seq < seq {
				// What it was written for did not come. One store makes it undone.
				s.number(s.seq - 1)
				acc, ok = s.read(s.seq)
			}
		}
		k := accountKey{acc.kind, acc.key}
		if _, twice := a.found[k]; !ok || twice && acc.kind != slotFree {
			bad++
			continue
		}
		if acc.kind == slotFree {
			a.free = append(a.free, s)
			continue
		}
		a.found[k] = foundAccount{s, acc}
	}
	if bad > 0 {
		return fmt.Errorf("%d are damaged", bad)
	}
	return nil
}

// make makes a new file with what was found in the last one.
func (a *accounts) make(boot string, found map[accountKey]foundAccount) (retErr error) {
	making := a.path + newSuffix
	f, err := os.OpenFile(making, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("failed to make a file for accounts: %w", err)
	}
	a.file = f
	defer func() {
		if retErr != nil {
			_ = os.Remove(making)
		}
	}()
	for len(a.chunks) == 0 || len(a.free) < len(found) {
		if err := a.grow(); err != nil {
			return err
		}
	}
	for i, v := range header(boot) {
		a.chunk(0).store(i, v)
	}
	for k, old := range found {
		s := a.pop()
		acc := old.account
		acc.settled()
		s.write(&acc)
		a.found[k] = foundAccount{s, acc}
	}
	if err := os.Rename(making, a.path); err != nil {
		return fmt.Errorf("failed to name the file for accounts: %w", err)
	}
	return nil
}

func (a *accounts) chunk(i int) memory {
	b := a.chunks[i]
	return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8) //nolint:gosec // G103: whole pages that were mapped, so aligned, and none is empty
}

// grow adds a chunk.
func (a *accounts) grow() error {
	const size = chunkSlots * slotBytes
	at := int64(len(a.chunks)) * size
	if err := unix.Fallocate(int(a.file.Fd()), 0, at, size); err != nil {
		return fmt.Errorf("failed to make room for accounts: %w", err)
	}
	b, err := unix.Mmap(int(a.file.Fd()), at, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("failed to map accounts: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.chunks = append(a.chunks, b)
	mem := a.chunk(len(a.chunks) - 1)
	for i := range chunkSlots {
		no := len(a.chunks[:len(a.chunks)-1])*chunkSlots + i
		if no > 0 { // the first is the header's
			a.free = append(a.free, &slot{mem: mem, base: i * slotBytes / 8, no: uint64(no)})
		}
	}
	return nil
}

// reserve makes sure that there are free slots. It may wait for the file system,
// so it is not for the loop.
func (a *accounts) reserve() error {
	a.growing.Lock()
	defer a.growing.Unlock()
	a.mu.Lock()
	left := len(a.free)
	a.mu.Unlock()
	if a.file == nil || left >= spareSlots {
		return nil
	}
	if err := a.grow(); err != nil && left == 0 {
		return err
	}
	return nil
}

// pop takes a free slot; there must be one.
func (a *accounts) pop() *slot {
	last := len(a.free) - 1
	s := a.free[last]
	a.free = a.free[:last]
	return s
}

// take is the slot of a vGPU or GPU, and what an earlier vgpud left in it. Where
// no room is, the account does not outlive this vgpud.
func (a *accounts) take(kind uint64, name string) (*slot, account) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := accountKey{kind, name}
	if old, ok := a.found[k]; ok {
		delete(a.found, k)
		return old.slot, old.account
	}
	if len(a.free) == 0 {
		if a.file != nil {
			a.log.WithField("account", name).Error("no room for an account; it will not outlive this vgpud")
		}
		return &slot{mem: make(memory, slotBytes/8)}, account{}
	}
	return a.pop(), account{}
}

// release gives a slot back, once what it holds is written nowhere else.
func (a *accounts) release(s *slot) {
	s.write(&account{})
	if s.no == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free = append(a.free, s)
}

// releaseRest gives the slots back of vGPUs that are not there any more.
func (a *accounts) releaseRest() {
	for k, old := range a.found {
		if k.kind == slotVGPU {
			delete(a.found, k)
			a.release(old.slot)
		}
	}
}

// drop gives up a file that can not be used.
func (a *accounts) drop() {
	for _, b := range a.chunks {
		_ = unix.Munmap(b)
	}
	a.close()
	a.file, a.chunks, a.free, a.found = nil, nil, nil, make(map[accountKey]foundAccount)
}

// close leaves the memory mapped: a Create may still be under way.
func (a *accounts) close() {
	if a.file != nil {
		a.file.Close()
	}
}
