// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// recordVersion is the newest version of a record that is read and the one that
// is written. A record of a newer vgpud is kept beside the new one.
const recordVersion = 1

// record is what a restarted vgpud must know about a vGPU.
type record struct {
	Version     int               `json:"version"`
	ID          string            `json:"id"`
	Dir         string            `json:"dir"` // name under c/
	Containerd  string            `json:"containerd"`
	Namespace   string            `json:"namespace"`
	Container   string            `json:"container"`
	Instance    string            `json:"instance"`
	Bundle      string            `json:"bundle"`
	BundleFile  file              `json:"bundle_file"`
	Annotations map[string]string `json:"annotations"`   // the request, as request.Parse reads it
	Pod         *pod              `json:"pod,omitempty"` // nil: the container is in none
	Claims      []claimRecord     `json:"claims,omitempty"`
	Reservation string            `json:"reservation,omitempty"` // vGPUs with the same one reserve memory together
	Created     time.Time         `json:"created"`
	Boot        string            `json:"boot"`           // boot id of the machine; the pages are void under another
	GPUs        []string          `json:"gpus,omitempty"` // bound to
	Pages       []pageRecord      `json:"pages,omitempty"`
	Observers   []process         `json:"observers,omitempty"` // that know the GPUs
	Frozen      []string          `json:"frozen,omitempty"`    // cgroups that may be frozen
	Lost        bool              `json:"lost,omitempty"`      // an earlier record was: there may be more pages
}

// pod is the Kubernetes pod of a container.
type pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	Container string `json:"container,omitempty"`
}

// podOf is a pod as the shim named it.
func podOf(p *v1.Pod) *pod {
	if p == nil {
		return nil
	}
	return &pod{p.GetNamespace(), p.GetName(), p.GetUid(), p.GetContainer()}
}

func (p *pod) message() *v1.Pod {
	if p == nil {
		return nil
	}
	return &v1.Pod{Namespace: p.Namespace, Name: p.Name, Uid: p.UID, Container: p.Container}
}

// file names a file or directory for as long as it is there.
type file struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// pageRecord is a page that was handed out, or is about to be (R7).
type pageRecord struct {
	process
	Client uint64 `json:"client"`
	Inode  uint64 `json:"inode"` // of the memfd
}

// What stands in the store.
const (
	recordBucket = "vgpus" // records, by the name of the vGPU's directory
	keptBucket   = "kept"  // records that could not be used, as they were, by the same name
	nodeBucket   = "node"  // what the operator set; under schemaKey the version of all this
)

const (
	schemaKey     = "schema"
	schemaVersion = 1
)

// key names a value in the store.
type key struct{ bucket, name string }

// store keeps values in a bbolt database. They are written in the order in which
// they are given to it, on a goroutine of its own, all that are queued in one
// transaction: the loop never waits for a disk, and many Creates at once cost one
// commit.
//
// A value is written as a checksum and JSON, so that a person can read it with
// bbolt's own command, and so that one that is damaged spoils only itself: see
// seal. What stands in the file is held in memory too. So a file that turns out to
// be damaged, at the start or later, is kept beside (keptSuffix) and written anew.
type store struct {
	path string
	log  *logrus.Entry
	db   *bolt.DB // of the goroutine; nil: the file could not be made, tried again by the next write

	mu       sync.Mutex
	more     sync.Cond
	contents map[key][]byte // sealed
	queue    []key          // those with a job, oldest first
	jobs     map[key]*job
	closed   bool
	done     chan struct{}

	writes, failures atomic.Uint64 // so far
}

// job is the newest wish for one value. Older ones are overtaken, but their
// callers are told as well.
type job struct {
	value func() ([]byte, error) // sealed; nil: remove it
	then  []func(error)
}

const (
	keptSuffix = ".kept"
	newSuffix  = ".new" // being made

	lostPrefix = "lost: " // a record that went with its store
)

