// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// library compiles a shared object.
func library(t *testing.T, name, source string) string {
	t.Helper()
	dir := t.TempDir()
	c, so := filepath.Join(dir, "l.c"), filepath.Join(dir, name)
	if err := os.WriteFile(c, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", so, c).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return so
}

func TestUnknownNamesOfADriver(t *testing.T) {
	driver := library(t, "libcuda.so.1", `
		#include <stdlib.h>
		int cuData;
		static int own(void) { return cuData; }
		int cuInit(void) { return own(); }
		int cuNew(void) { return atoi("1"); }
		__attribute__((weak)) int cuLaunchNew(void) { return 0; }
		__attribute__((visibility("hidden"))) int cuHidden(void) { return 0; }
		__attribute__((visibility("protected"))) int cuProtected(void) { return 0; }
	`)
	ours := library(t, "ours.so", `int cuInit(void) { return 0; } int cuOlder(void) { return 0; }`)
	got, err := Unknown(driver, ours)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"cuLaunchNew", "cuNew", "cuProtected"}, got); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
	for name, want := range map[string]bool{
		"nvmlDeviceSetNew_v2": true, "nvmlDeviceResetNew": true, "nvmlNewCreate": true,
		"nvmlDeviceGetNew": false, "nvmlDeviceGetSettings": false, "nvmlEventSetNew": false, "nvmlSystemEventSetNew": false, "cuCtxSetNew": false,
	} {
		if Changes(name) != want {
			t.Errorf("%s looks like a change: %v", name, !want)
		}
	}
	if !Submits("cuLaunchNew") || Submits("cuNew") || Submits("nvmlInit") {
		t.Error("which of them look like submissions")
	}
}

func TestAFileThatIsNoLibraryIsNamed(t *testing.T) {
	text := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := os.WriteFile(text, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{text, "/does/not/exist.so"} {
		if _, err := Exports(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%v", err)
		}
	}
}
