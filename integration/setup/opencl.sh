# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2154 # tools and scratch are setup.sh's
# Programs that use OpenCL, an implementation of it, and what it compiles of them.
# Sourced by setup.sh, never run.

setup_opencl() {
	unpack_opencl
	apt_unpack ocl-icd-libopencl1 "$NEWER_OPENCL_LOADER" trixie
	compile_opencl
}

# unpack_opencl unpacks OpenCL programs and all that they need beyond what is
# installed into one tree, .tools/opencl, which containers have above the host's.
unpack_opencl() {
	local package wanted=() download
	if [ "$(cat "$tools/opencl/.packages" 2>/dev/null)" = "${DEBIAN_OPENCL[*]}" ]; then
		say "OpenCL programs: there already (.tools/opencl)"
		return
	fi
	apt_update
	for package in "${DEBIAN_OPENCL[@]}"; do
		[[ $(apt-cache madison "${package%%=*}") == *" ${package#*=}"* ]] ||
			die "Debian does not offer ${package/=/ }: this needs Debian 12"
		wanted+=("${package%%=*}")
	done
	mapfile -t wanted < <(apt-get -s --no-install-recommends install "${wanted[@]}" | awk '$1 == "Inst" { print $2 }')
	say "fetching ${#wanted[@]} Debian packages with OpenCL programs into .tools/opencl (they are not installed)"
	make_scratch
	download=$(mktemp -d)
	if id _apt >/dev/null 2>&1; then chown _apt "$download"; fi
	chmod 0755 "$download"
	(cd "$download" && with_progress "apt-get download" apt-get -qq download "${wanted[@]}")
	for package in "$download"/*.deb; do
		dpkg-deb -x "$package" "$scratch/root"
	done
	rm -rf "$download"
	echo "${DEBIAN_OPENCL[*]}" >"$scratch/root/.packages"
	rm -rf "$tools/opencl"
	mv "$scratch/root" "$tools/opencl"
}

# compile_opencl lets the programs compile for this machine's CPU what takes them a
# minute or two at their first run, into .tools/opencl-kernels: PoCL's cache, hashcat's
# and darktable's, and a configuration of darktable that lets it use a CPU.
compile_opencl() {
	local dir=$tools/opencl-kernels want
	want="${DEBIAN_OPENCL[*]}, $(grep -m 2 -E '^(model name|flags)' /proc/cpuinfo | sha256sum | cut -c 1-16)"
	if [ "$(cat "$dir/.made-of" 2>/dev/null)" = "$want" ]; then
		say "compiled OpenCL kernels: there already (.tools/opencl-kernels)"
		return
	fi
	[ "$(id -u)" -eq 0 ] || die "compiling OpenCL kernels runs programs in a mount namespace, which needs root"
	say "compiling the OpenCL kernels of hashcat and darktable for this CPU (two minutes or so)"
	make_scratch
	mkdir "$scratch/kernels"
	with_progress "hashcat's kernels" with_opencl "$scratch/kernels" \
		hashcat --quiet --potfile-disable -m 0 -a 3 "$(printf vgpu | md5sum | cut -c 1-32)" '?l?l?l?l'
	with_progress "darktable's kernels" compile_darktable "$scratch/kernels"
	echo "$want" >"$scratch/kernels/.made-of"
	rm -rf "$dir"
	mv "$scratch/kernels" "$dir"
}

# with_opencl KERNELS COMMAND... runs a command where the tree of programs lies above
# this machine's, and what is compiled goes to a directory. Where it runs is darktable's
# directory of kernels: it tells its place in quotes, which PoCL takes for a part of the
# name, and looks here.
with_opencl() {
	local kernels=$1
	shift
	# shellcheck disable=SC2016 # the inner shell expands it
	env -i PATH="$PATH" LANG=C HOME="$kernels" POCL_CACHE_DIR="$kernels/pocl" XDG_CACHE_HOME="$kernels/cache" XDG_DATA_HOME="$kernels/data" \
		unshare --mount bash -euc '
			tree=$1
			shift
			for dir in etc usr; do
				mount -t overlay -o "ro,lowerdir=$tree/$dir:/$dir" overlay "/$dir"
			done
			cd /usr/share/darktable/kernels
			exec timeout 900 "$@"' bash "$tools/opencl" "$@"
}

# compile_darktable lets darktable find the device, which it will not use since it is a
# CPU, takes that back in its configuration, and lets it develop a picture of its own.
compile_darktable() {
	local config=$1/darktable/config develop
	develop=(darktable-cli /usr/share/darktable/style/image-1.jpg "$1/picture.pfm" --width 300 --height 300
		--core --library :memory: --configdir "$config" --cachedir "$1/darktable/cache" --conf opencl=TRUE -d opencl)
	with_opencl "$1" "${develop[@]}"
	sed -Ei 's/^(cldevice_v4_[^=]*=([^ ]+ ){7})1 /\10 /' "$config/darktablerc"
	rm "$1/picture.pfm"
	with_opencl "$1" "${develop[@]}"
	rm "$1/picture.pfm"
	ls "$1"/darktable/cache/cached_kernels_for_*/*.bin
}
