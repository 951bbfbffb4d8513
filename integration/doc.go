// SPDX-License-Identifier: Apache-2.0

// Package integration holds the tests of the whole product: real containers
// under each supported containerd, on simulated GPUs, judged by the simulated
// GPU's own log.
//
// They need root and what make setup brings in. Where that is missing they fail;
// they never skip. None of them asserts how long something takes: limits are
// generous, and only keep a test that hangs from hanging forever.
//
// The invariants of the design (docs/design.md, section 3) and their tests:
//
//  1. Exclusion: TestTurns, TestSwitchedOffGate (which sees it fail); with drains
//     that must be resumed, TestDrainsThatNeedTheGate; of a gang, TestGang
//  2. No work passes a closed gate: TestTurns
//  3. Work-conserving: TestSecondGPU
//  4. Released on completion: TestReleasedOnCompletion
//  5. Shares: TestSharesOfHogs, TestPolicies
//  6. Nothing dies because something else did: faults_test.go, interrupted_test.go
//     (at every point of a container's life), overrun_test.go, absence_test.go,
//     TestLostGPU, and soak/, where faults meet
//  7. Fail closed: TestWrongAnnotations, TestNoDaemon
//  8. Pass-through: TestPassThrough
//  10. Inert: TestInert
package integration
