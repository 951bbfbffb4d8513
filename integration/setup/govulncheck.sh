#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Holds what our programs call against Go's database of vulnerabilities. That is the
# one of today at vuln.go.dev; where it can not be reached, the one that setup.sh
# vulnerabilities brought in from its Go module, and a warning says how old that is.
#
# It looks at the standard library of the toolchain that go.mod names, and warns if
# this machine's go builds with an older one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=integration/setup/versions.sh
. integration/setup/versions.sh

warn() { printf 'warning: %s\n' "$*" >&2; }

toolchain=$(sed -n 's/^toolchain //p' go.mod)
builds=$(go env GOVERSION)
if [ "$builds" != "$toolchain" ] && [ "$(printf '%s\n' "$builds" "$toolchain" | sort -V | tail -n 1)" = "$toolchain" ]; then
	warn "this machine builds with $builds (GOTOOLCHAIN=$(go env GOTOOLCHAIN)): its programs lack what $toolchain has mended"
fi

database=https://vuln.go.dev
# A package of one line: what fails is the way to the database, before or after it
# was asked which form it has.
if ! reason=$(GOTOOLCHAIN=$toolchain .tools/bin/govulncheck -db "$database" ./vgpu/version 2>&1) &&
	[[ $reason == *"fetching vulnerabilities"* || $reason == *"creating client"* ]]; then
	database=file://$PWD/.tools/vulndb-$VULNDB
	date=${VULNDB#*-} date=${date%%-*}
	warn "vuln.go.dev can not be reached ($reason)"
	warn "vulnerabilities are those known on ${date:0:4}-${date:4:2}-${date:6:2}, see VULNDB in integration/setup/versions.sh"
fi
GOTOOLCHAIN=$toolchain exec .tools/bin/govulncheck -db "$database" ./...
