#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Looks at vgpu on a machine with an NVIDIA GPU: docs/hardware.md.
#
#   run.sh --build            builds what the other forms need, into build/hardware
#   run.sh [OPTION...]        on this machine's GPU
#   run.sh --simulate ...     on the simulated one
#   run.sh --help             the options
#
# What is in build/hardware is used as it is, without Go or a C compiler; if nothing is
# there it is built first.
set -euo pipefail
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
built=${VGPU_HARDWARE:-$tree/build/hardware}

build() { make -C "$tree" hardware-build; }

if [ "${1-}" = --build ]; then
	build
	du -sh "$built"
	exit
fi
if [ ! -x "$built/hardware" ]; then
	if ! command -v go >/dev/null || ! command -v gcc >/dev/null; then
		echo "nothing is built in $built, and there is no Go or no gcc here: run integration/hardware/run.sh --build where they are, and bring that directory along" >&2
		exit 1
	fi
	build
fi
commit=$(cat "$built/commit" 2>/dev/null || echo unknown)
exec "$built/hardware" --built "$built" --commit "$commit" "$@"
