// SPDX-License-Identifier: Apache-2.0

package source

import (
	"path/filepath"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// As on nodes that have it in /usr/local/nvidia/lib64 and vgpud an LD_LIBRARY_PATH.
func TestADriverThatTheDynamicLinkerDoesNotSearchIsFoundWhereItsNVMLIs(t *testing.T) {
	root, said := simulatedRoot(t), ""
	cfg := Config{
		GPUs: "sim:1", SimulatedRoot: root, Machine: filepath.Join(t.TempDir(), "machine"),
		Log: func(format string, args ...any) { said += format },
	}
	opened, err := Open(cfg) // an NVML in a directory where nobody looks
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	i := opened.(*inventory)
	_, common, err := listDriver(i.lib, cfg)
	if err != nil {
		t.Fatal(err)
	}
	d := gpu.Driver{Version: i.driver.Version}
	if err := collect(&d, []*specs.ContainerEdits{common}); err != nil {
		t.Fatal(err)
	}
	if d.CUDA != i.driver.CUDA || d.NVML != i.driver.NVML {
		t.Errorf("found %s and %s, want %s and %s", d.CUDA, d.NVML, i.driver.CUDA, i.driver.NVML)
	}
	if !strings.Contains(said, "its files are taken from") {
		t.Errorf("nothing tells that it is in another place: %q", said)
	}
}

func TestLoadedFrom(t *testing.T) {
	const maps = `7f00-7f01 r-xp 00000000 fe:00 1    /usr/lib/x86_64-linux-gnu/libc.so.6
7f02-7f03 rw-p 00000000 00:00 0
7f04-7f05 r--p 00000000 fe:00 2    /opt/a b/lib64/libnvidia-ml.so.580.1
7f06-7f07 r--p 00000000 fe:00 3    /usr/lib/libcuda.so.580.1
7f08-7f09 rw-p 00000000 00:00 0    [stack]
`
	for name, want := range map[string]string{
		"libnvidia-ml.so.": "/opt/a b/lib64", "libcuda.so.": "/usr/lib", "libnvidia-ml.so.2": "", "[stack]": "",
	} {
		if got := loadedFrom(maps, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
