// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"
)

// recordVersion is the newest version of a record that is read and the one that
// is written. A record of a newer vgpud is left alone.
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
	Annotations map[string]string `json:"annotations"` // the request, as request.Parse reads it
	Created     time.Time         `json:"created"`
	Boot        string            `json:"boot"`           // boot id of the machine; the pages are void under another
	GPUs        []string          `json:"gpus,omitempty"` // bound to
	Pages       []pageRecord      `json:"pages,omitempty"`
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
}

// job is the newest wish for one file. Older ones are overtaken, but their
// callers are told as well.
type job struct {
	data []byte // nil: remove it
	then []func(error)
}

func openStore(dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("failed to make the store: %w", err)
	}
	s := &store{dir: dir, jobs: make(map[string]*job), done: make(chan struct{})}
	s.more.L = &s.mu
	go s.run()
	return s, nil
}

// save writes r under name, then calls then, if given, on the store's
// goroutine.
func (s *store) save(name string, r *record, then func(error)) {
	data, err := json.Marshal(r)
	if err != nil {
		if then != nil {
			then(fmt.Errorf("failed to encode record %s: %w", name, err))
		}
		return
	}
	s.put(name, data, then)
}

// remove removes the record name; it may be missing.
func (s *store) remove(name string, then func(error)) { s.put(name, nil, then) }

func (s *store) put(name string, data []byte, then func(error)) {
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
	j.data = data
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

		err := s.write(name, j.data)
		for _, then := range j.then {
			then(err)
		}
	}
}

func (s *store) write(name string, data []byte) error {
	path := filepath.Join(s.dir, name)
	if data == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("failed to remove a record: %w", err)
		}
		return nil
	}
	if err := renameio.WriteFile(path, data, 0o600, renameio.WithTempDir(s.dir)); err != nil {
		return fmt.Errorf("failed to write a record: %w", err)
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

// load reads all records. Those that can not be used are returned as errors and
// left where they are.
func (s *store) load() (records []stored, kept []string, faults []error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, []error{fmt.Errorf("failed to read the store: %w", err)}
	}
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		if !strings.HasSuffix(e.Name(), ".json") {
			// A write that a crash cut off.
			_ = os.Remove(path)
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			faults = append(faults, fmt.Errorf("failed to read a record: %w", err))
			continue
		}
		var r record
		err = json.Unmarshal(data, &r)
		switch {
		case err != nil:
			err = fmt.Errorf("record %s is damaged: %w", path, err)
		case r.Version < 1 || r.Version > recordVersion:
			err = fmt.Errorf("record %s has version %d, this vgpud knows up to %d", path, r.Version, recordVersion)
		case r.ID == "" || r.Dir == "" || r.Dir != filepath.Base(r.Dir) || strings.HasPrefix(r.Dir, "."):
			err = fmt.Errorf("record %s is damaged: id %q, directory %q", path, r.ID, r.Dir)
		}
		if err != nil {
			faults = append(faults, err)
			kept = append(kept, strings.TrimSuffix(e.Name(), ".json"))
			continue
		}
		records = append(records, stored{name: e.Name(), record: r})
	}
	return records, kept, faults
}
