// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCreateTellsWhatTheImageAsksOfTheDriver(t *testing.T) {
	const image = `"NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=535", "NVIDIA_REQUIRE_DRIVER=driver>=535", "NVIDIA_REQUIRE_JETPACK=csv"`
	all := map[string]string{"NVIDIA_REQUIRE_CUDA": "cuda>=12.4 brand=tesla,driver>=535", "NVIDIA_REQUIRE_DRIVER": "driver>=535"}
	for _, c := range []struct {
		description, env string
		disabled         bool // by the handler
		want             map[string]string
	}{
		{"nothing", `"PATH=/bin"`, false, nil},
		{"what NVIDIA's images ask", image, false, all},
		{"the last of two counts", `"NVIDIA_REQUIRE_DRIVER=driver>=1", ` + image, false, all},
		{"turned off in the container", image + `, "NVIDIA_DISABLE_REQUIRE=1"`, false, nil},
		{"turned off, and on again", `"NVIDIA_DISABLE_REQUIRE=true", "NVIDIA_DISABLE_REQUIRE=false", ` + image, false, all},
		{"no word for yes", image + `, "NVIDIA_DISABLE_REQUIRE=yes"`, false, all},
		{"turned off by the handler", image, true, nil},
	} {
		t.Run(c.description, func(t *testing.T) {
			f := newFixture(t, `{"process": {"env": [`+c.env+`]}}`)
			f.config.DisableRequire = c.disabled
			if err := f.create(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, f.vgpud.created[0].GetRequirements()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
