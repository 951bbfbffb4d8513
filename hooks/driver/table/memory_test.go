// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// uncharged are the names of class memory that need no hook.
var uncharged = map[string]string{
	"the host's memory": "cuMem(?:AllocHost|FreeHost|Host.*)",
	"charged to the process that exported it": "cuIpc.*Mem.*|cu(?:Import|Destroy)?ExternalMemory.*|" +
		"cuMem(?:ExportToShareableHandle|Pool(?:Import|Export).*)",
	"addresses and rights, no memory": "cuMemAddress.*|cuMemSetAccess|cuMemPool(?:Get|Set)Access",
	"said of pools that are asked":    "cuDevice(?:Get(?:Default)?|Set)MemPool|cuMemSetMemPool|cuMemPool(?:Get|Set)Attribute",
	"memory that was charged":         "cuMulticast.*|cuGraphAddMemFreeNode",
}

// An allocator of a later driver must not be overlooked.
func TestEveryAllocatorIsHookedOrNeedsNone(t *testing.T) {
	hooked, passing := 0, 0
	for name, r := range rows(t) {
		if r.Class != "memory" && !strings.HasPrefix(r.Base, "cuMemAlloc") && r.Base != "cuMemFreeAsync" {
			continue
		}
		reasons := 0
		for _, pattern := range uncharged {
			if regexp.MustCompile("^(?:" + pattern + ")$").MatchString(r.Base) {
				reasons++
			}
		}
		switch {
		case hookOf(r) != nil && reasons == 0:
			hooked++
		case hookOf(r) == nil && reasons == 1:
			passing++
		default:
			t.Errorf("%s: hooked %v, and %d reasons not to", name, hookOf(r) != nil, reasons)
		}
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("Of %d names that allocate, free or tell of memory %d are hooked", hooked+passing, hooked); !strings.Contains(string(readme), want) {
		t.Errorf("README.md does not say %q", want)
	}
}
