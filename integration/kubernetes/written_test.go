// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// manifest is one of those that users apply.
func (c *Cluster) manifest(name string) string {
	return filepath.Join(c.paths.Root, "configs", "kubernetes", name)
}

// tries is what kubectl says when somebody would write an object.
func (c *cluster) tries(object string) (string, error) {
	c.T.Helper()
	file := filepath.Join(c.T.TempDir(), "object.yaml")
	if err := os.WriteFile(file, []byte(object), 0o600); err != nil {
		c.T.Fatal(err)
	}
	return c.Kubectl(c.Ctx, "create", "--dry-run=server", "--filename", file)
}

// tells waits until kubectl says something of an object, and lets it be written or not:
// the API server learns of policies by a watch.
func (c *cluster) tells(object, says string, allowed bool) {
	c.T.Helper()
	c.wait(func() error {
		out, err := c.tries(object)
		if (err == nil) != allowed || !strings.Contains(out, says) {
			return fmt.Errorf("want %q (allowed: %t), it says %s: %w", says, allowed, out, err)
		}
		return nil
	})
}

// What is wrong with a claim, a template, a class or a pod is told to who writes it, by
// the policies of admission.yaml.
func TestMistakesAreToldToWhoWritesThem(t *testing.T) {
	c := use(t)
	parameters := func(fields string) string {
		return fmt.Sprintf("config: [{opaque: {driver: vgpu-shim.dev, parameters: {%s}}}]", fields)
	}
	ours := func(fields string) string {
		return parameters("apiVersion: vgpu-shim.dev/v1alpha1, kind: VgpuConfig, " + fields)
	}
	devices := func(class, capacity, config string) string {
		return fmt.Sprintf("devices: {requests: [{name: gpu, exactly: {deviceClassName: %s, capacity: {requests: {%s}}}}], %s}", class, capacity, config)
	}
	object := func(version, kind, spec string) string {
		return fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: written}, spec: {%s}}", version, kind, spec)
	}
	claim := func(config string) string {
		return object("resource.k8s.io/v1", "ResourceClaim", devices("vgpu", "memory: 1Gi", config))
	}
	template := func(spec string) string {
		return object("resource.k8s.io/v1", "ResourceClaimTemplate", "spec: {"+spec+"}")
	}
	class := func(config string) string { return object("resource.k8s.io/v1", "DeviceClass", config) }
	aPod := func(of, limits string) string {
		return object("v1", "Pod", of+"containers: [{name: main, image: none, resources: {limits: {"+limits+"}}}]")
	}

	wieght := claim(ours("wieght: 5"))
	policies := c.manifest("admission.yaml")
	if _, err := c.Kubectl(c.Ctx, "apply", "--filename", policies); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := c.Kubectl(c.Ctx, "delete", "--filename", policies); err != nil {
			t.Error(err)
		}
		// The tests of what vgpu-kubelet says come to it.
		c.tells(wieght, "created", true)
	}()

	for _, test := range []struct {
		description, object, says string
		allowed                   bool
	}{
		{"an unknown field", wieght, "VgpuConfig has the unknown field wieght; the fields are gang, maxShare, overrun, placement, priority, quantum, weight", false},
		{"a quantum", claim(ours("quantum: 1h")), "VgpuConfig: quantum must be a duration from 1ms to 10s, such as 20ms", false},
		{"a cap", claim(ours("maxShare: 120%")), "VgpuConfig: maxShare must be a part of a GPU's time, above 0, up to 1 or 100%", false},
		{"a priority in a template", template(devices("vgpu", "memory: 1Gi", ours("priority: urgent"))), "VgpuConfig: priority must be low, normal or high", false},
		{"a weight in a class", class(ours("weight: 0")), "VgpuConfig: weight must be a whole number from 1 to 10000", false},
		{"a gang", claim(ours("gang: 'a b'")), "VgpuConfig: gang must be a name of 1 to 63 letters, digits, '-', '_' or '.'", false},
		{"an overrun", claim(ours("overrun: stop")), "VgpuConfig: overrun must be corun, freeze or kill", false},
		{"a placement", class(ours("placement: any")), "VgpuConfig: placement must be identical or allocated", false},
		{"parameters of another kind", claim(parameters("priority: high")), "parameters of the driver vgpu-shim.dev must begin with apiVersion: vgpu-shim.dev/v1alpha1 and kind: VgpuConfig", false},
		{"a size that is exceeded", template(devices("vgpu-small", "memory: 8Gi, share: 10", "")), "a request of the class vgpu-small must ask, in capacity.requests, for memory up to 4Gi and for a share up to 10", false},
		{"limits without the runtime class", aPod("", "vgpu-shim.dev/gpu: 1"), "a pod with vgpu-shim.dev/ in its limits must have runtimeClassName: vgpu", false},
		{"the runtime class without a claim", aPod("runtimeClassName: vgpu, ", ""), "this pod has runtimeClassName: vgpu and no claim, so kube-scheduler counts no GPU for it", true},
		{"limits", aPod("runtimeClassName: vgpu, ", "vgpu-shim.dev/gpu: 1"), "pod/written created", true},
		{"all fields", claim(ours("weight: 5, priority: high, quantum: 20ms, maxShare: 50%, gang: ring, overrun: kill, placement: allocated")), "written created", true},
		{"a size", template(devices("vgpu-small", "memory: 4Gi, share: 10", "")), "written created", true},
	} {
		t.Run(test.description, func(t *testing.T) {
			c.sub(t).tells(test.object, test.says, test.allowed)
		})
	}
	// Nothing is warned of that is right.
	if out, err := c.tries(aPod("runtimeClassName: vgpu, ", "vgpu-shim.dev/gpu: 1")); err != nil || strings.Contains(out, "Warning") {
		t.Error(errors.Join(err, errors.New(out)))
	}
}
