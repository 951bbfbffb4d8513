// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
)

// nvidiaDriver tells whether this host has a working NVIDIA driver: the kernel's
// part is loaded and knows a GPU.
func nvidiaDriver() bool {
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		return false
	}
	gpus, _ := filepath.Glob("/proc/driver/nvidia/gpus/*") // the pattern is well formed
	return len(gpus) > 0
}
