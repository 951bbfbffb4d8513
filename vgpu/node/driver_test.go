// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
)

// driven is an inventory with a driver's file that is there.
type driven struct {
	*gputest.Inventory
	cuda string
}

func (d driven) Driver() gpu.Driver { return gpu.Driver{Version: "1.0", CUDA: d.cuda} }

func TestNamesOfANewerDriverAreLoggedOnceAndTold(t *testing.T) {
	dir := t.TempDir()
	compile := func(name, source string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".c", []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", path, path+".c").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return path
	}
	theirs := compile("libcuda.so.1.0", "int cuInit(void) { return 0; } int cuNew(void) { return 0; }")
	ours := compile("ours.so", "int cuInit(void) { return 0; }")
	var lines bytes.Buffer
	log := logrus.New()
	log.SetOutput(&lines)
	d := &Daemon{inventory: driven{gputest.New(1), theirs}, log: logrus.NewEntry(log)}
	d.cfg.Library.CUDA = ours
	all := d.driverLibraries()
	if len(all) != 1 || all[0].GetName() != "libcuda.so.1.0" || all[0].GetDriver() != theirs || all[0].GetLibrary() != ours ||
		all[0].GetError() != "" || !slices.Equal(all[0].GetUnknownNames(), []string{"cuNew"}) {
		t.Errorf("%v", all)
	}
	if strings.Count(lines.String(), "cuNew") != 1 {
		t.Errorf("the log: %s", lines.String())
	}

	d.cfg.Library.CUDA = theirs + ".c" // no library
	if all := d.driverLibraries(); len(all) != 1 || all[0].GetError() == "" {
		t.Errorf("%v", all)
	}
}
