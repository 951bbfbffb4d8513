// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"path/filepath"
	"testing"
)

// compile builds a program or library of testdata that one test needs, into out.
func compile(t *testing.T, out string, args ...string) string {
	t.Helper()
	to := filepath.Join(built, out)
	all := append([]string{"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", to}, tools.cflags...)
	if err := run(tools.cc, append(all, args...)...); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestTrampolineKeepsEveryArgument(t *testing.T) {
	driver := compile(t, "arguments-driver.so", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "testdata/arguments_driver.c")
	compile(t, "arguments", "testdata/arguments.c", driver)
	start(t, newArbiter(t), "arguments-driver.so", nil, "arguments").Done()
}
