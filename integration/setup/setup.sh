#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Brings in what building, the demo and the tests need, on Debian 12 as root
# with Go, gcc and make present:
#
#   setup.sh build|demo|musl|test|clients|opencl|neighbours|versions|conformance|kubernetes|chart|cross|generate|lint|vulnerabilities|model|flames|all
#
# Debian packages come from apt; containerd, runc and Go tools go into .tools in
# the repository and nowhere else. What is there already is used again; what an
# interrupted run left half done is done again (a thing appears under its final
# name only when it is whole).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
tools=$root/.tools
# shellcheck source=integration/setup/versions.sh
. "$here/versions.sh"

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

scratch=
cleanup() { if [ -n "$scratch" ]; then rm -rf "$scratch"; fi; }
trap cleanup EXIT
# make_scratch makes an empty directory on the file system of .tools, so that
# what is built there can be renamed into place.
make_scratch() {
	cleanup
	scratch=$(mktemp -d "$tools/tmp.XXXXXX")
}

# with_progress runs a long command with its output in a file, and says every
# fifteen seconds that it still runs. A failure shows the end of the output.
with_progress() {
	local what=$1 log pid seconds=0 rc=0
	shift
	log=$(mktemp)
	"$@" >"$log" 2>&1 &
	pid=$!
	while kill -0 "$pid" 2>/dev/null; do
		sleep 1
		seconds=$((seconds + 1))
		if [ $((seconds % 15)) -eq 0 ]; then say "  $what: $seconds s so far"; fi
	done
	wait "$pid" || rc=$?
	if [ "$rc" -ne 0 ]; then
		tail -n 40 "$log" >&2
		rm -f "$log"
		die "$what failed (exit status $rc); the end of its output is above"
	fi
	rm -f "$log"
}

updated=
apt_update() {
	if [ -n "$updated" ]; then return; fi
	say "reading Debian's package lists"
	with_progress "apt-get update" apt-get -qq -o DPkg::Lock::Timeout=300 update
	updated=yes
}

