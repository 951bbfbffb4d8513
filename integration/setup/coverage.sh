#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
#   coverage.sh DIR    runs the C code of hooks/gate, hooks/driver and hooks/opencl, built
#                      to count what is run, under its tests and the explorer, prints how
#                      much of it was, and fails if that is too little.
#
# What a killed process ran is not counted: it writes its counts when it exits. That is
# why the test that compares all system calls of two programs is left out here.
set -euo pipefail
out=$(realpath -m "${1:?usage: coverage.sh DIR}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Threads count too, and the counts stand beside the objects, whatever the build
# says of paths otherwise.
flags="--coverage -O0 -fprofile-update=atomic -fprofile-prefix-map=$out=$out"
rm -rf "$out"
mkdir -p "$out/driver" "$out/opencl" "$out/explore"
echo "coverage: the tests of the driver library"
VGPU_TEST_OUT=$out/driver VGPU_TEST_CFLAGS=$flags go test -count=1 -timeout 15m -skip TestProcessWithoutCUDACall ./hooks/driver/test
echo "coverage: the tests of the OpenCL layer"
VGPU_TEST_OUT=$out/opencl VGPU_TEST_CFLAGS=$flags go test -count=1 -timeout 15m -skip 'TestLibrary$' ./hooks/opencl/test
echo "coverage: walks of the explorer"
make -s -C hooks/gate/explore OUT="$out/explore" CC="cc --coverage -fprofile-update=atomic" CFLAGS="-O0 -g"
for scenario in threads resume "late closer" large; do
	"$out/explore/explore" -w 1000 -s 1 weak "$scenario" | tail -n 1
done
go run ./integration/coverage -copies "$out/explore/gate" "$out/driver" "$out/opencl" "$out/explore"