// openStore opens the store in a file. One that is damaged, of a newer vgpud, or
// not there is started anew; then each vGPU that has a directory in dirs has an
// unusable record.
func openStore(path, dirs string, log *logrus.Entry) (*store, error) {
	s := &store{path: path, log: log, contents: make(map[key][]byte), jobs: make(map[key]*job), done: make(chan struct{})}
	s.more.L = &s.mu
	if err := os.Remove(path + newSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("failed to remove what a crash left: %w", err)
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		s.startAnew(dirs, errors.New("there was no store"))
	case err != nil:
		return nil, fmt.Errorf("failed to look at the store: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("the store %s is not a regular file (but %s): move it away", path, info.Mode().Type())
	default:
		err := s.open()
		if errors.Is(err, bolterrors.ErrTimeout) {
			return nil, fmt.Errorf("another program has the store %s open: stop it", path)
		}
		if err != nil {
			s.startAnew(dirs, err)
			log.WithError(err).Errorf("the store %s can not be used and is kept as %s; vgpud starts from what runs", path, path+keptSuffix)
		} else {
			s.lookOver(dirs)
		}
	}
	go s.run()
	return s, nil
}

// lost makes an unusable record for each vGPU that has a directory and no record.
func (s *store) lost(dirs string, why error) {
	entries, err := os.ReadDir(dirs)
	if err != nil {
		s.log.WithError(err).Error("failed to look for vGPUs' directories")
	}
	for _, e := range entries {
		k := key{recordBucket, e.Name()}
		if dirName.MatchString(k.name) && s.contents[k] == nil {
			s.contents[k] = []byte(lostPrefix + why.Error())
		}
	}
}

// lookOver finds what is damaged in a file that is whole.
func (s *store) lookOver(dirs string) {
	var lost error
	for k, sealed := range s.contents {
		_, err := unseal(k, sealed)
		switch {
		case err == nil:
		case k.bucket == recordBucket:
			lost = fmt.Errorf("there is a damaged record, %s, that may be its", k.name)
		case k.bucket == nodeBucket:
			s.log.WithField("key", k.name).WithError(err).Error("what the operator set is damaged")
		}
	}
	if lost != nil {
		s.lost(dirs, lost)
	}
}

// startAnew makes a store of which nothing is known but what runs.
func (s *store) startAnew(dirs string, why error) {
	clear(s.contents)
	s.contents[key{nodeBucket, schemaKey}] = seal(key{nodeBucket, schemaKey}, []byte(strconv.Itoa(schemaVersion)))
	s.lost(dirs, why)
	if err := s.renew(); err != nil {
		s.log.WithError(err).Error("no store can be made; nothing can be created or started until that is possible")
	}
}

// open opens the file, if it is whole, and reads what stands in it.
func (s *store) open() error {
	data, err := os.ReadFile(s.path)
	if err != nil {
		return fmt.Errorf("failed to read it: %w", err)
	}
	if err := checkFile(data); err != nil {
		return err
	}
	return guard(func() error {
		db, err := openBolt(s.path)
		if err != nil {
			return err
		}
		if err := db.View(s.readAll); err != nil {
			return errors.Join(err, db.Close())
		}
		s.db = db
		return nil
	})
}

// openBolt opens a database that was looked at before (checkFile).
//
// The list of free pages is written with each commit (no NoFreelistSync): bbolt
// would find them out at each start by a walk on a goroutine of its own, where a
// panic can not be caught. Each commit waits for the disk, twice. That costs
// nothing on a tmpfs; where the state directory is on a disk it keeps the file
// whole when the power fails, and only those who asked for the write wait.
func openBolt(path string) (*bolt.DB, error) {
	return bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, PageSize: 4096, NoStatistics: true})
}

func (s *store) readAll(tx *bolt.Tx) error {
	for _, bucket := range []string{nodeBucket, recordBucket, keptBucket} {
		b := tx.Bucket([]byte(bucket))
		if b == nil {
			return fmt.Errorf("the bucket %q is missing", bucket)
		}
		if err := b.ForEach(func(name, value []byte) error {
			if bucket != nodeBucket && !dirName.Match(name) {
				return fmt.Errorf("the bucket %q has the key %q", bucket, name)
			}
			s.contents[key{bucket, string(name)}] = bytes.Clone(value)
			return nil
		}); err != nil {
			return err
		}
	}
	k := key{nodeBucket, schemaKey}
	value, err := unseal(k, s.contents[k])
	if err != nil {
		return fmt.Errorf("its version can not be read: %w", err)
	}
	if n, err := strconv.Atoi(string(value)); err != nil || n < 1 || n > schemaVersion {
		return fmt.Errorf("it has version %q, this vgpud knows up to %d", value, schemaVersion)
	}
	return nil
}

// reserved is what a new file occupies at once, so that a full disk does not stop
// the usual writes: a thousand vGPUs fit.
const reserved = 1 << 20