have_package() {
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# apt_install WHY PACKAGE... installs those that are missing.
apt_install() {
	local why=$1 package missing=()
	shift
	for package in "$@"; do
		have_package "$package" || missing+=("$package")
	done
	if [ ${#missing[@]} -eq 0 ]; then
		say "Debian packages for $why: there already ($*)"
		return
	fi
	[ "$(id -u)" -eq 0 ] || die "missing Debian packages (${missing[*]}), and installing them needs root"
	command -v apt-get >/dev/null || die "apt-get not found: this needs Debian 12, or these packages from elsewhere: ${missing[*]}"
	apt_update
	say "installing Debian packages for $why: ${missing[*]}"
	with_progress "apt-get install" env DEBIAN_FRONTEND=noninteractive \
		apt-get -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300 install "${missing[@]}"
}

# apt_unpack PACKAGE VERSION unpacks a Debian package into .tools/debian/PACKAGE
# without installing it; a third argument is the codename of another release, and
# the directory then PACKAGE-VERSION.
apt_unpack() {
	local package=$1 version=$2 release=${3-} got debs
	local dir=$tools/debian/$package${release:+-$version}
	got=$(cat "$dir/.version" 2>/dev/null || true)
	case $got in
	"$version"*)
		say "$package $got: there already (${dir#"$root/"})"
		return
		;;
	esac
	if [ -n "$release" ]; then other_release "$release"; else apt_update; fi
	say "fetching Debian's $package $version into .tools (it is not installed)"
	make_scratch
	# apt drops privileges to _apt for the download, and warns when that user
	# can not write there.
	local download
	download=$(mktemp -d)
	if id _apt >/dev/null 2>&1; then chown _apt "$download"; fi
	chmod 0755 "$download"
	(cd "$download" && with_progress "apt-get download $package" apt-get -qq ${release:+"${apt_release[@]}"} download "$package")
	debs=("$download"/*.deb)
	got=$(dpkg-deb -f "${debs[0]}" Version)
	case $got in
	"$version"*) ;;
	*)
		rm -rf "$download"
		die "Debian offers $package $got, wanted $version: this needs ${release:-Debian 12}"
		;;
	esac
	dpkg-deb -x "${debs[0]}" "$scratch/package"
	rm -rf "$download"
	echo "$got" >"$scratch/package/.version"
	mkdir -p "$tools/debian"
	rm -rf "$dir"
	mv "$scratch/package" "$dir"
}

# go_tool NAME MODULE@VERSION builds a program from its Go module into .tools/bin.
go_tool() {
	local name=$1 source=$2
	if [ "$(cat "$tools/bin/.$name.source" 2>/dev/null)" = "$source" ] && [ -x "$tools/bin/$name" ]; then
		say "$name ${source##*@}: there already"
		return
	fi
	say "building $name from its Go module ($source)"
	make_scratch
	with_progress "$name" env GOBIN="$scratch" CGO_ENABLED=0 GOFLAGS= go install -trimpath "$source"
	mkdir -p "$tools/bin"
	mv "$scratch/$name" "$tools/bin/$name"
	echo "$source" >"$tools/bin/.$name.source"
}

# module_dir MODULE VERSION says where the Go command keeps a module, after it
# has fetched it. What is built there is built with the versions that the module
# itself pins.
module_dir() { go mod download -json "$1@$2" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'; }

# build_containerd DIRECTORY MODULE VERSION TAGS builds containerd, ctr and the
# runc shim into .tools.
build_containerd() {
	local name=$1 module=$2 version=$3 tags=$4 source program
	local dir=$tools/$name
	if [ -x "$dir/bin/containerd" ] && [ -x "$dir/bin/ctr" ] && [ -x "$dir/bin/containerd-shim-runc-v2" ]; then
		say "$name: there already (.tools/$name)"
		return
	fi
	say "building $name from its Go module into .tools (some minutes the first time)"
	source=$(module_dir "$module" "v$version")
	make_scratch
	mkdir -p "$scratch/containerd/bin"
	for program in containerd ctr containerd-shim-runc-v2; do
		with_progress "$program of $name" env CGO_ENABLED=0 GOFLAGS= go build -C "$source" -trimpath -buildvcs=false \
			-tags "$tags" -ldflags "-s -w -X $module/version.Version=$version" \
			-o "$scratch/containerd/bin/$program" "./cmd/$program"
	done
	rm -rf "$dir"
	mv "$scratch/containerd" "$dir"
}

setup_containerd() {
	build_containerd "containerd-$CONTAINERD" github.com/containerd/containerd/v2 "$CONTAINERD" "$CONTAINERD_TAGS"
}

# The versions between the oldest and the newest.
setup_versions() {
	build_containerd "containerd-$CONTAINERD_17-cri" github.com/containerd/containerd "$CONTAINERD_17" "$CONTAINERD_CRI_TAGS"
	build_containerd "containerd-$CONTAINERD_22-cri" github.com/containerd/containerd/v2 "$CONTAINERD_22" "$CONTAINERD_CRI_TAGS"
	build_containerd "containerd-$CONTAINERD_23-cri" github.com/containerd/containerd/v2 "$CONTAINERD_23" "$CONTAINERD_CRI_TAGS"
}

check_build_tools() {
	local tool
	for tool in go gcc make; do
		command -v $tool >/dev/null || die "$tool not found: install Go $(sed -n 's/^go //p' "$root/go.mod") or later, gcc and make first"
	done
}

setup_build() {
	apt_install "building" "${APT_BUILD[@]}"
	apt_unpack opencl-c-headers "$DEBIAN_OPENCL_HEADERS"
}

setup_demo() {
	apt_install "the demo" "${APT_DEMO[@]}"
	apt_unpack runc "$DEBIAN_RUNC"
	setup_containerd
}

# python_packages NAME REQUIREMENT... puts packages for Debian's Python into
# .tools/NAME, for PYTHONPATH; or, as some want it, in the place of site-packages.
python_packages() {
	local name=$1
	shift
	if [ "$(cat "$tools/$name/.requirements" 2>/dev/null)" = "$*" ]; then
		say "$name: there already ($*)"
		return
	fi
	say "fetching $* from PyPI into .tools/$name"
	make_scratch
	with_progress "$name" /usr/bin/python3 -m pip install --quiet --disable-pip-version-check --no-cache-dir \
		--no-deps --target "$scratch/packages" "$@"
	echo "$*" >"$scratch/packages/.requirements"
	rm -rf "${tools:?}/$name"
	mv "$scratch/packages" "$tools/$name"
}

setup_test() {
	apt_install "the tests" "${APT_TEST[@]}"
	python_packages nvml-clients "${NVML_CLIENTS[@]}"
	apt_unpack containerd "$DEBIAN_CONTAINERD"
}

# go_programs NAME PROGRAM@VERSION... builds programs that load libraries of C from
# their Go modules into .tools/NAME.
go_programs() {
	local name=$1 program
	shift
	if [ "$(cat "$tools/$name/.programs" 2>/dev/null)" = "$*" ]; then
		say "$name: there already ($*)"
		return
	fi
	make_scratch
	for program in "$@"; do
		say "building ${program##*/} from its Go module into .tools/$name"
		with_progress "${program##*/}" env GOBIN="$scratch/programs" CGO_ENABLED=1 GOFLAGS= go install -trimpath "$program"
	done
	echo "$*" >"$scratch/programs/.programs"
	rm -rf "${tools:?}/$name"
	mv "$scratch/programs" "$tools/$name"
}

# Programs that nobody here wrote, beside those of the tests.
setup_clients() {
	apt_install "clients" "${APT_CLIENTS[@]}"
	python_packages cuda-clients "${CUDA_CLIENTS[@]}"
	go_programs go-clients "${GO_CLIENTS[@]}"
	python_packages numba-cuda "${NUMBA_CUDA[@]}"
	setup_pycuda
	python_packages gunicorn "$GUNICORN"
	apt_unpack sudo "$DEBIAN_SUDO"
	apt_unpack openssh-server "$DEBIAN_SSHD"
}

# setup_pycuda builds pycuda into .tools/pycuda. It is linked with a libcuda that
# has nothing but its name: which driver it gets is decided where it runs.
setup_pycuda() {
	local want="pycuda==$PYCUDA ${PYCUDA_NEEDS[*]}" pip=(/usr/bin/python3 -m pip) flags=(--quiet --disable-pip-version-check --no-cache-dir)
	if [ "$(cat "$tools/pycuda/.requirements" 2>/dev/null)" = "$want" ]; then
		say "pycuda $PYCUDA: there already"
		return
	fi
	say "building pycuda $PYCUDA from PyPI into .tools/pycuda (about a minute)"
	make_scratch
	mkdir "$scratch/stub" "$scratch/home"
	gcc -shared -Wl,-soname,libcuda.so.1 -o "$scratch/stub/libcuda.so" -x c /dev/null
	with_progress "headers for pycuda" "${pip[@]}" install "${flags[@]}" --no-deps --target "$scratch/headers" "${PYCUDA_HEADERS[@]}"
	# Its build looks for this file in the home directory. Nobody measures pycuda,
	# and without optimisation it is there sooner.
	cat >"$scratch/home/.aksetup-defaults.py" <<-END
		CUDA_INC_DIR = ["$scratch/headers/nvidia/cu13/include"]
		CUDADRV_LIB_DIR = ["$scratch/stub"]
		CUDA_ENABLE_CURAND = False
		CXXFLAGS = ["-O0", "-g0"]
	END
	with_progress "pycuda" env HOME="$scratch/home" LDFLAGS=-Wl,--no-as-needed "${pip[@]}" install "${flags[@]}" --no-deps --no-build-isolation --no-binary pycuda \
		--target "$scratch/packages" "pycuda==$PYCUDA" "${PYCUDA_NEEDS[@]}"
	echo "$want" >"$scratch/packages/.requirements"
	rm -rf "$tools/pycuda"
	mv "$scratch/packages" "$tools/pycuda"
}

# shellcheck source=integration/setup/opencl.sh
. "$here/opencl.sh"
# shellcheck source=integration/setup/suites.sh
. "$here/suites.sh"
# shellcheck source=integration/setup/neighbours.sh
. "$here/neighbours.sh"
# shellcheck source=integration/setup/kubernetes.sh
. "$here/kubernetes.sh"
# shellcheck source=integration/setup/helm.sh
. "$here/helm.sh"

setup_musl() { apt_install "the musl build" "${APT_MUSL[@]}"; }

setup_cross() { apt_install "the arm64 build" "${APT_CROSS[@]}"; }

setup_generate() {
	apt_install "generating code" "${APT_GENERATE[@]}"
	go_tool protoc-gen-go "google.golang.org/protobuf/cmd/protoc-gen-go@$PROTOC_GEN_GO"
	go_tool protoc-gen-go-ttrpc "github.com/containerd/ttrpc/cmd/protoc-gen-go-ttrpc@$PROTOC_GEN_GO_TTRPC"
}

# setup_vulndb makes a database that govulncheck can read of the reports in its Go
# module, in .tools.
setup_vulndb() {
	local module=golang.org/x/vulndb dir=$tools/vulndb-$VULNDB source
	if [ -d "$dir" ]; then
		say "vulnerability database $VULNDB: there already"
		return
	fi
	say "making a vulnerability database of its Go module ($module@$VULNDB)"
	source=$(module_dir "$module" "$VULNDB")
	make_scratch
	with_progress "indexdb" env GOBIN="$scratch" CGO_ENABLED=0 GOFLAGS= go install -trimpath "$module/cmd/indexdb@$VULNDB"
	with_progress "the database" "$scratch/indexdb" -vulns "$source/data/osv" -out "$scratch/vulndb"
	rm -rf "$tools"/vulndb-*
	mv "$scratch/vulndb" "$dir"
}

setup_lint() {
	apt_install "linting" shellcheck
	go_tool gofumpt "mvdan.cc/gofumpt@$GOFUMPT"
	go_tool golangci-lint "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$GOLANGCI_LINT"
}

setup_vulnerabilities() {
	go_tool govulncheck "golang.org/x/vuln/cmd/govulncheck@$GOVULNCHECK"
	setup_vulndb
}

setup_model() { apt_install "the grant word's model" "${APT_MODEL[@]}"; }

setup_flames() {
	apt_install "flame graphs" "${APT_FLAMES[@]}"
	apt_unpack libdevel-nytprof-perl "$DEBIAN_NYTPROF"
}

[ $# -eq 1 ] || die "usage: setup.sh build|demo|musl|test|clients|opencl|neighbours|versions|conformance|kubernetes|chart|cross|generate|lint|vulnerabilities|model|flames|all"
mkdir -p "$tools"
# Two runs at once take turns; the lock goes with the process.
exec 9>"$tools/.lock"
flock -n 9 || { say "waiting for another setup that is running"; flock 9; }
# What a killed run left.
rm -rf "$tools"/tmp.??????

check_build_tools
case $1 in
build) parts=(build) ;;
demo) parts=(build demo) ;;
musl) parts=(build musl) ;;
test) parts=(build demo musl test) ;;
clients) parts=(build demo musl test clients) ;;
opencl) parts=(build demo test opencl) ;;
neighbours) parts=(build demo test neighbours) ;;
versions) parts=(build demo musl test neighbours versions) ;;
conformance) parts=(build demo test conformance) ;;
kubernetes) parts=(build demo kubernetes) ;;
chart) parts=(build demo kubernetes helm) ;;
cross) parts=(build musl cross) ;;
generate) parts=(build generate) ;;
lint) parts=(lint) ;;
vulnerabilities) parts=(vulnerabilities) ;;
model) parts=(model) ;;
flames) parts=(build demo flames) ;;
all) parts=(build demo musl test clients opencl neighbours versions conformance cross generate lint vulnerabilities model flames) ;;
*) die "unknown part $1" ;;
esac
for part in "${parts[@]}"; do
	"setup_$part"
done
