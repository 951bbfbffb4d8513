// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
)

// driven is an inventory with a driver's file that is there.
type driven struct {
	*gputest.Inventory
	cuda, nvml string
}

func (d driven) Driver() gpu.Driver { return gpu.Driver{Version: "1.0", CUDA: d.cuda, NVML: d.nvml} }

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
	theirNVML := compile("libnvidia-ml.so.1.0", "int nvmlInit(void) { return 0; } int nvmlDeviceSetNew(void) { return 0; }")
	ourNVML := compile("ours-nvml.so", "int nvmlInit(void) { return 0; }")
	var lines bytes.Buffer
	log := logrus.New()
	log.SetOutput(&lines)
	d := &Daemon{inventory: driven{gputest.New(1), theirs, theirNVML}, log: logrus.NewEntry(log)}
	d.cfg.Library = LibraryConfig{CUDA: ours, NVML: ourNVML}
	want := []*v1.DriverLibrary{
		{Name: "libcuda.so.1.0", Driver: theirs, Library: ours, UnknownNames: []string{"cuNew"}},
		{Name: "libnvidia-ml.so.1.0", Driver: theirNVML, Library: ourNVML, UnknownNames: []string{"nvmlDeviceSetNew"}},
	}
	if diff := cmp.Diff(want, d.driverLibraries(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, name := range []string{"cuNew", "nvmlDeviceSetNew"} {
		if strings.Count(lines.String(), name) != 1 {
			t.Errorf("the log: %s", lines.String())
		}
	}

	d.cfg.Library.CUDA = theirs + ".c" // no library
	if all := d.driverLibraries(); all[0].GetError() == "" || all[1].GetError() != "" {
		t.Errorf("%v", all)
	}
}
