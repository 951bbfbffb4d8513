#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the generated files.
#
#   generate.sh fetch     what needs protoc, or a header of NVIDIA's that is not kept
#   generate.sh offline   what comes from files in the tree and from Go modules
#   generate.sh check     makes the offline part in a scratch folder and compares
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=integration/setup/versions.sh
. integration/setup/versions.sh

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fetch() {
	echo "generate: control API, from vgpu/api/v1/vgpu.proto"
	PATH=$PWD/.tools/bin:$PATH protoc -I. --go_out=. --go_opt=paths=source_relative \
		--go-ttrpc_out=. --go-ttrpc_opt=paths=source_relative vgpu/api/v1/vgpu.proto

	echo "generate: table of the driver's names and header of its binary interface, from $CUDA_RUNTIME_WHEEL"
	/usr/bin/python3 -m pip --disable-pip-version-check download --quiet --no-deps -d "$scratch" "$CUDA_RUNTIME_WHEEL"
	/usr/bin/python3 -m zipfile -e "$scratch"/*.whl "$scratch/wheel"
	local header
	header=$(find "$scratch/wheel" -name cuda.h -print -quit)
	# A driver exports more names than its header declares: those that the table
	# has stay.
	grep -v '^#' hooks/driver/cuda.tsv | cut -f1 >"$scratch/names"
	go run ./hooks/driver/table fetch -header "$header" -typedefs "${header%/*}/cudaTypedefs.h" -names "$scratch/names"
}

# offline GEN SIMGPU DOCS NVML: makes the offline part into hooks/driver/gen,
# integration/simgpu, docs and hooks/driver/nvml, or folders instead of these.
offline() {
	local nvml
	go run ./hooks/driver/table hooks -out "$1" -exports "$2" -coverage "$3/cuda-coverage.md"
	go run ./integration/simgpu/gen errors -out "$2/driver/errors.inc"
	nvml=$(go list -m -f '{{.Dir}}' github.com/NVIDIA/go-nvml)/pkg/nvml/nvml.h
	sed -n 's/^X(\(.*\))$/\1/p' integration/simgpu/nvml/names.inc >"$scratch/nvml-names"
	go run ./integration/simgpu/gen nvml -header "$nvml" -names "$scratch/nvml-names" -out "$2/nvml"
	# Names stay, which a newer header may lack.
	grep -v '^#' hooks/driver/nvml/nvml.tsv | cut -f1 >>"$scratch/nvml-names"
	go run ./hooks/driver/table nvml -header "$nvml" -names "$scratch/nvml-names" -out "$4"
}

check() {
	local made=$scratch/made file kept stale=
	mkdir -p "$made/gen" "$made/simgpu/driver" "$made/simgpu/nvml" "$made/docs" "$made/nvml"
	offline "$made/gen" "$made/simgpu" "$made/docs" "$made/nvml"
	while read -r file; do
		case $file in
		gen/* | nvml/*) kept=hooks/driver/$file ;;
		docs/*) kept=$file ;;
		*) kept=integration/$file ;;
		esac
		if ! diff -u "$kept" "$made/$file" >"$scratch/diff" 2>&1; then
			head -n 20 "$scratch/diff"
			stale=yes
		fi
	done < <(cd "$made" && find . -type f -printf '%P\n')
	if [ -n "$stale" ]; then
		echo "generated files are not current: run make generate-offline and commit the result" >&2
		exit 1
	fi
	echo "generated files are current"
}

case ${1-} in
fetch) fetch ;;
offline) offline hooks/driver/gen integration/simgpu docs hooks/driver/nvml ;;
check) check ;;
*)
	echo "usage: generate.sh fetch|offline|check" >&2
	exit 2
	;;
esac
