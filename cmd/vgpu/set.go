// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

func assignments(_ *cobra.Command, args []string) error {
	if len(args) < 2 || args[0] == "" {
		return usage{fmt.Errorf("an ID and at least one KEY=VALUE are needed; see vgpu set --help")}
	}
	_, err := changes(args[1:])
	return err
}

// changes reads KEY=VALUE... as annotations. What they may be, vgpud says.
func changes(args []string) (map[string]string, error) {
	all := make(map[string]string)
	for _, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		if !ok || key == "" {
			return nil, usage{fmt.Errorf("%q must be KEY=VALUE; see vgpu set --help", arg)}
		}
		key = request.Prefix + strings.TrimPrefix(key, request.Prefix)
		if _, twice := all[key]; twice {
			return nil, usage{fmt.Errorf("%q: %s is there twice", arg, key)}
		}
		all[key] = value
	}
	return all, nil
}

func (a *app) set(ctx context.Context, w io.Writer, args []string) error {
	annotations, err := changes(args[1:])
	if err != nil {
		return err
	}
	id, err := a.whichVGPU(ctx, args[0])
	if err != nil {
		return err
	}
	var resp *v1.UpdateResponse
	if err := a.ask(ctx, "change vGPU "+id, func(ctx context.Context, c v1.ControlClient) (err error) {
		resp, err = c.Update(ctx, &v1.UpdateRequest{Id: id, Annotations: annotations})
		return err
	}); err != nil {
		return err
	}
	row := []*v1.VGPU{resp.GetVgpu()}
	if a.output == "json" {
		return writeJSON(w, vgpusJSON(row))
	}
	return writeVGPUs(w, row)
}

// whichVGPU asks vgpud for the id of the vGPU that is meant.
func (a *app) whichVGPU(ctx context.Context, meant string) (string, error) {
	var list *v1.ListResponse
	if err := a.ask(ctx, "list the vGPUs", func(ctx context.Context, c v1.ControlClient) (err error) {
		list, err = c.List(ctx, &v1.ListRequest{})
		return err
	}); err != nil {
		return "", err
	}
	return find(list.GetVgpus(), meant)
}

// find is the id of the vGPU that is meant by its own id, by its container's,
// or by the beginning of its own, in this order.
func find(all []*v1.VGPU, meant string) (string, error) {
	for _, is := range []func(*v1.VGPU) bool{
		func(v *v1.VGPU) bool { return v.GetId() == meant },
		func(v *v1.VGPU) bool { return v.GetContainer().GetId() == meant },
		func(v *v1.VGPU) bool { return strings.HasPrefix(v.GetId(), meant) },
	} {
		var ids []string
		for _, v := range all {
			// One that is being removed may still stand beside its successor.
			if is(v) && !slices.Contains(ids, v.GetId()) {
				ids = append(ids, v.GetId())
			}
		}
		switch len(ids) {
		case 0:
		case 1:
			return ids[0], nil
		default:
			return "", fmt.Errorf("%q could be any of the vGPUs %s", meant, strings.Join(ids, ", "))
		}
	}
	return "", fmt.Errorf("no vGPU %q, and no container with that id; see vgpu ps", meant)
}
