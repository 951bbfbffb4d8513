// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"strings"
	"testing"
)

// images are what NVIDIA's own have (nvidia/cuda on Docker Hub), shortened.
const (
	image124 = "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=unknown,driver>=470,driver<471 brand=nvidia,driver>=470,driver<471 " +
		"brand=tesla,driver>=525,driver<526 brand=geforcertx,driver>=525,driver<526 brand=tesla,driver>=535,driver<536"
	image102 = "cuda>=10.2 brand=tesla,driver>=396,driver<397 brand=tesla,driver>=410,driver<411 brand=tesla,driver>=418,driver<419"
)

func TestRequirements(t *testing.T) {
	h100 := Properties{Driver: "580.65.06", CUDA: "13.0", Brand: "tesla", Arch: "9.0"}
	with := func(driver, cuda, brand string) Properties {
		return Properties{Driver: driver, CUDA: cuda, Brand: brand, Arch: "8.0"}
	}
	for _, c := range []struct {
		description, requirement string
		has                      Properties
		met                      bool
	}{
		{"nothing", "", h100, true},
		{"nothing that is known", "foo>=3 , bar=x", h100, true},
		{"what the driver has", "cuda>=13.0", h100, true},
		{"an older CUDA", "cuda>=9", h100, true},
		{"a newer minor version", "cuda>=13.1", h100, false},
		{"a newer major version", "cuda>=14.0", h100, false},
		{"ten is more than nine", "cuda>=13.9", with("600.1", "13.10", "tesla"), true},
		{"a version with fewer numbers", "driver>=580.65", h100, true},
		{"and with more", "driver=580.65.6.0", h100, true},
		{"less", "driver<580", h100, false},
		{"not more", "driver<=580.65.06", h100, true},
		{"another", "driver!=580.65.06", h100, false},
		{"all of it", "driver>=580,arch>=9.0,brand=tesla", h100, true},
		{"not all of it", "driver>=580,arch>=10.0", h100, false},
		{"one of several", "arch>=10.0 driver<570 brand=tesla", h100, true},
		{"none of several", "arch>=10.0 driver<570 brand=geforce", h100, false},
		{"another brand", "brand!=geforce", h100, true},
		{"what is not known of an alternative is left out", "foo=1,driver>=580", h100, true},
		{"two signs of equality", "cuda==13.0", h100, true},
		{"commas too many", ",driver>=580,", h100, true},
		{"CUDA is not known", "cuda>=12.4", Properties{Driver: "580.65.06"}, false},
		{"NVIDIA's image, its CUDA", image124, with("550.54.15", "12.4", "tesla"), true},
		{"NVIDIA's image, an older minor version", image124, with("535.104.05", "12.2", "tesla"), true},
		{"the same of a brand that is not named", image124, with("535.104.05", "12.2", "geforce"), false},
		{"NVIDIA's image, by its compatibility libraries alone", image124, with("470.57.02", "11.4", "tesla"), false},
		{"minor versions before CUDA 11", image102, with("418.40.04", "10.1", "tesla"), false},
		{"the same from the next major version on", image102, with("450.36.06", "11.0", "tesla"), true},
		{"no CUDA is asked for", "brand=tesla,driver>=418,driver<419", with("418.40.04", "10.1", "tesla"), true},
	} {
		t.Run(c.description, func(t *testing.T) {
			r, err := ParseRequirement(c.requirement)
			if err != nil {
				t.Fatal(err)
			}
			if got := r.Met(c.has); got != c.met {
				t.Errorf("%q is met by %+v: %v", c.requirement, c.has, got)
			}
		})
	}
}

func TestRequirementsThatAreNone(t *testing.T) {
	for requirement, says := range map[string]string{
		"cuda":            "no condition",
		">=12.4":          "no condition",
		"cuda>=":          "no version",
		"cuda>=12.x":      "no version",
		"cuda>=-1":        "no version",
		"driver=>5":       "compared by",
		"cuda<>12":        "compared by",
		"brand>=tesla":    "compared by",
		"cuda>=12 driver": "no condition",
	} {
		if _, err := ParseRequirement(requirement); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", requirement, err)
		}
	}
}

func TestTheCUDAThatARequirementWants(t *testing.T) {
	for requirement, want := range map[string]string{
		image124: "12.4", "cuda>=12.4 cuda>=11.8,brand=tesla": "11.8", "driver>=535": "", "cuda<13": "", "cuda>=12.10 cuda>=12.9": "12.9",
	} {
		r, err := ParseRequirement(requirement)
		if err != nil || r.CUDA() != want {
			t.Errorf("%q wants CUDA %q, %v", requirement, r.CUDA(), err)
		}
	}
}

// FuzzRequirement reads any text and holds it against a driver.
func FuzzRequirement(f *testing.F) {
	for _, s := range []string{image124, image102, "cuda>=", "a!=b,,  c=d", "brand=,arch<1.2.3"} {
		f.Add(s, "12.4")
	}
	f.Fuzz(func(t *testing.T, text, cuda string) {
		r, err := ParseRequirement(text)
		if err != nil {
			return
		}
		if wanted := r.CUDA(); wanted != "" && compare(wanted, wanted) != 0 {
			t.Errorf("%q wants CUDA %q, which is no version", text, wanted)
		}
		r.Met(Properties{Driver: "580.65.06", CUDA: cuda, Brand: "tesla", Arch: "9.0"})
	})
}
