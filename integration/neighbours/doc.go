// SPDX-License-Identifier: Apache-2.0

// Package neighbours holds the tests of the shim among those that it stands
// between where people use it: above it nerdctl, docker and a CRI, below it crun.
// What each starts is the main job: containers that compute in turns on one
// simulated GPU, judged by its log.
//
// They need root and what make setup-neighbours brings in, and fail without.
package neighbours
