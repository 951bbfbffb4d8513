// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Runc stands before runc for the containers that are made from now on, and stops
// where it is told to, so that a test can do something in the middle of a call.
type Runc struct{ dir string }

// Runc puts one before runc.
func (n *Node) Runc() (*Runc, error) {
	r := &Runc{filepath.Join(n.Dir, "runc")}
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		return nil, err
	}
	program := filepath.Join(r.dir, "runc")
	script := strings.ReplaceAll(standIn, "DIR", r.dir)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		return nil, err
	}
	_, err := n.Daemon.ShimConfig("[runc]", fmt.Sprintf("binary_name = %q", program))
	return r, err
}

// standIn is the program. It waits in "read" at a named pipe, as long as that is
// there and nobody writes to it.
const standIn = `#!/bin/sh
for verb; do
	case $verb in create | start | exec | kill | delete) break ;; esac
done
hold() {
	if [ -p "DIR/$1-$verb" ]; then
		: >"DIR/$1-$verb.at"
		{ read -r _ <"DIR/$1-$verb"; } 2>/dev/null
	fi
}
hold before
if [ -p "DIR/after-$verb" ]; then
	runc "$@"
	status=$?
	hold after
	exit $status
fi
exec runc "$@"
`

// Hold makes runc stop at a point, such as "before create" or "after delete". The
// verbs are create, start, exec, kill and delete.
func (r *Runc) Hold(point string) (*Hold, error) {
	h := &Hold{filepath.Join(r.dir, strings.ReplaceAll(point, " ", "-"))}
	return h, unix.Mkfifo(h.pipe, 0o600)
}

// Hold is a point at which runc stops.
type Hold struct{ pipe string }

// Reached waits until runc stands there.
func (h *Hold) Reached(ctx context.Context) error {
	return eventually(ctx, nil, func() error {
		if !exists(h.pipe + ".at") {
			return fmt.Errorf("runc is not at %s yet", filepath.Base(h.pipe))
		}
		return nil
	})
}

// Release lets runc go on, now and from then on.
func (h *Hold) Release() error {
	// A writer wakes who waits; who comes later finds no pipe.
	w, err := os.OpenFile(h.pipe, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(os.Remove(h.pipe), os.RemoveAll(h.pipe+".at"), w.Close())
}
