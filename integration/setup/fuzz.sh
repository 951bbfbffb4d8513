#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# fuzz.sh TIME: runs every Go fuzz target for TIME (100000x for so many inputs,
# or 10s), one after another, since the go command takes one target at once. A
# failing input is kept by go itself under testdata/fuzz beside the test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
time=${1:?usage: fuzz.sh TIME}

passed=0 failed=()
while IFS=: read -r file line; do
	target=${line#func } target=${target%%(*}
	package=./$(dirname "$file")
	echo "==> $package $target, $time"
	if go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 10x "$package"; then
		passed=$((passed + 1))
	else
		failed+=("$package $target")
	fi
done < <(git ls-files -co --exclude-standard '*_test.go' | xargs grep -H '^func Fuzz[A-Z]' | sort)
if [ $((passed + ${#failed[@]})) -eq 0 ]; then
	echo "no fuzz target found" >&2
	exit 1
fi
echo "fuzz: $passed passed, ${#failed[@]} failed"
if [ ${#failed[@]} -gt 0 ]; then
	printf 'failed: %s\n' "${failed[@]}" >&2
	exit 1
fi
