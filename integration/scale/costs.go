// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"
)

// Where the time goes: by what the scheduler tells of itself, and by what the programs of
// the control plane have computed.

// profiledFor is how long the scheduler is looked at, from half a minute after the start
// on.
const profiledFor = 30 * time.Second

// scheduler reads what the scheduler says of itself.
func (p *place) scheduler(ctx context.Context, path string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+p.cluster.SchedulerAddress+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	its := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	answer, err := its.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, fmt.Errorf("the scheduler answers %s for %s", answer.Status, path)
	}
	return answer.Body, nil
}

// startProfile begins to write a profile of the scheduler, if one is wanted. It returns
// what to call when all pods have their nodes, and then waits for its end.
func (p *place) startProfile(ctx context.Context) (end func() error) {
	over, done := make(chan struct{}), make(chan error, 1)
	go func() {
		if p.profile == "" {
			done <- nil
			return
		}
		select {
		case <-time.After(profiledFor):
			done <- p.writeProfile(ctx)
		case <-over:
			done <- errors.New("all pods had their nodes before the profile began: say more -pods")
		}
	}()
	return func() error {
		close(over)
		return <-done
	}
}

func (p *place) writeProfile(ctx context.Context) error {
	body, err := p.scheduler(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(profiledFor.Seconds())))
	if err != nil {
		return err
	}
	defer body.Close()
	file, err := os.OpenFile(p.profile, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, body)
	return errors.Join(err, file.Close())
}

// computed is how many seconds of CPU time each program of the control plane has used.
func (p *place) computed() (map[string]float64, error) {
	used := map[string]float64{}
	for _, process := range p.cluster.Processes() {
		proc, err := procfs.NewProc(process.PID())
		if err != nil {
			return nil, err
		}
		stat, err := proc.Stat()
		if err != nil {
			return nil, err
		}
		used[process.Name] = stat.CPUTime()
	}
	return used, nil
}

// told says where the time went since before.
func (p *place) told(ctx context.Context, before map[string]float64) error {
	now, err := p.computed()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		fmt.Printf("scale: %s has computed for %.0f s\n", name, now[name]-before[name])
	}
	body, err := p.scheduler(ctx, "/metrics")
	if err != nil {
		return err
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return fmt.Errorf("the scheduler's metrics: %w", err)
	}
	h := histogram(families["scheduler_scheduling_attempt_duration_seconds"], "result", "scheduled")
	if h.GetSampleCount() == 0 {
		return errors.New("the scheduler's metrics tell of no pod that it has scheduled")
	}
	fmt.Printf("scale: in the scheduler a pod took, with its binding: mean %v, median %v, p99 %v\n", mean(h), quantile(h, 0.5), quantile(h, 0.99))
	const points = "scheduler_framework_extension_point_duration_seconds"
	type part struct {
		name string
		took time.Duration
		of   uint64
	}
	var parts []part
	for _, m := range families[points].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "extension_point" {
				parts = append(parts, part{l.GetValue(), seconds(m.GetHistogram().GetSampleSum()), m.GetHistogram().GetSampleCount()})
			}
		}
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(b.took, a.took) })
	for _, one := range parts[:min(len(parts), 5)] {
		fmt.Printf("scale: the scheduler's %s: %v in %d calls\n", one.name, one.took.Round(time.Second), one.of)
	}
	return nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// histogram is that of a family whose label has a value.
func histogram(f *dto.MetricFamily, label, value string) *dto.Histogram {
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == label && l.GetValue() == value {
				return m.GetHistogram()
			}
		}
	}
	return nil
}

func mean(h *dto.Histogram) time.Duration {
	return seconds(h.GetSampleSum() / float64(h.GetSampleCount())).Round(time.Microsecond)
}

// quantile is as Prometheus' histogram_quantile: on a line between the bounds of its
// bucket.
func quantile(h *dto.Histogram, q float64) time.Duration {
	rank := q * float64(h.GetSampleCount())
	var from, below float64
	for _, b := range h.GetBucket() {
		count := float64(b.GetCumulativeCount())
		if count >= rank {
			if count == below {
				return seconds(b.GetUpperBound())
			}
			return seconds(from + (b.GetUpperBound()-from)*(rank-below)/(count-below)).Round(time.Microsecond)
		}
		from, below = b.GetUpperBound(), count
	}
	return seconds(from) // in the last bucket, which has no end
}
