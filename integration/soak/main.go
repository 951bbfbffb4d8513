// SPDX-License-Identifier: Apache-2.0

// Command soak is a test by faults at random: real containers share two
// simulated GPUs while clients, containers, shims, vgpud and containerd are
// killed about once a second. docs/soak.md says what must hold meanwhile, and
// how to read a failure. make soak builds and runs it; it needs root.
//
// SOAK_SEED repeats the faults of another run, SOAK_TIME says for how long there
// are any, SOAK_KEEP=1 keeps the logs of a run that goes well too.
package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// faultsFile is where the faults of a run are written, in the folder that is kept
// of one that fails.
const faultsFile = "faults.txt"

func main() {
	short := flag.Bool("short", false, "a minute under the newest containerd, with half the containers")
	flag.Parse()
	n, err := run(*short)
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak: failed:", err)
		os.Exit(1)
	}
	fmt.Printf("soak: %d faults, 0 violations\n", n)
}

// run soaks under each containerd in turn, and returns how many faults there were.
func run(short bool) (faults int, err error) {
	length, versions, containers := 10*time.Minute, harness.Versions(), 12
	if short {
		length, versions, containers = time.Minute, []harness.Version{harness.Containerd24}, 6
	}
	if text := os.Getenv("SOAK_TIME"); text != "" {
		if length, err = time.ParseDuration(text); err != nil {
			return 0, fmt.Errorf("SOAK_TIME=%s: %w", text, err)
		}
	}
	var random [4]byte
	if _, err := rand.Read(random[:]); err != nil {
		return 0, err
	}
	seed := uint64(binary.LittleEndian.Uint32(random[:]))
	if text := os.Getenv("SOAK_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			return 0, fmt.Errorf("SOAK_SEED=%s: %w", text, err)
		}
	}
	ctx, stop := interruptible()
	defer stop()
	paths, err := harness.DefaultPaths()
	if err != nil {
		return 0, err
	}
	for _, v := range versions {
		fmt.Println(headline(seed, v))
		n, err := under(ctx, paths, v, seed, containers, length/time.Duration(len(versions)))
		faults += n
		if err != nil {
			return faults, fmt.Errorf("under containerd %s: %w; repeat it with SOAK_SEED=%d", v, err, seed)
		}
	}
	return faults, nil
}

// under soaks under one containerd. What is needed to find out why it failed is
// kept in a folder below build/.
func under(ctx context.Context, paths harness.Paths, v harness.Version, seed uint64, containers int, length time.Duration) (n int, err error) {
	keep := filepath.Join(paths.Root, "build", "soak-logs", fmt.Sprintf("seed-%d-containerd-%s", seed, v))
	if err := os.RemoveAll(keep); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(keep, 0o700); err != nil {
		return 0, err
	}
	defer func() {
		if err == nil && os.Getenv("SOAK_KEEP") == "" {
			err = os.RemoveAll(keep)
			os.Remove(filepath.Dir(keep)) // if nothing else is in it
		}
	}()
	f, err := os.OpenFile(filepath.Join(keep, faultsFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	fmt.Fprintln(f, headline(seed, v))
	s, err := start(ctx, paths, v, seed, f)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	s.play(containers, length)
	s.table(os.Stdout)
	if s.failed() {
		s.explain(os.Stdout, keep)
		err = errors.Join(fmt.Errorf("%d violations; logs are kept in %s", len(s.violations), keep), s.keepLogs(keep))
		return s.total(), err
	}
	if os.Getenv("SOAK_KEEP") != "" {
		if err := s.keepLogs(keep); err != nil {
			return s.total(), err
		}
	}
	return s.total(), context.Cause(ctx)
}

// interruptible is a context that ends at Ctrl-C; the cleaning up is not
// interrupted by another one.
func interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		for sig := range signals {
			fmt.Fprintf(os.Stderr, "\nsoak: %v, cleaning up\n", sig)
			cancel(fmt.Errorf("interrupted by signal: %v", sig))
		}
	}()
	return ctx, func() { cancel(nil) }
}
