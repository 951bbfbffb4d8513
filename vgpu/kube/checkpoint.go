// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// recordVersion is the newest version of a record that is read, and the one that is
// written.
const recordVersion = 1

// record is what the driver must know of a claim when it was killed.
type record struct {
	Version int             `json:"version"`
	Claim   json.RawMessage `json:"claim"` // as vgpud is told
	// Memory is the bytes of each device that it takes, by the device's name.
	Memory map[string]uint64 `json:"memory,omitempty"`
	// Shares are its allocations on this node.
	Shares []share `json:"shares,omitempty"`
	// Watched: more pods may come to share it, which kubelet does not tell.
	Watched bool `json:"watched,omitempty"`
	// Released: kubelet needs it no more, and vgpud could not be told yet.
	Released bool `json:"released,omitempty"`

	claim *v1.Claim
}

// checkpoint is a directory with one file for each claim. Each is replaced as a whole;
// calls for one claim must not overlap.
type checkpoint struct{ dir string }

func openCheckpoint(dir string) (*checkpoint, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("failed to make the directory of the checkpoint: %w", err)
	}
	return &checkpoint{dir: dir}, nil
}

const recordSuffix = ".json"

func (c *checkpoint) path(uid types.UID) string {
	return filepath.Join(c.dir, string(uid)+recordSuffix)
}

func (c *checkpoint) write(r *record) error {
	var err error
	r.Version = recordVersion
	if r.Claim, err = protojson.Marshal(r.claim); err != nil {
		return fmt.Errorf("failed to encode a claim: %w", err)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("failed to encode a claim: %w", err)
	}
	return writeFile(c.path(types.UID(r.claim.GetUid())), data, 0o600)
}

// read returns nil if there is no such claim.
func (c *checkpoint) read(uid types.UID) (*record, error) {
	data, err := os.ReadFile(c.path(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to read the checkpoint: %w", err)
	}
	r := &record{claim: new(v1.Claim)}
	if err = json.Unmarshal(data, r); err == nil {
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(r.Claim, r.claim)
	}
	switch {
	case err != nil:
	case r.Version < 1 || r.Version > recordVersion:
		err = fmt.Errorf("it has version %d, this driver knows up to %d", r.Version, recordVersion)
	case r.claim.GetUid() != string(uid):
		err = fmt.Errorf("it is of the claim %q", r.claim.GetUid())
	}
	if err != nil {
		return nil, fmt.Errorf("the checkpoint %s can not be used: %w", c.path(uid), err)
	}
	return r, nil
}

func (c *checkpoint) remove(uid types.UID) error { return removeFile(c.path(uid)) }

// uids are those of all claims.
func (c *checkpoint) uids() ([]types.UID, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, fmt.Errorf("failed to read the checkpoint: %w", err)
	}
	var out []types.UID
	for _, e := range entries {
		// What a write left that was cut off begins with a dot.
		if uid, ok := strings.CutSuffix(e.Name(), recordSuffix); ok && !strings.HasPrefix(uid, ".") {
			out = append(out, types.UID(uid))
		}
	}
	return out, nil
}

// writeFile replaces a file: whoever looks, also after a crash, finds the old one or
// the new one, whole.
func writeFile(path string, data []byte, mode fs.FileMode) (err error) {
	// No name that a reader of CDI specs takes.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("failed to write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("failed to write %s: %w", path, err)
		}
	}()
	if _, err = f.Write(data); err != nil {
		return err
	}
	if err = f.Chmod(mode); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// sweep removes what calls of writeFile left that were cut off, for files in dir whose
// names begin so.
func sweep(dir, prefix string) {
	left, _ := filepath.Glob(filepath.Join(dir, "."+prefix+"*"+recordSuffix+"-*"))
	for _, path := range left {
		_ = os.Remove(path)
	}
}

func removeFile(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("failed to remove %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
