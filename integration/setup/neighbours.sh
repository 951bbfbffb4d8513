# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2154 # tools, scratch and the functions are those of setup.sh
#
# What stands above and below the shim where people use it: nerdctl, docker and
# crictl, and crun. Sourced by setup.sh, never run.

# other_release CODENAME reads the package lists of another release of Debian, from
# where this machine's own come from, and sets apt_release to the options with
# which apt-get then uses those alone.
apt_release=()
other_release() {
	local dir=$tools/debian/.apt-$1 uri
	apt_release=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$dir/sources" -o "Dir::State::lists=$dir/lists"
		-o "Dir::Cache=$dir/cache" -o Acquire::Languages=none -o APT::Sandbox::User=root)
	if [ -e "$dir/.read-$$" ]; then return; fi
	# shellcheck disable=SC2016 # apt's own variable
	uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' | head -n 1)
	[ -n "$uri" ] || die "apt has no sources of Debian packages"
	mkdir -p "$dir/sources" "$dir/lists/partial" "$dir/cache/archives/partial"
	rm -f "$dir"/.read-*
	printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$uri" "$1" >"$dir/sources/debian.list"
	say "reading the package lists of Debian's $1"
	with_progress "apt-get update" apt-get -qq "${apt_release[@]}" -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false update
	: >"$dir/.read-$$"
}

# newer_crun is Debian 13's, bound to a C library of Debian 13 in .tools: Debian 12's
# crun takes no configuration of a containerd 2.
newer_crun() {
	local dir=$tools/debian/crun-$NEWER_CRUN library
	apt_unpack libc6 "$NEWER_LIBC" trixie
	apt_unpack crun "$NEWER_CRUN" trixie
	# The name of the loader is absolute: the tree may have been moved.
	if "$dir/bin/crun" --version >/dev/null 2>&1; then return; fi
	library=$(dirname "$(find "$tools/debian/libc6-$NEWER_LIBC" -name libc.so.6)")
	mkdir -p "$dir/bin"
	patchelf --set-interpreter "$(find "$library" -name 'ld-linux-*.so.*')" --set-rpath "$library" --output "$dir/bin/crun" "$dir/usr/bin/crun"
	"$dir/bin/crun" --version >/dev/null || die "crun $NEWER_CRUN does not run with Debian 13's C library"
}

# nerdctl's program imports a module of its own tests that can not be had; an
# interface of it is all that is used.
fill_nerdctl() {
	local source=$scratch/source
	cp -r "$(module_dir github.com/containerd/nerdctl/v2 "$NERDCTL")" "$source"
	chmod -R u+w "$source"
	mkdir -p "$source/mod/tigron/tig"
	printf 'module github.com/containerd/nerdctl/mod/tigron\n' >"$source/mod/tigron/go.mod"
	printf 'package tig\n\nimport "testing"\n\ntype T interface{ testing.TB }\n' >"$source/mod/tigron/tig/t.go"
	in_module "$source" build -ldflags "-s -w" -o "$1/nerdctl" ./cmd/nerdctl
}

setup_neighbours() {
	apt_install "what stands beside the shim" "${APT_NEIGHBOURS[@]}"
	apt_unpack crun "$DEBIAN_CRUN"
	newer_crun
	apt_unpack docker.io "$DEBIAN_DOCKER"
	apt_unpack docker.io "$NEWER_DOCKER" trixie
	apt_unpack docker-cli "$NEWER_DOCKER" trixie
	suite nerdctl "nerdctl $NERDCTL" fill_nerdctl
	go_tool crictl "sigs.k8s.io/cri-tools/cmd/crictl@$CRI_TOOLS"
	build_containerd "containerd-$CONTAINERD-cri" github.com/containerd/containerd/v2 "$CONTAINERD" "$CONTAINERD_CRI_TAGS"
}
