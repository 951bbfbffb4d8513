// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// patience bounds every wait for something that should happen soon.
const patience = harnesstest.Patience

// The longest that vgpud takes in its configuration: a drain deadline that is
// beyond patience, and a quantum.
const (
	longest        = 5 * time.Minute
	longestQuantum = 10 * time.Second
)

// rootfs is the root file system that the tests' containers share; it is made
// once and holds nothing of ours but CUDA programs.
var rootfs string

func TestMain(m *testing.M) { os.Exit(harnesstest.Main(m, &rootfs)) }

// node is a harness.Node for one test; what goes wrong with it fails the test.
type node struct{ *harnesstest.Node }

// start starts a node whose containers share the root file system.
func start(t *testing.T, o harness.Options) *node {
	t.Helper()
	return &node{harnesstest.Start(t, rootfs, o)}
}

var errNotYet = errors.New("not yet")
