// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// report is what the demo has seen.
type report struct {
	real    bool
	names   []string
	alone   []time.Duration // wall time of each container when it ran alone
	samples []sample        // of the run together
	vgpus   []*v1.VGPU      // at its end, in the order of names
	gpu     *v1.GPU
	begin   time.Duration // CLOCK_MONOTONIC: the first program began
	end     time.Duration // and the last one ended

	// From the simulated GPU's own log; not there on a real GPU.
	tenants []harness.Tenant // in the order of names
	overlap *harness.Overlap
	work    map[harness.Tenant][]span
	busy    time.Duration // of the GPU, between begin and end
}

func (r *report) makespan() time.Duration { return r.end - r.begin }

func (r *report) oneAfterAnother() time.Duration {
	var sum time.Duration
	for _, d := range r.alone {
		sum += d
	}
	return sum
}

// held is the GPU time that vgpud has accounted in the run together.
func (r *report) held() time.Duration {
	var sum time.Duration
	for _, v := range r.vgpus {
		sum += v.GetUsage().GetHeld().AsDuration()
	}
	return sum
}

// utilisation is the part of the time in which the GPU computed, together and
// one after another: from the simulated GPU's own log, or where there is none
// from the time that vGPUs held it.
func (r *report) utilisation() (together, after float64) {
	busy := r.busy
	if r.work == nil {
		busy = r.held()
	}
	return float64(busy) / float64(r.makespan()), float64(busy) / float64(r.oneAfterAnother())
}

// reportColumns is the width of the timelines in the report.
const reportColumns = 96

func (r *report) print(w io.Writer) {
	last := r.samples[len(r.samples)-1].at
	column := last/reportColumns + 1
	fmt.Fprintf(w, "Who held the GPU (one column is %v; █ held it, · only waited; from vgpud):\n", column.Round(time.Millisecond))
	for i, row := range timeline(len(r.names), r.samples, 0, column, reportColumns) {
		fmt.Fprintf(w, "%-*s%s\n", labelWidth, r.names[i], row)
	}
	r.printCloser(w)
	r.printTable(w)
	r.printLastLines(w)
}

// printCloser draws a short time, exactly, from the simulated GPU's own log.
func (r *report) printCloser(w io.Writer) {
	if r.work == nil {
		return
	}
	const column = 5 * time.Millisecond
	from := busiest(r.work, r.begin, r.end, reportColumns*column)
	fmt.Fprintf(w, "\nA closer look at %v of it (one column is %v; █ the GPU computed for it; from the GPU's own log):\n",
		reportColumns*column, column)
	for i, name := range r.names {
		fmt.Fprintf(w, "%-*s%s\n", labelWidth, name, spanline(r.work[r.tenants[i]], from, column, reportColumns))
	}
}

func (r *report) printTable(w io.Writer) {
	fmt.Fprintf(w, "\n%-*s%8s%12s%12s%12s%12s\n", labelWidth, "vGPU", "turns", "revoked", "GPU held", "waited", "wall alone")
	var turns, revoked uint64
	var waited time.Duration
	for i, v := range r.vgpus {
		u := v.GetUsage()
		fmt.Fprintf(w, "%-*s%8d%12d%12s%12s%12s\n", labelWidth, r.names[i], u.GetTurns(), u.GetDrains(),
			seconds(u.GetHeld().AsDuration()), seconds(u.GetWaited().AsDuration()), seconds(r.alone[i]))
		turns, revoked, waited = turns+u.GetTurns(), revoked+u.GetDrains(), waited+u.GetWaited().AsDuration()
	}
	fmt.Fprintf(w, "%-*s%8d%12d%12s%12s%12s\n\n", labelWidth, "all", turns, revoked, seconds(r.held()), seconds(waited), seconds(r.oneAfterAnother()))

	h := r.gpu.GetHandover()
	fmt.Fprintf(w, "%-28s median %v, p99 %v (%d hand-overs from one vGPU to another that waited)\n", "hand-over latency",
		h.GetMedian().AsDuration().Round(time.Microsecond), h.GetP99().AsDuration().Round(time.Microsecond), h.GetCount())
	together, after := r.utilisation()
	fmt.Fprintf(w, "%-28s %.0f %% together, %.0f %% one after another", "GPU utilisation", 100*together, 100*after)
	if r.work != nil {
		fmt.Fprintf(w, " (by the GPU's own log)")
	}
	fmt.Fprintln(w)
	fmt.Fprintf(w, "%-28s %s together, %s one after another: %.2f times as fast\n", "makespan",
		seconds(r.makespan()), seconds(r.oneAfterAnother()), float64(r.oneAfterAnother())/float64(r.makespan()))
}

