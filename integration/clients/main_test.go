// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// busybox is the root file system of containers that ask for no other.
var busybox string

func TestMain(m *testing.M) {
	flag.Parse()
	status := harnesstest.Main(m, &busybox)
	if status == 0 && all() {
		if err := os.WriteFile(filepath.Join("..", "..", "docs", "clients.md"), page(rows, ways), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	os.Exit(status)
}

// all tells whether the flags leave out no test.
func all() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if flag.Lookup(name).Value.String() != "" {
			return false
		}
	}
	return true
}
