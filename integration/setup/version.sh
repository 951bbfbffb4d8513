#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# version.sh version|commit: what the Makefile stamps into the programs. Works
# with no tags yet, and in a tree that is no repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# The version under work, where no tag says it.
next=v0.1.0-dev

case ${1-} in
version)
	if tag=$(git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null); then
		echo "$tag"
	elif hash=$(git rev-parse --short=12 --verify HEAD 2>/dev/null); then
		if [ -n "$(git status --porcelain --untracked-files=no 2>/dev/null)" ]; then hash=$hash.dirty; fi
		echo "$next+g$hash"
	else
		echo "$next"
	fi
	;;
commit) git rev-parse --verify HEAD 2>/dev/null || true ;;
*)
	echo "usage: version.sh version|commit" >&2
	exit 2
	;;
esac
