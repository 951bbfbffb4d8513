// SPDX-License-Identifier: Apache-2.0

// Package nodetest has a vgpud in the process of a test.
package nodetest

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/nvmltest"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/source"
	"github.com/vgpu-shim/vgpu/vgpu/node"
)

// Serve serves a vgpud on the GPUs of a server until the test ends. Its control
// socket is vgpud.sock in the state directory.
func Serve(t *testing.T, s nvmltest.Server, state string, library node.LibraryConfig) {
	t.Helper()
	inventory, err := source.Open(source.Config{GPUs: "nvml", NVML: s, DriverRoot: s.Root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := inventory.Close(); err != nil {
			t.Error(err)
		}
	})
	Start(t, inventory, state, library)
}

// Start is Serve on an inventory; stop ends it before the test does.
func Start(t *testing.T, inventory gpu.Inventory, state string, library node.LibraryConfig) (stop func()) {
	t.Helper()
	cfg := node.DefaultConfig()
	cfg.State, cfg.Socket = state, filepath.Join(state, "vgpud.sock")
	cfg.Library.CUDA, cfg.Library.NVML, cfg.Library.OpenCL = library.CUDA, library.NVML, library.OpenCL
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	opened, err := node.OpenState(cfg.State)
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(t.Output())
	d, err := node.New(cfg, opened, nil, inventory, logrus.NewEntry(log), node.Build{Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- d.Serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			t.Errorf("vgpud ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Library makes files in a directory that vgpud takes for its libraries.
func Library(t *testing.T, dir string) (l node.LibraryConfig) {
	t.Helper()
	header := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT), Ehsize: 64,
	}
	if runtime.GOARCH == "arm64" {
		header.Machine = uint16(elf.EM_AARCH64)
	}
	var library bytes.Buffer
	if err := binary.Write(&library, binary.LittleEndian, header); err != nil {
		t.Fatal(err)
	}
	l.CUDA, l.NVML = filepath.Join(dir, "cuda.so"), filepath.Join(dir, "nvml.so")
	for _, path := range []string{l.CUDA, l.NVML} {
		if err := os.WriteFile(path, library.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return l
}