// renew makes the file anew from what is held in memory. One that is there is
// kept beside. At each moment there is one whole file under its name, if there was
// one before.
func (s *store) renew() error {
	making := s.path + newSuffix
	_ = os.Remove(making)
	err := guard(func() error {
		db, err := openBolt(making)
		if err != nil {
			return err
		}
		return errors.Join(db.Update(func(tx *bolt.Tx) error {
			for _, bucket := range []string{nodeBucket, recordBucket, keptBucket} {
				if _, err := tx.CreateBucket([]byte(bucket)); err != nil {
					return err
				}
			}
			for k, value := range s.contents {
				if err := tx.Bucket([]byte(k.bucket)).Put([]byte(k.name), value); err != nil {
					return err
				}
			}
			return nil
		}), db.Close())
	})
	if err != nil {
		return fmt.Errorf("failed to make the store %s: %w", s.path, err)
	}
	if f, err := os.OpenFile(making, os.O_RDWR, 0); err == nil {
		_ = unix.Fallocate(int(f.Fd()), 0, 0, reserved) // not every file system can
		f.Close()
	}
	_ = os.Remove(s.path + keptSuffix)
	if err := os.Link(s.path, s.path+keptSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("failed to keep the store: %w", err)
	}
	if err := os.Rename(making, s.path); err != nil {
		return fmt.Errorf("failed to name the store: %w", err)
	}
	return guard(func() (err error) {
		s.db, err = openBolt(s.path)
		return err
	})
}

// errFault says that bbolt can not be used any more.
var errFault = errors.New("the store's file is damaged")

// guard runs fn, which uses bbolt. A panic, or a fault in the mapping, as on a
// file that somebody truncated, becomes an error.
func guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errFault, r)
		}
	}()
	return fn()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(k key, value []byte) uint32 {
	sum := crc32.Update(0, castagnoli, []byte(k.bucket+"/"+k.name+"/"))
	return crc32.Update(sum, castagnoli, value)
}

// seal puts a checksum in front of a value: eight hexadecimal digits and a space.
func seal(k key, value []byte) []byte {
	return fmt.Appendf(nil, "%08x %s", checksum(k, value), value)
}

func unseal(k key, sealed []byte) ([]byte, error) {
	sum, value, ok := bytes.Cut(sealed, []byte{' '})
	if !ok || string(sum) != fmt.Sprintf("%08x", checksum(k, value)) {
		return nil, errors.New("the value is damaged")
	}
	return value, nil
}

// save writes r, which must not be changed any more, then calls then, if given, on
// the store's goroutine.
func (s *store) save(r *record, then func(error)) {
	k := key{recordBucket, r.Dir}
	s.put(k, func() ([]byte, error) {
		data, err := json.Marshal(r)
		if err != nil {
			return nil, fmt.Errorf("failed to encode the record %s: %w", r.Dir, err)
		}
		return seal(k, data), nil
	}, then)
}

// remove removes the record of a directory, and what was kept of it; it may be
// missing.
func (s *store) remove(dir string, then func(error)) {
	s.put(key{keptBucket, dir}, nil, nil)
	s.put(key{recordBucket, dir}, nil, then)
}

// keep lets a record that can not be used stand beside the one that will take its
// place.
func (s *store) keep(dir string) {
	s.mu.Lock()
	raw := s.contents[key{recordBucket, dir}]
	s.mu.Unlock()
	if bytes.HasPrefix(raw, []byte(lostPrefix)) {
		return // it is in the file that was kept
	}
	s.put(key{keptBucket, dir}, func() ([]byte, error) { return raw, nil }, func(err error) {
		if err != nil {
			s.log.WithField("record", dir).WithError(err).Warn("what a record held is lost")
		}
	})
}

// saveNode writes what the operator set under name, or removes it if value is
// nil, then calls then, if given, on the store's goroutine.
func (s *store) saveNode(name string, value []byte, then func(error)) {
	k := key{nodeBucket, name}
	if value == nil {
		s.put(k, nil, then)
		return
	}
	s.put(k, func() ([]byte, error) { return seal(k, value), nil }, then)
}

// loadNode is what stands in the store under name; nil if there is nothing. One
// that is damaged stays until it is saved anew.
func (s *store) loadNode(name string) ([]byte, error) {
	k := key{nodeBucket, name}
	s.mu.Lock()
	sealed := s.contents[k]
	s.mu.Unlock()
	if sealed == nil {
		return nil, nil
	}
	return unseal(k, sealed)
}

// nodeNames are the names under which saveNode wrote something, that begin so.
func (s *store) nodeNames(prefix string) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.contents {
		if k.bucket == nodeBucket && strings.HasPrefix(k.name, prefix) {
			names = append(names, k.name)
		}
	}
	slices.Sort(names)
	return names
}

