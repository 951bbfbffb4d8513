// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"
)

// How long vgpud is profiled, and how often.
const (
	profiledSeconds = 5
	samplesASecond  = 997 // no multiple of what happens at regular times
)

// flames draws where CPU time goes, as flame graphs: of vgpud while clients take turns
// as in rate, and of the engine in its own benchmark. The vgpud is the one beside the
// programs of the benchmark, which has its symbols.
func flames(docs string) error {
	ctx, stop := untilLimit()
	defer stop()
	b, err := newBench(full)
	if err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	b.paths.Bin = b.programs
	daemon, err := b.profileDaemon(ctx)
	if err != nil {
		return fmt.Errorf("vgpud: %w", err)
	}
	engine, err := b.profileEngine(ctx)
	if err != nil {
		return fmt.Errorf("the engine: %w", err)
	}
	for _, f := range []struct{ file, title, stacks string }{
		{"flame-vgpud.svg", fmt.Sprintf("CPU time of vgpud while %d clients take turns as fast as they can", rushing), daemon},
		{"flame-engine.svg", "CPU time of the engine in BenchmarkHandOver, 8 to 1,024 vGPUs on 8 GPUs", engine},
	} {
		drawn, err := b.draw(ctx, f.title, f.stacks)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(docs, f.file), drawn, 0o644); err != nil {
			return fmt.Errorf("failed to write a flame graph: %w", err)
		}
		fmt.Printf("%s: %d stacks, %d KiB\n", filepath.Join(docs, f.file), strings.Count(f.stacks, "\n"), len(drawn)>>10)
	}
	return nil
}

// profileDaemon samples vgpud with perf, which sees the kernel's part, too.
func (b *bench) profileDaemon(ctx context.Context) (stacks string, err error) {
	data := filepath.Join(b.dir, "perf.data")
	if err := b.rush(ctx, func(n *node) error {
		_, err := b.output(ctx, "perf", "record", "--quiet", "-g", "-F", strconv.Itoa(samplesASecond), "-e", "cpu-clock",
			"-p", strconv.Itoa(n.pid()), "-o", data, "--", "sleep", strconv.Itoa(profiledSeconds))
		return err
	}); err != nil {
		return "", err
	}
	lines, err := b.output(ctx, "perf", "script", "report", "stackcollapse", "-i", data)
	return strings.Join(lines, "\n") + "\n", err
}

// profileEngine samples the engine's benchmark with Go's profiler, which knows what was
// inlined.
func (b *bench) profileEngine(ctx context.Context) (stacks string, err error) {
	data := filepath.Join(b.dir, "cpu.pprof")
	if _, err := b.output(ctx, goCommand(), "test", "-run", "^$", "-bench", "HandOver/gpus=8", "-benchtime", "2s",
		"-cpuprofile", data, "-o", filepath.Join(b.dir, "arbiter.test"), "./vgpu/arbiter"); err != nil {
		return "", err
	}
	f, err := os.Open(data)
	if err != nil {
		return "", err
	}
	defer f.Close()
	p, err := profile.Parse(f)
	if err != nil {
		return "", fmt.Errorf("failed to read the profile: %w", err)
	}
	return folded(p), nil
}

// folded is a profile as flamegraph.pl takes it: a line for each stack, from its root, and
// how many samples it has.
func folded(p *profile.Profile) string {
	stacks := make(map[string]int64)
	for _, s := range p.Sample {
		var names []string
		for _, at := range s.Location {
			for _, line := range at.Line { // what is inlined comes before its caller
				names = append(names, line.Function.Name)
			}
		}
		slices.Reverse(names)
		stacks[strings.Join(names, ";")] += s.Value[0]
	}
	var all strings.Builder
	for _, stack := range slices.Sorted(maps.Keys(stacks)) {
		fmt.Fprintf(&all, "%s %d\n", stack, stacks[stack])
	}
	return all.String()
}

// In pixels. What is narrower than three in two thousand is left out.
const flameWidth, flameLeast = 1200, "1.8"

// draw makes a flame graph of folded stacks.
func (b *bench) draw(ctx context.Context, title, stacks string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "perl", filepath.Join(b.paths.Tools, "debian", "libdevel-nytprof-perl", "usr", "share", "perl5", "Devel", "NYTProf", "flamegraph.pl"),
		"--hash", "--title", title, "--width", strconv.Itoa(flameWidth), "--minwidth", flameLeast)
	cmd.Stdin, cmd.Stderr = strings.NewReader(strings.ReplaceAll(stacks, module, "")), os.Stderr
	drawn, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("flamegraph.pl (make setup-flames brings it in): %w", err)
	}
	return still(bytes.TrimSpace(drawn)), nil
}

var (
	scripted = regexp.MustCompile(`(?s)<script.*?</script>\s*|<text [^>]*id="(?:details|unzoom|search)".*?</text>\s*`)
	handlers = regexp.MustCompile(` on(?:load|mouseover|mouseout|click)="[^"]*"`)
)

// still takes flamegraph.pl's script, which is not under our licence, from a graph, and
// what does nothing without it. The titles stay, which viewers show.
func still(drawn []byte) []byte {
	return handlers.ReplaceAll(scripted.ReplaceAll(drawn, nil), nil)
}

// module is before the names of our packages.
const module = "github.com/vgpu-shim/vgpu/"
