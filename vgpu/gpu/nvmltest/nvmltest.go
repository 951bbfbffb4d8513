// SPDX-License-Identifier: Apache-2.0

// Package nvmltest has NVIDIA's DGX servers with their driver installed, without
// either, for tests: go-nvml's mocks answer what the driver would, and a directory
// looks as if the driver's package had been installed below it.
package nvmltest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"golang.org/x/sys/unix"
)

// LibraryDir is where the driver's libraries are, below a Root.
const LibraryDir = "/usr/lib/x86_64-linux-gnu"

// Server is one of them.
type Server struct {
	Name string
	*server.Server
	Root string // below which its driver is installed
}

// Device is GPU number n, whose node is that of another number: the driver does
// not number them as it lists them.
func (s Server) Device(n int) *server.Device { return s.Devices[n].(*server.Device) }

// Names are those of all of them.
func Names() []string { return []string{"DGX A100", "DGX H100", "DGX H200", "DGX B200"} }

// New is the server of that name. A test may give its devices functions that the
// mocks lack, before it is opened; then the library has them.
func New(t *testing.T, name string) Server {
	t.Helper()
	s := Server{Name: name}
	switch name {
	case "DGX A100":
		s.Server = dgxa100.New()
	case "DGX H100":
		s.Server = dgxh100.New()
	case "DGX H200":
		s.Server = dgxh200.New()
	case "DGX B200":
		s.Server = dgxb200.New()
	default:
		t.Fatalf("there is no server %q", name)
	}
	for i := range s.Devices {
		d := s.Device(i)
		d.Minor = len(s.Devices) - 1 - i
		d.IsMigDeviceHandleFunc = func() (bool, nvml.Return) { return false, nvml.SUCCESS }
		d.GetPciInfoFunc = func() (info nvml.PciInfo, _ nvml.Return) {
			for k, c := range fmt.Sprintf("0000ABCD:%02X:00.0", i+1) { // no machine has such a domain
				info.BusId[k] = int8(c)
			}
			return info, nvml.SUCCESS
		}
	}
	s.LookupSymbolFunc = s.has
	s.Root = Root(t, s.DriverVersion, len(s.Devices))
	return s
}

// has says that the library is without what its mock can not answer.
func (s Server) has(symbol string) error {
	method, mock := strings.TrimPrefix(symbol, "nvml"), reflect.ValueOf(&s.Interface).Elem()
	if m, ok := strings.CutPrefix(method, "Device"); ok && !strings.HasPrefix(method, "DeviceGetHandle") && !strings.HasPrefix(method, "DeviceGetCount") {
		method, mock = m, reflect.ValueOf(&s.Device(0).Device).Elem()
	}
	if method == "EventSetWait" || method == "EventSetFree" {
		method = "EventSetCreate" // of the set that it makes
	}
	if f := mock.FieldByName(method + "Func"); !f.IsValid() || f.IsNil() {
		return errors.New("no such function: " + symbol)
	}
	return nil
}

// Root makes a directory below which a driver is installed, with the nodes of so
// many GPUs, as NVIDIA's installer leaves them; and sockets of its daemons.
func Root(t *testing.T, version string, gpus int) string {
	t.Helper()
	root := t.TempDir()
	libs := filepath.Join(root, LibraryDir)
	for _, l := range []struct{ name, soname string }{
		{"libcuda.so", "libcuda.so.1"},
		{"libnvidia-ml.so", "libnvidia-ml.so.1"},
		{"libnvidia-ptxjitcompiler.so", "libnvidia-ptxjitcompiler.so.1"},
		{"libnvidia-nvvm.so", "libnvidia-nvvm.so.4"},
		{"libnvidia-gpucomp.so", "libnvidia-gpucomp.so." + version},
		{"libnvidia-opencl.so", "libnvidia-opencl.so.1"},
		{"libnvidia-encode.so", "libnvidia-encode.so.1"},
		{"libnvcuvid.so", "libnvcuvid.so.1"},
		{"libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"},
		{"vdpau/libvdpau_nvidia.so", "libvdpau_nvidia.so.1"},
	} {
		file := filepath.Join(libs, l.name+"."+version)
		library(t, file, l.soname)
		if link := filepath.Join(filepath.Dir(file), l.soname); link != file {
			symlink(t, filepath.Base(file), link)
		}
	}
	for _, linked := range []string{"libcuda.so", "libnvidia-ml.so", "libnvcuvid.so"} {
		symlink(t, linked+".1", filepath.Join(libs, linked))
	}
	for _, f := range []string{
		"usr/bin/nvidia-smi", "usr/bin/nvidia-debugdump", "lib/firmware/nvidia/" + version + "/gsp_ga10x.bin",
		"run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket", "tmp/nvidia-mps/control",
	} {
		path := filepath.Join(root, f)
		mkdir(t, filepath.Dir(path))
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mkdir(t, filepath.Join(root, "dev"))
	node := func(name string, major, minor uint32) {
		t.Helper()
		path := filepath.Join(root, "dev", name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))); err != nil {
			t.Fatalf("failed to make %s, which needs root: %v", path, err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for n := range gpus {
		node(fmt.Sprint("nvidia", n), 195, uint32(n))
	}
	node("nvidiactl", 195, 255)
	node("nvidia-modeset", 195, 254)
	node("nvidia-uvm", 511, 0)
	node("nvidia-uvm-tools", 511, 1)
	return root
}

// library makes a shared object that has nothing but a soname: what is read of it
// here, and by the toolkit. No loader takes it.
func library(t *testing.T, file, soname string) {
	t.Helper()
	mkdir(t, filepath.Dir(file))
	const header, section, entry = 64, 64, 16
	text := "\x00" + soname + "\x00"
	text += strings.Repeat("\x00", -len(text)&7)
	var image bytes.Buffer
	for _, part := range []any{
		elf.Header64{
			Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:  uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
			Ehsize: header, Shoff: uint64(header + len(text) + 2*entry), Shentsize: section, Shnum: 3, Shstrndx: 1,
		},
		[]byte(text),
		[]elf.Dyn64{{Tag: int64(elf.DT_SONAME), Val: 1}, {}},
		[]elf.Section64{
			{},
			{Type: uint32(elf.SHT_STRTAB), Off: header, Size: uint64(len(text)), Addralign: 1},
			{Type: uint32(elf.SHT_DYNAMIC), Off: uint64(header + len(text)), Size: 2 * entry, Link: 1, Addralign: 8, Entsize: entry},
		},
	} {
		if err := binary.Write(&image, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, image.Bytes(), 0o755); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, target, link string) {
	t.Helper()
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
}
