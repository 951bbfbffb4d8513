# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034
# What setup.sh brings in, by version. Sourced, never run.

# Debian 12's own containerd and runc: the oldest pair that is supported. They
# are unpacked into .tools, not installed: installing containerd would start a
# daemon on the host, and conflicts with other packages of containerd.
# The security updates of Debian change what follows these versions.
DEBIAN_CONTAINERD=1.6.20
DEBIAN_RUNC=1.1.5

# The newest containerd that is supported, built from its Go module.
CONTAINERD=2.4.2
# Plugins that need a host (CRI, device mapper) or cgo are left out: the tests
# start containers through ctr alone.
CONTAINERD_TAGS="no_cri no_btrfs no_devmapper no_zfs"

# Those between the two, for make test-versions; the first also for the conformance
# suites.
CONTAINERD_17=1.7.35
CONTAINERD_22=2.2.9
CONTAINERD_23=2.3.7
# With CRI, for these, pods and critest; still without what needs a host.
CONTAINERD_CRI_TAGS="no_btrfs no_devmapper no_zfs"

# Suites that nobody here wrote, and the network plugins that they need, from
# their Go modules. shimtest's version is in integration/conformance/shimtest.
CRI_TOOLS=v1.37.0
CNI_PLUGINS=v1.10.0

# What stands above and below the shim where people use it. Those of Debian 12,
# and of Debian 13, which run on 12 as they are, but for the C library of crun.
DEBIAN_CRUN=1.8.1
NEWER_CRUN=1.21
NEWER_LIBC=2.41
DEBIAN_DOCKER=20.10.24
NEWER_DOCKER=26.1.5
NERDCTL=v2.3.5

# What a Kubernetes cluster needs besides Kubernetes, whose version is in
# integration/kubernetes/programs: from Debian 12, unpacked.
DEBIAN_ETCD=3.4.23
DEBIAN_CNI=1.1.1

# Helm, for the tests of the chart.
HELM=v4.3.2

# OpenCL: its headers, which building takes, and from the same Debian what the tests
# run: the loader, an implementation on the CPU, and programs. And Debian 13's loader,
# which runs on 12 as it is.
DEBIAN_OPENCL_HEADERS=3.0~2023.02.06
DEBIAN_OPENCL=(pocl-opencl-icd=3.1-3 ocl-icd-libopencl1=2.3.1-1 ocl-icd-opencl-dev=2.3.1-1
	clinfo=3.0.23.01.25-1 clpeak=1.1.2-1 hashcat=6.2.6 python3-pyopencl=2022.3.1-2.1 darktable=4.2.1)
NEWER_OPENCL_LOADER=2.3.3

# Draws flame graphs: a script in this package that needs nothing else of it.
DEBIAN_NYTPROF=6.12

# Debian packages, by what needs them.
APT_BUILD=(libc6-dev binutils)              # headers and tools beside gcc
APT_DEMO=(busybox-static libseccomp2)       # root file system; runc's library
APT_TEST=(python3-numba python3-pip strace shellcheck   # a CUDA client nobody here wrote; what a process calls; scripts
	libjemalloc2 libtcmalloc-minimal4)  # allocators that programs preload
APT_CLIENTS=(g++ python3-dev python3-numpy python3-setuptools python3-wheel # what builds pycuda
	openjdk-17-jdk-headless libwrap0 openssh-client)  # a JVM; what sshd needs, and its client
APT_MUSL=(musl-tools)                       # the other C library
APT_CROSS=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static) # arm64, and what runs it
APT_FLAMES=(linux-perf perl python3)        # samples a process; what the script and perf's own run in
APT_MODEL=(spin)                            # the model checker
APT_NEIGHBOURS=(libyajl2 libcap2 libsystemd0 patchelf libdevmapper1.02.1) # what crun and docker are linked with
APT_CONFORMANCE=(iptables)                  # what the network plugin portmap calls
APT_GENERATE=(protobuf-compiler libprotobuf-dev python3-pip)

# NVML clients that nobody here wrote, and what they need, from PyPI.
NVML_CLIENTS=(
	nvidia-ml-py==13.615.71 nvitop==1.7.2 gpustat==1.1.1
	psutil==7.2.2 blessed==1.52.0 jinxed==2.1.0 wcwidth==0.9.4
)

# CUDA clients that nobody here wrote, beside Debian's numba, from PyPI.
CUDA_CLIENTS=(cuda-bindings==13.5.0 cuda-pathfinder==1.9.0)
# numba-cuda asks CUDA's runtime library which version it is, and nothing else.
NUMBA_CUDA=(
	numba-cuda==0.30.4 numba==0.61.2 llvmlite==0.44.0 packaging==24.2
	cuda-core==1.2.2 cuda-bindings==13.5.0 cuda-pathfinder==1.9.0 nvidia-cuda-runtime==13.5.37
)
# pycuda is there as source only. The headers serve its build, and are not kept.
PYCUDA=2026.1
PYCUDA_NEEDS=(mako==1.4.3 markupsafe==3.0.4 platformdirs==4.14.8 pytools==2026.1.1 siphash24==1.9 typing-extensions==4.16.0)
PYCUDA_HEADERS=(nvidia-cuda-runtime==13.5.37 nvidia-cuda-crt==13.5.37 nvidia-cuda-profiler-api==13.5.25)

# Programs that start CUDA processes in ways of their own: a pre-fork server, and
# what lets people in. Those are unpacked, not installed: that would let them into
# the host.
GUNICORN=gunicorn==27.0.1
DEBIAN_SUDO=1.9.13p3
DEBIAN_SSHD=1:9.2p1

# NVML clients that nobody here wrote, built from their Go modules.
GO_CLIENTS=(
	github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk@v1.20.2
	github.com/NVIDIA/go-nvml/examples/{devices,compute-processes}@v0.13.4-1
)

# Code generators and linters, built from their Go modules.
PROTOC_GEN_GO=v1.36.12
PROTOC_GEN_GO_TTRPC=v1.2.9
GOFUMPT=v0.12.0
GOLANGCI_LINT=v2.15.0
GOVULNCHECK=v1.9.0
# Go's database of vulnerabilities, for machines that do not reach vuln.go.dev.
VULNDB=v0.0.0-20261105234957-e22db6528018

# cuda.h, read once by "make generate" (the wheel holds it; nothing of it is kept).
CUDA_RUNTIME_WHEEL=nvidia-cuda-runtime==13.5.37
