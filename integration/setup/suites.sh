# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2154 # tools, scratch and the functions are those of setup.sh
#
# The suites that nobody here wrote, as programs in .tools/suites. Sourced by
# setup.sh, never run.

# suite NAME STAMP FUNCTION makes .tools/suites/NAME, by a function that is
# given an empty directory to fill.
suite() {
	local name=$1 stamp=$2 fill=$3
	if [ "$(cat "$tools/suites/$name/.stamp" 2>/dev/null)" = "$stamp" ]; then
		say "$name ($stamp): there already"
		return
	fi
	say "building $name from its Go module ($stamp)"
	make_scratch
	mkdir "$scratch/$name"
	"$fill" "$scratch/$name"
	echo "$stamp" >"$scratch/$name/.stamp"
	mkdir -p "$tools/suites"
	rm -rf "${tools:?}/suites/$name"
	mv "$scratch/$name" "$tools/suites/$name"
}

# in_module DIRECTORY COMMAND ARGS... is "go COMMAND" in a module's directory.
in_module() {
	local source=$1 command=$2
	shift 2
	with_progress "go $command ${*: -1}" env CGO_ENABLED=0 GOFLAGS= go "$command" -C "$source" -trimpath -buildvcs=false "$@"
}

# containerd's own client tests, and the runc with a delay that some of them use.
fill_client() {
	local source
	source=$(module_dir github.com/containerd/containerd/v2 "v$CONTAINERD")
	in_module "$source" test -c -o "$1/client.test" ./integration/client
	in_module "$source" build -o "$1/runc-fp" ./integration/failpoint/cmd/runc-fp
}

fill_critest() {
	in_module "$(module_dir sigs.k8s.io/cri-tools "$CRI_TOOLS")" test -c -o "$1/critest" ./cmd/critest
}

fill_cni() {
	local source plugin
	source=$(module_dir github.com/containernetworking/plugins "$CNI_PLUGINS")
	for plugin in main/bridge main/loopback ipam/host-local meta/portmap; do
		in_module "$source" build -o "$1/${plugin#*/}" "./plugins/$plugin"
	done
}

# shimtest asks for a version of a module that proxies do not have, and the
# checksum database does not know shimtest: both are settled by a go.mod of ours.
fill_shimtest() {
	local pin=$root/integration/conformance/shimtest
	in_module "$pin" test -c -o "$1/shimtest.test" github.com/containerd/shimtest
	in_module "$pin" build -ldflags "-s -w" -o "$1/testbin" github.com/containerd/shimtest/cmd/testbin
}

setup_conformance() {
	apt_install "the conformance suites" "${APT_CONFORMANCE[@]}"
	suite client "containerd v$CONTAINERD" fill_client
	suite shimtest "$(sed -n 's/^require //p' "$root/integration/conformance/shimtest/go.mod" | head -n 1)" fill_shimtest
	suite cni "$CNI_PLUGINS" fill_cni
	suite critest "$CRI_TOOLS" fill_critest
	build_containerd "containerd-$CONTAINERD-cri" github.com/containerd/containerd/v2 "$CONTAINERD" "$CONTAINERD_CRI_TAGS"
	build_containerd "containerd-$CONTAINERD_17" github.com/containerd/containerd "$CONTAINERD_17" "$CONTAINERD_TAGS"
}
