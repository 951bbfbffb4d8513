// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// owner is what a replaced file keeps of the old one. The bundle of a
// container with a user namespace is readable by a remapped group, so the
// owner matters.
type owner struct {
	mode     fs.FileMode
	uid, gid int
}

// replace puts data under path: a temporary file in the same directory, then
// renamed. On an error nothing is left of it. It is not synced: no bundle
// outlives the kernel, and where bundles are on a disk that cost each container
// three waits for it.
func replace(path string, data []byte, o owner) (err error) {
	// CreateTemp opens with O_EXCL and mode 0600.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("failed to replace %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("failed to replace %s: %w", path, err)
		}
	}()
	if _, err = f.Write(data); err != nil {
		return err
	}
	// Chown first: it clears bits of the mode.
	if err = f.Chown(o.uid, o.gid); err != nil {
		return err
	}
	if err = f.Chmod(o.mode); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
