// SPDX-License-Identifier: Apache-2.0

// Package clients holds the tests with programs that nobody here wrote: CUDA and
// NVML clients in real containers under the shim, two of each at once, judged by
// the simulated GPU's log.
//
// A test that shows what becomes of a client puts a row into the table of
// docs/clients.md, which a run of all tests writes anew if all pass; a run of some
// of them leaves the file alone. What stands there is the same after each run:
// a client does a fixed amount of work, and its submissions are counted.
//
// "make test-clients" brings in the clients and runs this package; "make test"
// leaves it out.
package clients
