// SPDX-License-Identifier: Apache-2.0

// Package opencl runs OpenCL programs that nobody here wrote in real containers under
// the runtime: with a real loader and a real implementation, PoCL, whose CPU device stands
// for a simulated GPU. What it says of when commands ran is a witness of exclusion that
// nobody here wrote either. make test-opencl runs it; with DOC=1 it writes docs/opencl.md.
package opencl
