// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// StateFile is the name of the shim's state file in a bundle.
const StateFile = "vgpu.json"

// stateVersion is the version of the state file that this shim writes. A
// container can outlive an upgrade of the shim, and its bundle is then cleaned
// up by the new binary: every version ever released stays readable.
const stateVersion = 1

// State says which vGPU a bundle's container has, and who is to be told when
// it goes. It is written before the vGPU is asked for, and removed after the
// vGPU is gone.
type State struct {
	Version    int    `json:"version"`
	Address    string `json:"address"` // control socket of vgpud
	Namespace  string `json:"namespace"`
	ID         string `json:"id"`
	Containerd string `json:"containerd"` // address of the containerd that runs the container
	Instance   string `json:"instance"`   // names this vGPU among all that the container ever had
}

// Write puts the state into the directory dir, with the current version.
func (s State) Write(dir string) error {
	s.Version = stateVersion
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return replace(filepath.Join(dir, StateFile), data, owner{mode: 0o600, uid: os.Geteuid(), gid: os.Getegid()})
}

// ReadState reads the state in the directory dir. The error is fs.ErrNotExist
// if there is none: the container has no vGPU.
func ReadState(dir string) (State, error) {
	path := filepath.Join(dir, StateFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return State{}, fmt.Errorf("failed to read the vGPU's state: %w", err)
	}
	var s State
	if err := json.Unmarshal(data, &s); err != nil {
		return State{}, fmt.Errorf("failed to parse %s: %w", path, err)
	}
	if s.Version < 1 || s.Version > stateVersion {
		return State{}, fmt.Errorf("failed to use %s: version %d, this shim knows 1 to %d", path, s.Version, stateVersion)
	}
	if missing := s.missing(); missing != nil {
		return State{}, fmt.Errorf("failed to use %s: it is damaged, without %s", path, strings.Join(missing, ", "))
	}
	return s, nil
}

// missing names the fields that must not be empty and are. A release without
// an instance would not mean this vGPU, but whichever the container has.
func (s State) missing() (names []string) {
	for _, f := range []struct{ name, value string }{
		{"address", s.Address},
		{"namespace", s.Namespace},
		{"id", s.ID},
		{"containerd", s.Containerd},
		{"instance", s.Instance},
	} {
		if f.value == "" {
			names = append(names, f.name)
		}
	}
	return names
}

// RemoveState removes the state from the directory dir. It succeeds if there
// is none.
func RemoveState(dir string) error {
	if err := os.Remove(filepath.Join(dir, StateFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("failed to remove the vGPU's state: %w", err)
	}
	return nil
}