func (s *store) put(k key, value func() ([]byte, error), then func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		if then != nil {
			go then(errStopping)
		}
		return
	}
	j := s.jobs[k]
	if j == nil {
		j = &job{}
		s.jobs[k] = j
		s.queue = append(s.queue, k)
	}
	j.value = value
	if then != nil {
		j.then = append(j.then, then)
	}
	s.more.Signal()
}

// change is a value that is to be written; nil: removed.
type change struct {
	key
	value []byte
	then  []func(error)
}

func (s *store) run() {
	defer close(s.done)
	for {
		s.mu.Lock()
		for len(s.queue) == 0 && !s.closed {
			s.more.Wait()
		}
		queue, jobs := s.queue, s.jobs
		s.queue, s.jobs = nil, make(map[key]*job)
		s.mu.Unlock()
		if len(queue) == 0 {
			break
		}
		var batch []change
		for _, k := range queue {
			j := jobs[k]
			c := change{key: k, then: j.then}
			if j.value != nil {
				var err error
				if c.value, err = j.value(); err != nil {
					c.tell(err)
					continue
				}
			}
			batch = append(batch, c)
		}
		s.write(batch)
	}
	if s.db != nil {
		if err := guard(s.db.Close); err != nil {
			s.log.WithError(err).Warn("failed to close the store")
		}
	}
}

func (c *change) tell(err error) {
	for _, then := range c.then {
		then(err)
	}
}

// write writes all of a batch, or else what can be written of it.
func (s *store) write(batch []change) {
	err := s.commit(batch)
	if err != nil && len(batch) > 1 {
		for i := range batch {
			s.write(batch[i : i+1])
		}
		return
	}
	s.writes.Add(1)
	if err != nil {
		s.failures.Add(1)
	}
	for i := range batch {
		batch[i].tell(err)
	}
}

func (s *store) commit(batch []change) error {
	if s.db == nil {
		if err := s.renew(); err != nil {
			return err
		}
	}
	update := func() error {
		return s.db.Update(func(tx *bolt.Tx) error {
			for _, c := range batch {
				b := tx.Bucket([]byte(c.bucket))
				var err error
				if c.value == nil {
					err = b.Delete([]byte(c.name))
				} else {
					err = b.Put([]byte(c.name), c.value)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := guard(update)
	if errors.Is(err, errFault) {
		s.log.WithError(err).Errorf("the store is made anew; what it was is kept as %s", s.path+keptSuffix)
		s.db = nil // and is left as it is: its locks may be held
		if err = s.renew(); err == nil {
			err = guard(update)
		}
	}
	if err != nil {
		return fmt.Errorf("failed to write the store: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range batch {
		if c.value == nil {
			delete(s.contents, c.key)
		} else {
			s.contents[c.key] = c.value
		}
	}
	return nil
}

// close writes what is still queued.
func (s *store) close() {
	s.mu.Lock()
	s.closed = true
	s.more.Signal()
	s.mu.Unlock()
	<-s.done
}

// dirName is how vgpud names the directories of vGPUs; others are not its own.
var dirName = regexp.MustCompile(`^[0-9a-f]{16}-[0-9a-f]{16}$`)

// load reads all records. An unusable one is one that is there and can not be
// used, by the name of its directory, with the reason.
func (s *store) load() (records []record, unusable map[string]error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unusable = make(map[string]error)
	for k, sealed := range s.contents {
		if k.bucket != recordBucket {
			continue
		}
		r, err := readRecord(k, sealed)
		if err != nil {
			unusable[k.name] = err
			continue
		}
		records = append(records, r)
	}
	return records, unusable
}

func readRecord(k key, sealed []byte) (r record, _ error) {
	if why, lost := bytes.CutPrefix(sealed, []byte(lostPrefix)); lost {
		return r, errors.New(string(why))
	}
	data, err := unseal(k, sealed)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("the record is damaged: %w", err)
	}
	if r.Version < 1 || r.Version > recordVersion {
		return r, fmt.Errorf("the record has version %d, this vgpud knows up to %d", r.Version, recordVersion)
	}
	// What a record names is removed with its vGPU.
	if r.Dir != k.name || !strings.HasPrefix(r.Dir, r.ID+"-") || !dirName.MatchString(r.Dir) {
		return r, fmt.Errorf("the record is damaged: id %q, directory %q", r.ID, r.Dir)
	}
	return r, nil
}
