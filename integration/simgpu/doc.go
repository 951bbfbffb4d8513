// SPDX-License-Identifier: Apache-2.0

// Package simgpu holds the tests of the simulated GPU: a CUDA driver and an
// NVML library over one machine in shared memory. The libraries and the tool
// are C (driver/, nvml/, tool/, machine/) and are built by the Makefile here;
// README.md says what is simulated and what is not.
package simgpu
