// SPDX-License-Identifier: Apache-2.0

// Package kubetest has what the tests of package kube and of those below it share.
package kubetest

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Patience is how long a test waits for what must happen. It only ends a test that
// would hang.
const Patience = 30 * time.Second

// Until waits for what must become true.
func Until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, Patience, true, func(context.Context) (bool, error) { return ok(), nil }); err != nil {
		t.Fatalf("it never came about that %s", what)
	}
}
