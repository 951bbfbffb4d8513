// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
)

// forMusl is an inventory with a driver that may have a build for musl.
type forMusl struct {
	*gputest.Inventory
	driver gpu.Driver
}

func (f forMusl) Driver() gpu.Driver { return f.driver }

// vgpud starts without what programs with musl need, gives containers nothing
// for them, and says it once.
func TestVgpudStartsWithoutTheMuslLibraries(t *testing.T) {
	const nothing = "find no driver"
	for name, tc := range map[string]struct {
		cuda string // the driver's build
		musl string // the configured directory
		says string // "": nothing
	}{
		"they are not installed":       {"/musl/libcuda.so.1", "/does/not/exist", "make musl"},
		"the driver has none":          {"", "/does/not/exist", "it has no build for musl"},
		"the operator wants none":      {"/musl/libcuda.so.1", "", ""},
		"neither the driver, nor they": {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := settings{}.config(filepath.Join(t.TempDir(), "vgpu"))
			cfg.Library.Musl = tc.musl
			if err := cfg.Check(); err != nil {
				t.Fatal(err)
			}
			var lines bytes.Buffer
			log := logrus.New()
			log.SetOutput(&lines)
			inv := forMusl{gputest.New(1), gputest.New(1).Driver()}
			inv.driver.CUDAMusl, inv.driver.NVMLMusl = tc.cuda, tc.cuda
			d, err := newDaemon(cfg, inv, logrus.NewEntry(log))
			if err != nil {
				t.Fatal(err)
			}
			d.close()
			e, err := d.takeOver.Edits(inv.driver, "/run/vgpu/c/x")
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range e.GetMounts() {
				if strings.Contains(m.GetDestination(), "musl") {
					t.Errorf("a container would get %v", m)
				}
			}
			said := strings.Count(lines.String(), nothing)
			if tc.says == "" && said != 0 || tc.says != "" && (said != 1 || !strings.Contains(lines.String(), tc.says)) {
				t.Errorf("the log says: %s", lines.String())
			}
		})
	}
}

func TestTheMuslDirectoryIsAPathOrNothing(t *testing.T) {
	for musl, want := range map[string]string{"": "", "/opt//musl/": "/opt/musl"} {
		cfg := DefaultConfig()
		cfg.Library.Musl = musl
		if err := cfg.Check(); err != nil || cfg.Library.Musl != want {
			t.Errorf("%q became %q, %v", musl, cfg.Library.Musl, err)
		}
	}
	cfg := DefaultConfig()
	cfg.Library.Musl = "musl"
	if err := cfg.Check(); err == nil || !strings.Contains(err.Error(), "library.musl") {
		t.Error(err)
	}
}
