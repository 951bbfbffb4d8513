// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Requirement is what an image asks of the driver, as NVIDIA's images say it in
// NVIDIA_REQUIRE_CUDA and other variables NVIDIA_REQUIRE_*
// (https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html#constraints):
// alternatives between spaces, each of conditions between commas.
type Requirement struct{ alternatives [][]condition }

// condition is one of them, such as driver>=535.
type condition struct{ property, operator, value string }

// Properties are what a requirement may be about: the driver's version, the newest
// CUDA that it serves, and brand and compute capability of a GPU. What is not known
// is empty, and meets no condition.
type Properties struct{ Driver, CUDA, Brand, Arch string }

func (p Properties) of(name string) string {
	return map[string]string{"driver": p.Driver, "cuda": p.CUDA, "brand": p.Brand, "arch": p.Arch}[name]
}

// ParseRequirement reads one. As NVIDIA's toolkit does, it leaves out conditions on
// properties that it does not know.
func ParseRequirement(s string) (Requirement, error) {
	var r Requirement
	for _, text := range strings.Fields(s) {
		var all []condition
		for _, part := range strings.Split(text, ",") {
			if part == "" {
				continue
			}
			c, err := parseCondition(part)
			if err != nil {
				return Requirement{}, err
			}
			if slices.Contains([]string{"driver", "cuda", "brand", "arch"}, c.property) {
				all = append(all, c)
			}
		}
		if all != nil {
			r.alternatives = append(r.alternatives, all)
		}
	}
	return r, nil
}

func parseCondition(s string) (c condition, _ error) {
	at := strings.IndexAny(s, "<>=!")
	if at < 1 {
		return c, fmt.Errorf("%.80q is no condition: it must be a property, one of = != < <= > >=, and a value", s)
	}
	c.value = strings.TrimLeft(s[at:], "<>=!")
	c.property, c.operator = s[:at], s[at:len(s)-len(c.value)]
	if c.operator == "==" {
		c.operator = "="
	}
	operators := []string{"=", "!=", "<", "<=", ">", ">="}
	if c.property == "brand" {
		operators = operators[:2]
	} else if _, ok := numbers(c.value); !ok && slices.Contains([]string{"driver", "cuda", "arch"}, c.property) {
		return c, fmt.Errorf("%.80q is no condition: %.80q is no version", s, c.value)
	}
	if !slices.Contains(operators, c.operator) {
		return c, fmt.Errorf("%.80q is no condition: %s is compared by one of %s", s, c.property, strings.Join(operators, " "))
	}
	return c, nil
}

// Met says whether the requirement is met where the image's own libraries for
// forward compatibility are not used. An alternative that names no version of CUDA
// may count on these: it is met only if the driver runs the image without them,
// that is if CUDA's major version is the one that the other alternatives ask for, or
// a newer one, from CUDA 11 on
// (https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
// A requirement without any condition is met.
func (r Requirement) Met(p Properties) bool {
	wanted := r.CUDA()
	return len(r.alternatives) == 0 || slices.ContainsFunc(r.alternatives, func(all []condition) bool {
		for _, c := range all {
			if !c.met(p) {
				return false
			}
		}
		return wanted == "" || slices.ContainsFunc(all, func(c condition) bool { return c.property == "cuda" }) ||
			runsMinor(p.CUDA, wanted)
	})
}

// CUDA is the least version of CUDA that an alternative asks for; empty: none does.
func (r Requirement) CUDA() string {
	least := ""
	for _, all := range r.alternatives {
		for _, c := range all {
			if c.property == "cuda" && slices.Contains([]string{"=", ">", ">="}, c.operator) && (least == "" || compare(c.value, least) < 0) {
				least = c.value
			}
		}
	}
	return least
}

func runsMinor(has, wanted string) bool {
	h, ok := numbers(has)
	w, _ := numbers(wanted)
	return ok && (h[0] > w[0] || h[0] == w[0] && h[0] >= 11)
}

func (c condition) met(p Properties) bool {
	has := p.of(c.property)
	if has == "" {
		return false
	}
	order := 0
	if c.property == "brand" {
		order = cmp.Compare(has, c.value)
	} else {
		order = compare(has, c.value)
	}
	switch c.operator {
	case "=":
		return order == 0
	case "!=":
		return order != 0
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	default:
		return order >= 0
	}
}

// compare compares versions number by number; those that one lacks are 0.
func compare(a, b string) int {
	x, _ := numbers(a)
	y, _ := numbers(b)
	for len(x) < len(y) {
		x = append(x, 0)
	}
	for len(y) < len(x) {
		y = append(y, 0)
	}
	return slices.Compare(x, y)
}

// numbers are those of a version such as 580.65.06.
func numbers(version string) ([]uint64, bool) {
	var all []uint64
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.ParseUint(part, 10, 64)
		if err != nil {
			return nil, false
		}
		all = append(all, n)
	}
	return all, true
}
