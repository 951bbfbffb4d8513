// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Takeover makes the take-over libraries win over a driver that another toolkit
// has put into the spec; the package comment says how. Apply it after the
// mounts.
type Takeover struct {
	// CUDA is the take-over library of libcuda on the host.
	CUDA string
	// NVML is that of libnvidia-ml. If it is empty, libnvidia-ml is left as it is.
	NVML string
	// Keep are the directories in the container under which these names are meant
	// to be what they are.
	Keep []string
	// Later are the mounts that are made after those of the spec.
	Later Later
}

var _ Edit = Takeover{}

// hook is what is known of an OCI hook.
type hook struct {
	Path string   `json:"path"`
	Args []string `json:"args,omitempty"`
}

// IsCUDAName says whether a file of this name is libcuda to a loader:
// libcuda.so, with or without numbers after it.
func IsCUDAName(name string) bool { return isVersionOf(name, "libcuda.so") }

// IsNVMLName says the same of libnvidia-ml.
func IsNVMLName(name string) bool { return isVersionOf(name, "libnvidia-ml.so") }

// Keeps says whether a destination in the container is in one of the directories
// that are kept.
func (t Takeover) Keeps(destination string) bool {
	destination = path.Clean(destination)
	return slices.ContainsFunc(t.Keep, func(dir string) bool { return within(destination, dir) })
}

// library is ours for a file of this name; empty if it is not taken over.
func (t Takeover) library(name string) string {
	switch {
	case IsCUDAName(name):
		return t.CUDA
	case IsNVMLName(name):
		return t.NVML
	}
	return ""
}

func isVersionOf(name, link string) bool {
	version, ok := strings.CutPrefix(name, link)
	if !ok {
		return false
	}
	for version != "" {
		rest, dot := strings.CutPrefix(version, ".")
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		if !dot || digits == 0 {
			return false
		}
		version = rest[digits:]
	}
	return true
}

// Apply implements Edit.
func (t Takeover) Apply(s *Spec) error {
	if err := checkPath("library", t.CUDA); err != nil {
		return fmt.Errorf("invalid take-over: %w", err)
	}
	if t.NVML != "" {
		if err := checkPath("library", t.NVML); err != nil {
			return fmt.Errorf("invalid take-over: %w", err)
		}
	}
	if err := t.mounts(s); err != nil {
		return err
	}
	for _, name := range stageNames {
		if err := t.hooks(s, s.stages[name]); err != nil {
			return err
		}
	}
	return nil
}

func (t Takeover) mounts(s *Spec) error {
	for i := range s.mounts.elements {
		m := s.mounts.elements[i].value
		dest := path.Clean(m.Destination)
		library := t.library(path.Base(dest))
		if library == "" || t.Keeps(dest) || m.Source == library {
			continue
		}
		ours := Mount{
			Destination: m.Destination,
			Type:        "bind",
			Source:      library,
			Options:     []string{"bind", "ro", "nosuid", "nodev"},
		}
		raw, err := encode(ours)
		if err != nil {
			return err
		}
		s.mounts.elements[i] = element[Mount]{ours, raw}
		s.mounts.changed = true
	}
	return nil
}

func (t Takeover) hooks(s *Spec, stage *list[hook]) error {
	stage.remove(func(h hook) bool {
		name, sub := nvidiaHook(h)
		return name != "" && (sub == "" || sub == "enable-cuda-compat")
	})
	for i := range stage.elements {
		e := &stage.elements[i]
		if _, sub := nvidiaHook(e.value); sub != "create-symlinks" {
			continue
		}
		args := withoutLinks(e.value.Args, func(link string) bool {
			return t.library(path.Base(link)) != "" || t.Later.at(link) || slices.ContainsFunc(s.mounts.elements, func(m element[Mount]) bool {
				return path.Clean(m.value.Destination) == path.Clean(link)
			})
		})
		if len(args) == len(e.value.Args) {
			continue
		}
		raw, err := withArgs(e.raw, args)
		if err != nil {
			return err
		}
		e.value.Args, e.raw = args, raw
		stage.changed = true
	}
	// A create-symlinks without links is legal and does nothing.
	return nil
}

// nvidiaHook names the hook if it is one of NVIDIA's: the legacy one has no
// subcommand, nvidia-cdi-hook and "nvidia-ctk hook" have one.
func nvidiaHook(h hook) (name, subcommand string) {
	name = path.Base(h.Path)
	switch name {
	case "nvidia-container-runtime-hook", "nvidia-container-toolkit":
		return name, ""
	case "nvidia-cdi-hook", "nvidia-ctk":
		for _, a := range h.Args[min(1, len(h.Args)):] {
			if a != "hook" && !strings.HasPrefix(a, "-") {
				return name, a
			}
		}
		return name, "help"
	}
	return "", ""
}

// withoutLinks returns args less the links (--link target::link) that drop
// holds for.
func withoutLinks(args []string, drop func(link string) bool) []string {
	kept := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		flag, value, joined := strings.Cut(args[i], "=")
		if strings.TrimLeft(flag, "-") != "link" || !strings.HasPrefix(flag, "-") || !joined && i+1 == len(args) {
			kept = append(kept, args[i])
			continue
		}
		first := i
		if !joined {
			i++
			value = args[i]
		}
		if _, link, ok := strings.Cut(value, "::"); ok && drop(link) {
			continue
		}
		kept = append(kept, args[first:i+1]...)
	}
	return kept
}

// withArgs returns the hook with other arguments and everything else as it
// came.
func withArgs(raw json.RawMessage, args []string) (json.RawMessage, error) {
	var o object
	if err := json.Unmarshal(raw, &o); err != nil {
		return nil, err
	}
	b, err := encode(args)
	if err != nil {
		return nil, err
	}
	o.set("args", b)
	return encode(o)
}
