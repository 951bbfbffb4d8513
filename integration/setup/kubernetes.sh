# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2154 # root, tools and the functions are those of setup.sh
#
# A Kubernetes cluster, as programs: etcd and network plugins from Debian, the rest
# from its Go module. Sourced by setup.sh, never run.

# Which version is built is said by this module alone; Kubernetes' own go.mod
# names half of its modules by folders that the release of it leaves out.
kubernetes_module=$root/integration/kubernetes/programs
kubernetes_version() { sed -n 's/^require k8s.io\/kubernetes v//p' "$kubernetes_module/go.mod"; }

# It takes 20 to 40 minutes on two cores, and should not slow down everything else.
fill_kubernetes() {
	local program version package=k8s.io/component-base/version flags="-s -w"
	version=$(kubernetes_version)
	flags+=" -X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=$(cut -d. -f2 <<<"$version")"
	for program in kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do
		say "building $program"
		with_progress "$program" nice -n 19 env CGO_ENABLED=0 GOFLAGS= go build -C "$kubernetes_module" -p 2 -trimpath -buildvcs=false \
			-ldflags "$flags" -o "$1/$program" "k8s.io/kubernetes/cmd/$program"
	done
}

setup_kubernetes() {
	apt_unpack etcd-server "$DEBIAN_ETCD"
	apt_unpack containernetworking-plugins "$DEBIAN_CNI"
	build_containerd "containerd-$CONTAINERD-cri" github.com/containerd/containerd/v2 "$CONTAINERD" "$CONTAINERD_CRI_TAGS"
	suite kubernetes "v$(kubernetes_version)" fill_kubernetes
}
