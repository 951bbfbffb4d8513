// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/renameio/v2"
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
	Annotations map[string]string `json:"annotations"` // the request, as request.Parse reads it
	Created     time.Time         `json:"created"`
	Boot        string            `json:"boot"`           // boot id of the machine; the pages are void under another
	GPUs        []string          `json:"gpus,omitempty"` // bound to
	Pages       []pageRecord      `json:"pages,omitempty"`
	Frozen      []string          `json:"frozen,omitempty"` // cgroups that may be frozen
	Lost        bool              `json:"lost,omitempty"`   // an earlier record was: there may be more pages
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

// store writes records in the order in which they are given to it, on a
// goroutine of its own: the loop never waits for a disk.
type store struct {
	dir string

	mu     sync.Mutex
	more   sync.Cond
	queue  []string // names with a job, oldest first
	jobs   map[string]*job
	closed bool
	done   chan struct{}

	writes, failures atomic.Uint64 // so far
}

// job is the newest wish for one file. Older ones are overtaken, but their
// callers are told as well.
type job struct {
	rec  *record // nil: remove it
	then []func(error)
}

func openStore(dir string) (*store, error) {
	if err := privateDir(dir); err != nil {
		return nil, err
	}
	s := &store{dir: dir, jobs: make(map[string]*job), done: make(chan struct{})}
	s.more.L = &s.mu
	go s.run()
	return s, nil
}

// save writes r, which must not be changed any more, under name, then calls
// then, if given, on the store's goroutine.
func (s *store) save(name string, r *record, then func(error)) { s.put(name, r, then) }

// remove removes the record name, and what was kept of it; it may be missing.
func (s *store) remove(name string, then func(error)) { s.put(name, nil, then) }

func (s *store) put(name string, r *record, then func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		if then != nil {
			go then(errStopping)
		}
		return
	}
	j := s.jobs[name]
	if j == nil {
		j = &job{}
		s.jobs[name] = j
		s.queue = append(s.queue, name)
	}
	j.rec = r
	if then != nil {
		j.then = append(j.then, then)
	}
	s.more.Signal()
}

func (s *store) run() {
	defer close(s.done)
	for {
		s.mu.Lock()
		for len(s.queue) == 0 && !s.closed {
			s.more.Wait()
		}
		if len(s.queue) == 0 {
			s.mu.Unlock()
			return
		}
		name := s.queue[0]
		s.queue = s.queue[1:]
		j := s.jobs[name]
		delete(s.jobs, name)
		s.mu.Unlock()

		err := s.write(name, j.rec)
		s.writes.Add(1)
		if err != nil {
			s.failures.Add(1)
		}
		for _, then := range j.then {
			then(err)
		}
	}
}

func (s *store) write(name string, r *record) error {
	path := filepath.Join(s.dir, name)
	if r == nil {
		for _, p := range []string{path, path + keptSuffix} {
			if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("failed to remove a record: %w", err)
			}
		}
		return nil
	}
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("failed to encode record %s: %w", name, err)
	}
	if err := renameio.WriteFile(path, data, 0o600, renameio.WithTempDir(s.dir)); err != nil {
		return fmt.Errorf("failed to write a record: %w", err)
	}
	return nil
}

// keep lets a record that can not be used stand beside the one that will take
// its name.
func (s *store) keep(name string) error {
	path := filepath.Join(s.dir, name)
	_ = os.Remove(path + keptSuffix)
	if err := os.Link(path, path+keptSuffix); err != nil {
		return fmt.Errorf("failed to keep a record: %w", err)
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

// stored is a record with the name of its file.
type stored struct {
	name string
	record
}

// What vgpud itself makes in its directories; other files are not its own.
var (
	dirName    = regexp.MustCompile(`^[0-9a-f]{16}-[0-9a-f]{16}$`)
	recordName = regexp.MustCompile(`^[0-9a-f]{16}-[0-9a-f]{16}\.json$`)
	cutOffName = regexp.MustCompile(`^\.[0-9a-f]{16}-[0-9a-f]{16}\.json[0-9]+$`)
)

const keptSuffix = ".kept"

// load reads all records. An unusable one is one that is there and can not be
// used, by name, with the reason.
func (s *store) load() (records []stored, unusable map[string]error, _ error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to read the store: %w", err)
	}
	unusable = make(map[string]error)
	for _, e := range entries {
		switch {
		case recordName.MatchString(e.Name()):
			r, err := s.read(e.Name())
			if err != nil {
				unusable[e.Name()] = err
				continue
			}
			records = append(records, stored{name: e.Name(), record: r})
		case cutOffName.MatchString(e.Name()):
			_ = os.Remove(filepath.Join(s.dir, e.Name())) // a crash cut the writing off
		}
	}
	return records, unusable, nil
}

func (s *store) read(name string) (r record, _ error) {
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		return r, fmt.Errorf("failed to read a record: %w", err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("the record is damaged: %w", err)
	}
	if r.Version < 1 || r.Version > recordVersion {
		return r, fmt.Errorf("the record has version %d, this vgpud knows up to %d", r.Version, recordVersion)
	}
	if r.Dir+".json" != name || !strings.HasPrefix(name, r.ID+"-") {
		return r, fmt.Errorf("the record is damaged: id %q, directory %q", r.ID, r.Dir)
	}
	return r, nil
}
