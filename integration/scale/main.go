// SPDX-License-Identifier: Apache-2.0

// Command scale places pods with claims on a cluster that is objects alone: a real
// kube-scheduler, API server and etcd, nodes without a kubelet, and of each node the
// ResourceSlice that the DRA driver publishes. It says how fast they are placed and how
// large our objects are, and fails if anything is given away twice, or to who did not
// ask for it. make scale builds and runs it; it needs root. docs/kubernetes-scale.md has
// results.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/vgpu-shim/vgpu/integration/box"
	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/kubernetes"
)

// sizes are those of a run.
type sizes struct {
	nodes, gpus, pods int
	atOnce            int // pods that have no node yet
	score             int // percentageOfNodesToScore of the scheduler
	profile           string
	seed              uint64
	limit             time.Duration
}

func main() {
	os.Exit(box.Main("scale", func() (int, error) {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if err := run(ctx, parse(os.Args[1:])); err != nil {
			return 1, fmt.Errorf("failed: %w", err)
		}
		return 0, nil
	}))
}

func parse(args []string) (s sizes) {
	f := flag.NewFlagSet("scale", flag.ExitOnError)
	f.IntVar(&s.nodes, "nodes", 1000, "`NUMBER` of nodes")
	f.IntVar(&s.gpus, "gpus", 8, "GPUs of each, up to 16")
	f.IntVar(&s.pods, "pods", 10_000, "`NUMBER` of pods, each with a claim")
	f.IntVar(&s.atOnce, "at-once", 50, "pods that wait for a node at once: the next is made when one has got its node")
	f.IntVar(&s.score, "score", 10, "`PERCENT` of the nodes: when so many have room for a pod, and 100 at least, the scheduler looks at no more (its percentageOfNodesToScore; 0: it chooses)")
	f.StringVar(&s.profile, "profile", "", "write to `FILE` what the scheduler computes for 30 s, half a minute after the first pod, for go tool pprof")
	f.Uint64Var(&s.seed, "seed", 1, "of what pods ask for")
	f.DurationVar(&s.limit, "limit", time.Hour, "give up after so `LONG`")
	_ = f.Parse(args) // ends the program
	if f.NArg() > 0 || s.nodes < 1 || s.gpus < 1 || s.gpus > 16 || s.pods < 1 || s.atOnce < 1 || s.score < 0 || s.score > 100 {
		fmt.Fprintln(os.Stderr, "scale: nodes, gpus (up to 16), pods and at-once are 1 or more, score is up to 100, and nothing else is said")
		os.Exit(2)
	}
	return s
}

// run makes the cluster, places the pods and judges.
func run(ctx context.Context, s sizes) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	paths, err := harness.DefaultPaths()
	if err != nil {
		return err
	}
	c, err := kubernetes.Start(ctx, paths, filepath.Join(box.Temp, "k"), kubernetes.Options{PlacementOnly: true, NodesToScore: int32(s.score)})
	if err != nil {
		return fmt.Errorf("the control plane did not start: %w", err)
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	p := &place{sizes: s, cluster: c}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, c.Tails())
		}
	}()
	driver, err := p.publish(ctx, paths)
	if err != nil {
		return fmt.Errorf("failed to publish the GPUs: %w", err)
	}
	defer func() { err = errors.Join(err, driver.stop()) }()
	fmt.Printf("scale: %d nodes with %d GPUs each, %d pods, at most %d wait at once, seed %d, percentageOfNodesToScore %d\n", s.nodes, s.gpus, s.pods, s.atOnce, s.seed, s.score)
	endProfile := p.startProfile(ctx)
	before, err := p.computed()
	if err != nil {
		return err
	}
	l, err := p.load(ctx)
	if err := errors.Join(err, endProfile()); err != nil {
		return err
	}
	if err := p.told(ctx, before); err != nil {
		return err
	}
	wrong, err := p.judge(ctx, l)
	if err != nil {
		return err
	}
	if err := p.report(ctx, l, driver); err != nil {
		return err
	}
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	fmt.Println("scale: 0 violations")
	return nil
}
