// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// work is a program of bursts and where it runs.
type work struct {
	at   place
	args []string
}

// startAll starts programs, all at once, and waits until each is ready.
func (h *hardware) startAll(ctx context.Context, limit time.Duration, all []work) ([]*program, error) {
	var programs []*program
	var errs []error
	for _, w := range all {
		p, err := h.begin(ctx, w.at, limit, nil, w.args...)
		if err != nil {
			errs = append(errs, err)
			break
		}
		programs = append(programs, p)
	}
	if len(errs) == 0 {
		for _, p := range programs {
			errs = append(errs, p.await("ready"))
		}
	}
	if err := errors.Join(errs...); err != nil {
		for _, p := range programs {
			_ = p.in.Close()
		}
		return programs, err
	}
	return programs, nil
}

// results are what programs have printed, once they are over.
func results(programs []*program) ([]job, error) {
	var jobs []job
	var errs []error
	for i, p := range programs {
		o := p.end()
		j, err := parseJob(o.lines, i)
		if err != nil || !o.ok {
			errs = append(errs, fmt.Errorf("%s: %w: %v", p.name, errors.Join(err, errors.New(o.status)), o))
		}
		jobs = append(jobs, j)
	}
	return jobs, errors.Join(errs...)
}

// together runs programs beside each other; they begin at the same time.
func (h *hardware) together(ctx context.Context, limit time.Duration, all []work) ([]job, error) {
	programs, err := h.startAll(ctx, limit, all)
	if err == nil {
		for _, p := range programs {
			p.goOn()
		}
	}
	jobs, ended := results(programs)
	if err != nil {
		return nil, err
	}
	return jobs, ended
}

// inTurn runs them one after another; they are all there from the beginning.
func (h *hardware) inTurn(ctx context.Context, limit time.Duration, all []work) ([]job, error) {
	programs, err := h.startAll(ctx, limit, all)
	if err == nil {
		for _, p := range programs {
			p.goOn()
			if err = p.await("done"); err != nil {
				break
			}
		}
	}
	jobs, ended := results(programs)
	if err != nil {
		return nil, err
	}
	return jobs, ended
}

// everywhere is the same command lines on the driver as it is.
func everywhere(at place, lines [][]string) (all []work) {
	for _, args := range lines {
		all = append(all, work{at, args})
	}
	return all
}

// apart is each in a vGPU of its own.
func apart(n *node, lines [][]string) (all []work) {
	for i, args := range lines {
		all = append(all, work{n.vgpus[i], args})
	}
	return all
}