// printLastLines says what everything hangs on, for people and for scripts.
func (r *report) printLastLines(w io.Writer) {
	if r.overlap == nil {
		fmt.Fprintf(w, "\nvgpus: %d\n", r.tookTurns())
		fmt.Fprintln(w, "overlap: not measured by a simulated GPU's log, since this GPU is real")
		return
	}
	fmt.Fprintf(w, "%-28s %d pieces of work, submitted by containers of both runs\n\n", "the GPU's own log", r.overlap.Submissions)
	fmt.Fprintf(w, "vgpus: %d\n", r.tookTurns())
	if r.overlap.OverlapNS == 0 && r.overlap.Pairs == 0 {
		fmt.Fprintln(w, "overlap: 0")
		return
	}
	fmt.Fprintf(w, "overlap: %v in %d pairs of operations\n", time.Duration(r.overlap.OverlapNS), r.overlap.Pairs)
}

// tookTurns counts the vGPUs that had turns.
func (r *report) tookTurns() int {
	n := 0
	for _, v := range r.vgpus {
		if v.GetUsage().GetTurns() > 0 {
			n++
		}
	}
	return n
}

// verdict is an error if something is off.
func (r *report) verdict() error {
	var errs []error
	if n := r.tookTurns(); n != len(jobs()) {
		errs = append(errs, fmt.Errorf("only %d of %d vGPUs took turns", n, len(jobs())))
	}
	if r.gpu.GetHandover().GetCount() == 0 {
		errs = append(errs, errors.New("no vGPU ever waited for another: nothing was shown"))
	}
	if o := r.overlap; o != nil {
		if o.OverlapNS != 0 || o.Pairs != 0 {
			errs = append(errs, errors.New("the simulated GPU saw work of two containers at once"))
		}
		if o.Lost != 0 {
			errs = append(errs, fmt.Errorf("the simulated GPU's log lost %d records, so it proves nothing", o.Lost))
		}
	}
	return errors.Join(errs...)
}

// writeJSON writes the numbers. Fields are only added.
func (r *report) writeJSON(path string) error {
	type vgpu struct {
		Name    string  `json:"name"`
		Turns   uint64  `json:"turns"`
		Revoked uint64  `json:"revoked"`
		Held    float64 `json:"held_s"`
		Waited  float64 `json:"waited_s"`
		Alone   float64 `json:"alone_s"`
	}
	out := struct {
		Version     int     `json:"version"`
		Simulated   bool    `json:"simulated"`
		Model       string  `json:"gpu_model"`
		VGPUs       []vgpu  `json:"vgpus"`
		Handovers   uint64  `json:"handovers"`
		Median      float64 `json:"handover_median_us"`
		P99         float64 `json:"handover_p99_us"`
		Utilisation float64 `json:"utilisation"`
		UtilAfter   float64 `json:"utilisation_one_after_another"`
		Together    float64 `json:"makespan_together_s"`
		After       float64 `json:"makespan_one_after_another_s"`
		OverlapNS   *int64  `json:"overlap_ns"` // null where the GPU is real
		Submissions *int64  `json:"submissions"`
	}{
		Version:   1,
		Simulated: r.overlap != nil,
		Model:     r.gpu.GetModel(),
		Handovers: r.gpu.GetHandover().GetCount(),
		Median:    float64(r.gpu.GetHandover().GetMedian().AsDuration().Nanoseconds()) / 1e3,
		P99:       float64(r.gpu.GetHandover().GetP99().AsDuration().Nanoseconds()) / 1e3,
		Together:  r.makespan().Seconds(),
		After:     r.oneAfterAnother().Seconds(),
	}
	out.Utilisation, out.UtilAfter = r.utilisation()
	for i, v := range r.vgpus {
		u := v.GetUsage()
		out.VGPUs = append(out.VGPUs, vgpu{
			r.names[i], u.GetTurns(), u.GetDrains(),
			u.GetHeld().AsDuration().Seconds(), u.GetWaited().AsDuration().Seconds(), r.alone[i].Seconds(),
		})
	}
	if r.overlap != nil {
		out.OverlapNS, out.Submissions = &r.overlap.OverlapNS, &r.overlap.Submissions
	}
	b, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("failed to write VGPU_DEMO_JSON: %w", err)
	}
	return nil
}

func seconds(d time.Duration) string {
	return strings.TrimSpace(fmt.Sprintf("%6.2f s", d.Seconds()))
}
