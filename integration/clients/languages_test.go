// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// Runtimes with threads, signals and schedulers of their own: a JVM whose threads
// use a JNI library, and a Go program whose goroutines use cgo.
func TestRuntimesOfOtherLanguages(t *testing.T) {
	c := newCrowd(t)
	java := c.add(harness.Spec{ID: "java", Args: []string{"/usr/bin/java", "-Xmx64m", "-cp", "/clients", "Adds", "6"}}, 1,
		row{Client: "JVM (OpenJDK) with a JNI library", Does: "sums of vectors in 6 threads beside the collector"})
	java.coming = 6
	cgo := c.add(harness.Spec{ID: "go", Args: []string{"/clients/gocgo", "8"}}, 1,
		row{Client: "Go with cgo", Version: "-", Does: "sums of vectors in 16 goroutines that change threads"})
	cgo.coming = 8
	c.all()
}
