// SPDX-License-Identifier: Apache-2.0

// Command demo shows the main job on this machine: three containers, started by
// ctr under io.containerd.vgpu.v1, take turns on one GPU.
//
// It starts a containerd and a vgpud of its own under a temporary directory,
// runs the three containers first one after another and then together, draws
// who held the GPU when, and ends with a table and with what the GPU's own log
// says about overlap. On a host with a working NVIDIA driver the GPU is real,
// otherwise it is simulated. Everything that it started is gone when it ends,
// also after Ctrl-C and after a failure. make demo builds and runs it.
//
// With VGPU_DEMO_JSON=FILE it writes its numbers to FILE as well.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo: failed:", err)
		os.Exit(1)
	}
}

// cleanupLimit bounds how long the end may take.
const cleanupLimit = time.Minute

// run is the demo from the first line to the last.
func run() (err error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), 150*time.Second, errors.New("the demo took too long"))
	defer cancel()
	ctx, stop := interruptible(ctx)
	defer stop()

	paths, err := harness.DefaultPaths()
	if err != nil {
		return err
	}
	real := nvidiaDriver()
	source := "sim:1"
	if real {
		source = "nvml"
	}
	fmt.Print("vgpu demo: three containers take turns on one GPU\n\n")
	if real {
		fmt.Println("GPU: the real one, this host has a working NVIDIA driver")
	} else {
		fmt.Println("GPU: a simulated one, this host has no working NVIDIA driver")
	}
	node, err := harness.Start(ctx, paths, harness.Options{
		Version: harness.Containerd24,
		Daemon:  harness.DaemonOptions{GPUs: source},
	})
	if err != nil {
		return cause(ctx, err)
	}
	defer func() {
		// The demo's own context may be what ended.
		ctx, cancel := context.WithTimeout(context.Background(), cleanupLimit)
		defer cancel()
		err = errors.Join(err, node.Close(ctx))
	}()
	fmt.Printf("containerd %s and vgpud run privately under %s\n", node.Containerd.Version, node.Dir)

	d := &demo{node: node, real: real, screen: newScreen()}
	report, err := d.play(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	if path := os.Getenv("VGPU_DEMO_JSON"); path != "" {
		if err := report.writeJSON(path); err != nil {
			return err
		}
	}
	report.print(os.Stdout)
	return report.verdict()
}

// interruptible ends the context at Ctrl-C, and goes on ignoring it so that the
// cleaning up is not interrupted.
func interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		for s := range signals {
			fmt.Fprintf(os.Stderr, "\ndemo: %v, cleaning up\n", s)
			cancel(fmt.Errorf("interrupted by signal: %v", s))
		}
	}()
	return ctx, func() { cancel(nil) }
}

// cause puts the reason why the context ended, if it did, before the error that
// this led to.
func cause(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
}
