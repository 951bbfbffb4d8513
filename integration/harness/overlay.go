// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Overlay is a root file system in which every program of this machine exists:
// an overlay of / that writes to memory. Other mounts of the machine are empty
// directories in it.
type Overlay struct {
	Rootfs string

	memory string
	above  []string // mounts in Rootfs
}

// NewOverlay mounts an overlay below dir.
func NewOverlay(dir string) (_ *Overlay, err error) {
	o := &Overlay{memory: filepath.Join(dir, "memory"), Rootfs: filepath.Join(dir, "rootfs")}
	for _, d := range []string{o.memory, o.Rootfs} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	// The writable layer must not lie inside the lower one, so it gets a file
	// system of its own.
	if err := unix.Mount("tmpfs", o.memory, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=256m,mode=0755"); err != nil {
		return nil, fmt.Errorf("failed to mount a tmpfs on %s: %w", o.memory, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Close())
		}
	}()
	if err := o.mount("", "/", o.Rootfs); err != nil {
		return nil, err
	}
	return o, nil
}

// mount mounts an overlay of lower, with layers of its own by this name.
func (o *Overlay) mount(name, lower, on string) error {
	upper, work := filepath.Join(o.memory, "upper"+name), filepath.Join(o.memory, "work"+name)
	for _, d := range []string{upper, work} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work)
	if err := unix.Mount("overlay", on, "overlay", 0, options); err != nil {
		return fmt.Errorf("failed to mount an overlay of %s on %s: %w", lower, on, err)
	}
	return nil
}

// Above puts a directory of the tree above this machine's.
func (o *Overlay) Above(tree, dir string) error {
	on := filepath.Join(o.Rootfs, dir)
	// Not above the root itself: that has the tree in it, and no layer may have another.
	if err := o.mount("-"+dir, filepath.Join(tree, dir)+":/"+dir, on); err != nil {
		return err
	}
	o.above = append(o.above, on)
	return nil
}

// Close unmounts everything; it may be called again.
func (o *Overlay) Close() error {
	var errs []error
	for _, m := range append(o.above, o.Rootfs, o.memory) {
		if err := unix.Unmount(m, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("failed to unmount %s: %w", m, err))
		}
	}
	return errors.Join(errs...)
}
