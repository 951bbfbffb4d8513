// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"strings"
	"testing"
)

// Every pod pays for what the shim links: nothing heavy may slip in beside what
// runc's own shim has.
func TestShimLinksNothingHeavy(t *testing.T) {
	cmd := exec.Command("go", "list", "-tags", "no_grpc", "-deps", ".")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, out)
	}
	packages := strings.Fields(string(out))
	if len(packages) < 100 {
		t.Fatalf("these are not all: %s", out)
	}
	for _, p := range packages {
		switch {
		case p == "google.golang.org/grpc", p == "net/http", p == "crypto/tls", p == "text/template",
			strings.Contains(p, "/go-nvml"), strings.Contains(p, "/nvidia-container-toolkit"), strings.Contains(p, "/cobra"), strings.Contains(p, "/prometheus/"),
			strings.HasPrefix(p, "k8s.io/"), strings.Contains(p, "/vgpu/vgpu/node"), strings.Contains(p, "/vgpu/vgpu/gpu"):
			t.Errorf("the shim links %s", p)
		}
	}
}
