#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# once.sh STAMP DIRECTORY... -- COMMAND...: runs a command whose outcome hangs on the
# files of some directories and on the tools below alone, unless it passed with the same
# before: STAMP then says so. For what searches all cases, which finds the same each
# time, and not for what may go another way when it runs again. Where it can not be told
# what the files are (no git, one that is deleted and not staged) the command runs, and
# leaves no stamp.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
stamp=$(realpath -m "${1:?usage: once.sh STAMP DIRECTORY... -- COMMAND...}")
shift
of=()
while [ "$1" != -- ]; do of+=("$1"); shift; done
shift

# key is one line for all that the outcome hangs on. It fails if that can not be told.
key() {
	{
		printf '%s\n' "$*" "CC=${CC-}" "CFLAGS=${CFLAGS-}" &&
			gcc --version && ${CC:-cc} --version && go version && spin -V &&
			git ls-files -z -co --exclude-standard -- "${of[@]}" | sort -z | xargs -0 sha256sum
	} | sha256sum
}
if ! now=$(key "$@"); then
	echo "it can not be told whether this passed before: $*"
	rm -f "$stamp"
	exec "$@"
fi
if [ "$(cat "$stamp" 2>/dev/null)" = "$now" ]; then
	echo "passed before, and ${of[*]} and the tools are the same since: $* (rm ${stamp#"$PWD/"} runs it again)"
	exit
fi
rm -f "$stamp"
"$@"
mkdir -p "$(dirname "$stamp")"
echo "$now" >"$stamp"
