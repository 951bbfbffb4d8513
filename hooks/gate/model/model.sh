#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# model.sh [full]: checks grantword.pml in every configuration of the file
# configs, two at a time, and compares the verdicts with those expected there.
# full also runs the large configurations, which may take hours. Needs spin and gcc.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# check NAME SET PROPERTY EXPECTED MACROS... writes one line of the table into
# NAME/row.
check() {
	local name=$1 set=$2 property=$3 expected=$4 limit=600 got complete=- states seconds
	shift 4
	local build=(-w -O2 -DCOLLAPSE) search=(-m100000)
	# Most of these searches are sooner done than optimised: -O2 takes gcc twice
	# as long as -O1, and the search is as quick.
	case $set/$expected in
	ci/pass) build=(-w -O1 -DCOLLAPSE) ;;
	ci/*) build=(-w -O0 -DCOLLAPSE) ;;
	bits/*) build=(-w -O2 -DBITSTATE) search+=(-w32 -k3) limit=1800 ;;
	*) limit=7200 ;;
	esac
	case $property in
	safety) build+=(-DSAFETY) ;;
	progress) build+=(-DNP -DNFAIR=3) search+=(-l) ;;
	fair) build+=(-DNP -DNFAIR=3) search+=(-l -f) ;;
	esac
	mkdir "$name"
	cd "$name"
	if ! spin -a "$@" "$here/grantword.pml" >log 2>&1 || [ ! -e pan.c ] ||
		! gcc "${build[@]}" -DVECTORSZ=2048 -DMEMLIM=4096 -o pan pan.c >>log 2>&1; then
		got=unbuilt
	else
		# An interrupted search says how far it came.
		timeout -s INT "$limit" ./pan "${search[@]}" >log 2>&1 || true
		got=$(sed -nE 's/^pan:1: (assertion|invalid end state|non-progress cycle).*/\1/p' log | head -n 1)
		case $got in
		'invalid end state') got=deadlock ;;
		'non-progress cycle') got=cycle ;;
		'') got=nothing ;;
		esac
		[ "$got" != nothing ] || ! grep -q 'errors: 0' log || got=pass
	fi
	# Time, memory or depth may have stopped it short.
	if [ "$got" = pass ]; then
		complete=yes
		if [ "$set" = bits ]; then
			complete=no
		elif grep -qiE 'not completed|out of memory|depth too small' log; then
			got=nothing complete=no
		fi
	fi
	states=$(sed -nE 's/^ *([0-9.e+]+) states, stored.*/\1/p' log)
	seconds=$(sed -nE 's/^pan: elapsed time ([0-9.e+-]+) seconds/\1/p' log)
	printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$name" "$expected" "$got" "${states:--}" "${seconds:--}" "$complete" >row
	rm -f pan pan.? m.pml.trail
	[ "$got" = "$expected" ] || { cp log ../"$name.log"; touch ../differs; }
}

if [ "${1:-}" = check ]; then
	shift
	# shellcheck disable=SC2048,SC2086 # one line of configs: words
	check $*
	exit
fi

spin -V >/dev/null || { echo "spin not found: run make setup-model" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
sets='ci'
[ "${1:-}" != full ] || sets='ci|full|bits'
grep -E "^[a-z0-9_]+ +($sets) " "$here/configs" >selected
[ -s selected ] || { echo "no configuration in $here/configs" >&2; exit 1; }
xargs -P 2 -d '\n' -I{} "$here/model.sh" check {} <selected

printf '%-24s %-10s %-10s %12s %9s  %s\n' name expected got states seconds complete
while read -r name _; do
	IFS=$'\t' read -r -a row <"$name/row"
	printf '%-24s %-10s %-10s %12s %9s  %s\n' "${row[@]}"
done <selected
if [ -e differs ]; then
	for log in *.log; do
		echo "--- $log: not what was expected; the end of what the checker said:"
		tail -n 15 "$log"
	done
	echo "FAILED: a verdict is not the expected one" >&2
	exit 1
fi
echo "model: $(wc -l <selected) configurations, each as expected, in $SECONDS s"
