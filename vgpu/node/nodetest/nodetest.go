// SPDX-License-Identifier: Apache-2.0

// Package nodetest has a vgpud in the process of a test.
package nodetest

import (
	"context"
	"io"
	"path/filepath"
	"testing"

	"github.com/sirupsen/logrus"

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
	cfg := node.DefaultConfig()
	cfg.State, cfg.Socket = state, filepath.Join(state, "vgpud.sock")
	cfg.Library.CUDA, cfg.Library.NVML, cfg.Library.OpenCL = library.CUDA, library.NVML, library.OpenCL
	opened, err := node.OpenState(cfg.State)
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	d, err := node.New(cfg, opened, nil, inventory, logrus.NewEntry(log), node.Build{Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- d.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
		if err := inventory.Close(); err != nil {
			t.Error(err)
		}
	})
}
