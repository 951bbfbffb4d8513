// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/containerd/errdefs"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// faults are what is wrong with the fields of a call: each names the field and
// the rule.
type faults []error

func (f *faults) add(field, rule string) { *f = append(*f, fmt.Errorf("%s: %s", field, rule)) }

// err is all of them as one InvalidArgument; nil if there are none. It wraps nothing
// else: errgrpc writes the class of an error that wraps several behind it once more.
func (f faults) err() error {
	if len(f) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", errors.Join(f...).Error(), errdefs.ErrInvalidArgument)
}

// The longest texts that the API takes, in bytes.
const (
	maxName   = 4096 // as long as a path can be
	maxReason = 256
	maxKey    = 512
)

// maxAnnotations bounds what one error has to say of them.
const maxAnnotations = 1024

// text checks one that may be empty.
func (f *faults) text(field, value string, most int) {
	if len(value) > most || strings.ContainsFunc(value, func(c rune) bool { return !unicode.IsPrint(c) }) {
		f.add(field, fmt.Sprintf("must be at most %d bytes of printable text", most))
	}
}

// name checks a text that must be there.
func (f *faults) name(field, value string) {
	if value == "" {
		f.add(field, "must not be empty")
		return
	}
	f.text(field, value, maxName)
}

func (f *faults) container(c *v1.Container) {
	f.name("container.containerd", c.GetContainerd())
	f.name("container.namespace", c.GetNamespace())
	f.name("container.id", c.GetId())
}

func (f *faults) pod(field string, p *v1.Pod) {
	f.text(field+".namespace", p.GetNamespace(), maxName)
	f.text(field+".name", p.GetName(), maxName)
	f.text(field+".uid", p.GetUid(), maxName)
	f.text(field+".container", p.GetContainer(), maxName)
}

func (f *faults) annotations(all map[string]string) {
	if len(all) > maxAnnotations {
		f.add("annotations", fmt.Sprintf("must be at most %d", maxAnnotations))
		return
	}
	for key, value := range all {
		f.text("annotations: key", key, maxKey)
		f.text("annotations: value of "+clip(key), value, maxName)
	}
}

// clip keeps what a caller wrote to a length that fits an error, and quotes it.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return fmt.Sprintf("%q", s)
}

var hex16 = regexp.MustCompile(`^[0-9a-f]{16}$`)

func isHex16(s string) bool { return hex16.MatchString(s) }

// vgpuID checks the id of a vGPU.
func (f *faults) vgpuID(field, value string) {
	if !isHex16(value) {
		f.add(field, clip(value)+" is not the id of a vGPU: must be 16 hexadecimal digits")
	}
}

// gpuUUID checks the form of a GPU's UUID, as NVML prints it.
func (f *faults) gpuUUID(field, value string) {
	if raw, err := wire.ParseUUID(value); err != nil || wire.FormatUUID(raw) != value {
		f.add(field, clip(value)+" is not the UUID of a GPU: must be as GPU-01234567-89ab-cdef-0123-456789abcdef, in small letters")
	}
}
