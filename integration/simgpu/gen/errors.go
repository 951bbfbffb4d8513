// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

var errorValue = regexp.MustCompile(`(?m)^\s+(CUDA_(?:ERROR_[A-Z0-9_]+|SUCCESS)) = (\d+),$`)

// genErrors writes X(name, text) for each CUresult. The texts are made from the
// names: nobody should depend on their wording.
func genErrors(abi, out string) error {
	src, err := os.ReadFile(abi)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(generated + "/* X(result, text) */\n")
	seen := map[string]bool{}
	for _, m := range errorValue.FindAllStringSubmatch(string(src), -1) {
		if seen[m[2]] {
			continue
		}
		seen[m[2]] = true
		text := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(m[1], "CUDA_ERROR_"), "_", " "))
		if m[1] == "CUDA_SUCCESS" {
			text = "no error"
		}
		fmt.Fprintf(&b, "X(%s, \"%s\")\n", m[1], text)
	}
	if len(seen) < 50 {
		return fmt.Errorf("%s: only %d results found", abi, len(seen))
	}
	return os.WriteFile(out, []byte(b.String()), 0o644)
}
