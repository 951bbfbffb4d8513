// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// saveNode writes what belongs to the node under a name, then calls then on
// another goroutine.
func (s *store) saveNode(name string, value []byte, then func(error)) {
	go func() {
		s.writes.Add(1)
		err := renameio.WriteFile(s.nodeFile(name), value, 0o600, renameio.WithTempDir(s.dir))
		if err != nil {
			s.failures.Add(1)
			err = fmt.Errorf("failed to write a record: %w", err)
		}
		then(err)
	}()
}

// loadNode reads what saveNode wrote; nil if it wrote nothing.
func (s *store) loadNode(name string) ([]byte, error) {
	data, err := os.ReadFile(s.nodeFile(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to read a record: %w", err)
	}
	return data, nil
}

func (s *store) nodeFile(name string) string { return filepath.Join(s.dir, "node-"+name+".json") }
