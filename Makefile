# SPDX-License-Identifier: Apache-2.0
# make help lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

MODULE := github.com/vgpu-shim/vgpu
BUILD := $(CURDIR)/build
SETUP := integration/setup/setup.sh

# --- version ---------------------------------------------------------------
# From git where there is a repository, with or without tags; a packager may
# set both.
VERSION := $(or $(VERSION),$(shell integration/setup/version.sh version))
COMMIT := $(or $(COMMIT),$(shell integration/setup/version.sh commit))

# --- Go --------------------------------------------------------------------
# The same source, version and compiler give the same bytes, wherever they are. The build
# ID stays: by it go knows that a program is current, and links it again only if it is not.
GO ?= go
GOBUILD := $(GO) build -trimpath -buildvcs=false
LDFLAGS := -s -w -X $(MODULE)/vgpu/version.Version=$(VERSION) -X $(MODULE)/vgpu/version.Commit=$(COMMIT)
# NVML's header marks as deprecated what go-nvml binds all the same.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations
STATIC := containerd-shim-vgpu-v1 vgpu
# Client-go takes minutes to build the first time: not part of make build.
KUBERNETES := vgpu-kubelet vgpu-node kubectl-vgpu
# vgpud loads NVML, which takes cgo.
DYNAMIC := vgpud
DAEMON_PACKAGES := ./vgpu/... ./shim/... ./hooks/oci/...

# --- installation ----------------------------------------------------------
DESTDIR ?=
PREFIX ?= /usr/local

# The first message of a long step.
say = @printf '==> %s\n'

##@ Two commands for a fresh machine
.PHONY: demo test
demo: setup-demo build ## run the main job: three real containers take turns on one GPU (VGPU_DEMO_JSON=FILE also writes the numbers)
	@$(GOBUILD) -o $(BUILD)/demo ./integration/demo
	@exec $(BUILD)/demo

# -count=1: results hang on what was built, which the go command's cache does not see.
# The containers come first: they take longest, and mostly wait. What has a target of
# its own is left out.
test: setup-test build musl nogate ## run all tests: Go, C, real containers (needs root)
	$(say) "tests of the product, of the simulated GPU, and on real containers under each containerd"
	$(GO) test -count=1 -timeout 20m -p 3 ./integration $$($(GO) list ./... | grep -Ev '/integration$$|/(hooks|integration)/opencl|/integration/(chart|clients|kubernetes|neighbours|versions)')

##@ Parts
.PHONY: setup setup-build setup-demo setup-musl setup-test setup-clients setup-opencl setup-neighbours setup-versions setup-conformance setup-kubernetes setup-chart setup-cross setup-generate setup-lint setup-vulnerabilities setup-model setup-flames
setup: ## bring in everything but Kubernetes: Debian packages, containerd 2.x, generators, linters
	@$(SETUP) all
setup-build setup-demo setup-musl setup-test setup-clients setup-opencl setup-neighbours setup-versions setup-conformance setup-kubernetes setup-chart setup-cross setup-generate setup-lint setup-vulnerabilities setup-model setup-flames: setup-%:
	@$(SETUP) $*

.PHONY: build programs libraries nogate workload simulated
build: setup-build libraries simulated workload programs ## build programs (bin/) and libraries (build/)

programs: $(STATIC:%=bin/%) $(DYNAMIC:%=bin/%)

.PHONY: kubernetes image chart
kubernetes: $(KUBERNETES:%=bin/%) ## build the programs for Kubernetes (bin/vgpu-kubelet, vgpu-node, kubectl-vgpu)

# A tag has no plus. The reference begins with a registry, also where nobody pushes it.
IMAGE ?= vgpu.shim.dev/vgpu:$(subst +,-,$(VERSION))
image: build kubernetes ## build the container image that the Helm chart runs (build/vgpu-image.tar; IMAGE=registry.example/vgpu:TAG; make musl before it for containers with musl)
	@$(GO) run ./integration/image/tool -tag '$(IMAGE)' -version '$(VERSION)' -commit '$(COMMIT)' -out $(BUILD)/vgpu-image.tar
	@echo "$(BUILD)/vgpu-image.tar is $(IMAGE)"
chart: setup-chart ## render the Helm chart for kustomize (configs/kubernetes)
	@integration/setup/chart.sh

# Go knows itself what is current.
.PHONY: $(STATIC:%=bin/%) $(DYNAMIC:%=bin/%) $(KUBERNETES:%=bin/%)
# As containerd builds its own: without the tag the shim links gRPC, 6 MiB a pod.
bin/containerd-shim-vgpu-v1: TAGS := -tags no_grpc
$(STATIC:%=bin/%) $(KUBERNETES:%=bin/%): bin/%:
	@echo "go build $@ ($(VERSION))"
	@CGO_ENABLED=0 $(GOBUILD) $(TAGS) -ldflags '$(LDFLAGS)' -o $@ ./cmd/$*
$(DYNAMIC:%=bin/%): bin/%:
	@echo "go build $@ ($(VERSION))"
	@CGO_ENABLED=1 $(GOBUILD) -ldflags '$(LDFLAGS)' -o $@ ./cmd/$*

# Debug information must not tell where the tree was.
export CFLAGS_EXTRA ?= -ffile-prefix-map=$(CURDIR)=.

libraries:
	@$(MAKE) -C hooks/driver OUT=$(BUILD)/lib
	@$(MAKE) -C hooks/driver/nvml OUT=$(BUILD)/lib
	@$(MAKE) -C hooks/opencl OUT=$(BUILD)/lib
# The same libraries with the gate switched off, for the tests that must then fail.
nogate:
	@$(MAKE) -C hooks/driver OUT=$(BUILD)/nogate VGPU_NO_GATE=1
	@$(MAKE) -C hooks/opencl OUT=$(BUILD)/nogate VGPU_NO_GATE=1
simulated:
	@$(MAKE) -C integration/simgpu OUT=$(BUILD)/simgpu
workload:
	@$(MAKE) -C integration/workload OUT=$(BUILD)/workload

# The libraries for other containers than this machine's own kind: an arm64
# node's, and those with musl, for which only the simulated driver is built. It
# stands below the other one, where vgpud looks for it.
.PHONY: arm64 musl
arm64: setup-cross ## cross-build the libraries and the simulated driver for arm64 (build/arm64/)
	@$(MAKE) -C hooks/driver OUT=$(BUILD)/arm64/lib CC=aarch64-linux-gnu-gcc
	@$(MAKE) -C hooks/driver/nvml OUT=$(BUILD)/arm64/lib CC=aarch64-linux-gnu-gcc
	@$(MAKE) -C hooks/opencl OUT=$(BUILD)/arm64/lib CC=aarch64-linux-gnu-gcc
	@$(MAKE) -C integration/simgpu OUT=$(BUILD)/arm64/simgpu CC=aarch64-linux-gnu-gcc
musl: setup-musl ## build them for musl (build/musl/, build/simgpu/musl/)
	@$(MAKE) -C hooks/driver OUT=$(BUILD)/musl/lib CC=musl-gcc LIBC=musl
	@$(MAKE) -C hooks/driver/nvml OUT=$(BUILD)/musl/lib CC=musl-gcc LIBC=musl
	@$(MAKE) -C integration/simgpu OUT=$(BUILD)/simgpu/musl CC=musl-gcc LIBC=musl
	@$(MAKE) -C integration/workload OUT=$(BUILD)/musl/workload CC=musl-gcc

# The tests of the driver library with programs of that kind. Python here is this
# machine's own, and so is strace.
.PHONY: test-arm64 test-musl
NATIVE_ONLY := OfTheSimulatedDriver.*/.*/numba
# Under qemu what reserves large ranges of addresses takes minutes and all memory, with
# and without the library.
LARGE_RANGES := OfTheSimulatedDriver|Reconcile|RandomSequences
STRACED := TestProcessWithoutCUDACall|TestProcessAlone
TRAPS := TestTraps|TestSetuid|TestLinkingIn
test-arm64: setup-cross ## the driver library's tests on arm64 programs, under qemu (needs root)
	VGPU_TEST_TOOLCHAIN=arm64 $(GO) test -count=1 -timeout 10m -skip '$(LARGE_RANGES)|$(STRACED)|$(TRAPS)' ./hooks/driver/test
test-musl: setup-musl ## and on programs that are linked with musl (needs root)
	VGPU_TEST_TOOLCHAIN=musl $(GO) test -count=1 -timeout 10m -skip '$(NATIVE_ONLY)|$(STRACED)|$(TRAPS)' ./hooks/driver/test

.PHONY: test-clients test-neighbours
test-clients: setup-clients build musl ## CUDA and NVML programs that nobody here wrote, in real containers; writes docs/clients.md (needs root)
	$(GO) test -count=1 -timeout 20m ./integration/clients
test-neighbours: setup-neighbours build ## the shim with those above and below it: nerdctl, docker, CRI; crun (needs root)
	$(GO) test -count=1 -timeout 20m ./integration/neighbours

# Its numbers differ from run to run, so only DOC=1 writes them down.
# SHORT=1: the programs by twos and not by fours, and fewer bursts beside a hog;
# what DOC=1 writes down is always of the whole.
.PHONY: test-opencl
test-opencl: setup-opencl build nogate ## the OpenCL layer, and OpenCL programs that nobody here wrote, in real containers (needs root; DOC=1 writes docs/opencl.md; SHORT=1: by twos alone)
	$(if $(DOC),VGPU_OPENCL_DOC='$(CURDIR)/docs/opencl.md') $(GO) test -count=1 -timeout 10m $(if $(SHORT),$(if $(DOC),,-short)) ./hooks/opencl/... ./integration/opencl

# make test has the oldest and the newest.
.PHONY: test-versions
test-versions: setup-versions build musl ## the versions of containerd between the oldest and the newest, and upgrades from each to the next (needs root)
	for package in integration integration/neighbours; do \
		tests=$$(awk '/^func Test/ { name = $$2; sub(/\(.*/, "", name) } /harnesstest\.Versions/ { print name }' $$package/*_test.go | paste -s -d '|'); \
		VGPU_TEST_CONTAINERD=between $(GO) test -count=1 -timeout 20m -run "^($$tests)\$$" ./$$package; \
	done
	$(GO) test -count=1 -timeout 20m ./integration/versions

.PHONY: test-kubernetes
# What the short form leaves out has a test of the same below vgpu/kube, or a sister that
# it has: of restarts, of who else offers a GPU, of what is wrong with a pod. Two are the
# only ones of their kind on a real Kubernetes: that claims for more than a GPU has are
# placed and compute (below vgpu/kube: that they are published and prepared so), and that
# vGPUs by limits outlive kubelet and the device plugin (below vgpu/kube with a kubelet
# that stands in).
LONG := ^TestThreeNodes$$|^TestClaimsFindTheirMemory$$/(guests|waits)|^TestClaimsOfMoreThanAGPUHas$$|^TestClaimThatComesWhileVGPUdIsDown$$|^TestAnotherDriverOffersTheGPU$$|^TestLimitsOutliveTheDaemons$$|^TestWrongLimitsAreSeenInDescribe$$
test-kubernetes: setup-kubernetes build kubernetes ## pods and claims on a real Kubernetes with simulated GPUs (needs root; SHORT=1: without what takes longest; the first time it builds Kubernetes for 20 to 40 minutes)
	$(GO) test -count=1 -timeout 60m $(if $(SHORT),-skip '$(LONG)') ./integration/kubernetes

# SCALE='-nodes 100 -pods 1000' is smaller; build/scale -h has all flags.
.PHONY: scale
scale: setup-kubernetes build kubernetes ## place 10,000 pods with claims on 1,000 nodes of 8 GPUs that are objects alone (needs root; SCALE='-nodes 100 -pods 1000')
	@$(GOBUILD) -o $(BUILD)/scale ./integration/scale
	@exec $(BUILD)/scale $(SCALE)

.PHONY: test-chart
test-chart: setup-chart image ## the Helm chart and kustomize: rendered, and on a real Kubernetes (needs root; SHORT=1: only rendered)
	$(GO) test -count=1 -timeout 20m ./integration/image ./integration/chart $(if $(SHORT),,./integration/chart/cluster)

# SOAK_SEED=N repeats the faults of a run, SOAK_TIME=1h soaks for longer.
.PHONY: soak soak-short
soak: soak-build ## faults at random on real containers for 10 minutes (needs root; SOAK_SEED, SOAK_TIME: docs/soak.md)
	@exec $(BUILD)/soak
soak-short: soak-build ## a minute of it
	@exec $(BUILD)/soak -short
# CONFORMANCE=client-2.4.2 runs a part, and writes no tables.
.PHONY: conformance conformance-short
conformance: conformance-build ## run containerd's and Kubernetes' own suites with runc's shim and ours, and compare (needs root; 15 minutes; writes docs/conformance.md)
	@exec $(BUILD)/conformance/conformance $(if $(CONFORMANCE),-only '$(CONFORMANCE)',-doc docs/conformance.md)
conformance-short: conformance-build ## the most telling tests of each, in a minute and a half
	@exec $(BUILD)/conformance/conformance -short
.PHONY: conformance-build
conformance-build: setup-conformance build
	@CGO_ENABLED=0 $(GOBUILD) -o $(BUILD)/conformance/conformance ./integration/conformance

.PHONY: soak-build
soak-build: setup-test build
	@$(GOBUILD) -o $(BUILD)/soak ./integration/soak

.PHONY: lint lint-code
lint: lint-code setup-vulnerabilities ## check format, vet, scripts, linters (gosec among them), known vulnerabilities
	$(say) "known vulnerabilities"
	@integration/setup/govulncheck.sh
# What hangs on the tree alone, and not on what was found out today.
lint-code: setup-lint ## that without the vulnerabilities
	$(say) "format"
	@out=$$(.tools/bin/gofumpt -l $$(git ls-files -co --exclude-standard '*.go' | grep -v '\.pb\.go$$')); if [ -n "$$out" ]; then echo "not formatted by gofumpt:"; echo "$$out"; exit 1; fi
	$(say) "go vet"
	$(GO) vet ./...
	$(say) "scripts"
	shellcheck -x .ci/run integration/setup/*.sh integration/hardware/*.sh hooks/gate/model/*.sh
	$(say) "golangci-lint"
	.tools/bin/golangci-lint run --allow-parallel-runners

.PHONY: generate generate-offline check-generated
generate: setup-generate ## make all generated files anew (fetches cuda.h once)
	@integration/setup/generate.sh fetch
	@integration/setup/generate.sh offline
generate-offline: ## make those that come from the tree alone
	@integration/setup/generate.sh offline
check-generated: ## fail if one of those is not current
	@integration/setup/generate.sh check

.PHONY: vet race
vet: ## go vet
	$(GO) vet ./...
# The containers of shim/mounts run the tests' own program, which must not need a loader.
# The engine starts no goroutine (the linter lets it import no sync). Nor is there a second
# one where much is read; and where processes are killed at each step of their work, what
# the others do is in other tests.
RACELESS := ^TestCreateWithALargeSpec$$|^TestCreateRefusesALotShortly$$|^TestNoDamageTo|^TestKilledAtEachStep$$|^TestWhatAKilledRunLeftIsMended$$
race: ## the Go tests of the product under the race detector
	$(GO) test -race -short -timeout 15m -skip '$(RACELESS)' $$($(GO) list ./cmd/... ./vgpu/... ./shim/... ./hooks/oci/... | grep -Ev '/(shim/mounts|vgpu/arbiter)$$')

.PHONY: coverage
coverage: setup-test setup-opencl ## how much of the C code in the container the tests run (needs root; fails under the floor of each directory)
	@integration/setup/coverage.sh $(BUILD)/coverage

# A sanitizer must be linked to the program, so those of others are left out, and what
# holds the libraries to what an image has; the thread sanitizer wants its memory where it
# is without randomisation. When the thread that forked ends in the child, the thread
# sanitizer hangs by itself, and the address sanitizer takes what other threads of the
# parent hold for leaks. Undefined behaviour ends a program: a line on stderr fails no test.
.PHONY: sanitize
NO_SANITIZER := $(TRAPS)|$(STRACED)|$(NATIVE_ONLY)|TestNVIDIAs|TestLibraryNeeds|TestLibrariesLoad|TestDaemonThatCloses|TestTrampolineKeeps|TestFork/the_thread_that_forked
SANITIZED = $(GO) test -count=1 -timeout 30m -skip '$(NO_SANITIZER)' ./hooks/driver/test ./hooks/driver/nvml/test
# OpenCL's traps are programs of ours.
SANITIZED_OPENCL = $(GO) test -count=1 -timeout 30m -skip 'TestLibrary$$' ./hooks/opencl/test
ADDRESS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
sanitize: setup-test setup-opencl ## the tests of the libraries in the container under the thread, address and undefined-behaviour sanitizers (needs root; 10 minutes)
	VGPU_TEST_CFLAGS=-fsanitize=thread setarch -R $(SANITIZED)
	VGPU_TEST_CFLAGS=-fsanitize=thread setarch -R $(SANITIZED_OPENCL)
	VGPU_TEST_CFLAGS='$(ADDRESS)' $(SANITIZED)
	VGPU_TEST_CFLAGS='$(ADDRESS)' $(SANITIZED_OPENCL)

.PHONY: model
model: setup-model ## check the model of the grant word, and explore the gate deeper than test does, unless they are as they were (FULL=1: also what takes hours)
	$(say) "the grant word's model, and the flaws planted in it"
	@$(if $(FULL),,integration/setup/once.sh $(BUILD)/model/word hooks/gate/model --) hooks/gate/model/model.sh $(if $(FULL),full)
	$(say) "the gate itself, with larger bounds than make test's"
	@grep -q '^func TestExplorerFinds' hooks/gate/test/*_test.go || { echo "hooks/gate/test has no TestExplorerFinds... any more: say here what to run" >&2; exit 1; }
	@integration/setup/once.sh $(BUILD)/model/gate hooks/gate -- env VGPU_EXPLORE_DEEP=1 $(GO) test -count=1 -run ExplorerFinds ./hooks/gate/test

.PHONY: bench bench-programs
BENCH_OUT ?= $(BUILD)/bench.json
COMMITTED := docs/performance/bench.json
bench: setup-demo build bench-programs ## hold arbiter and shim against their budgets (SHORT=1: in a hundred seconds, and against what it was; see docs/bench.md; needs root)
	$(say) "rows go to $(BENCH_OUT)"
	@GO='$(GO)' exec $(BUILD)/bench/bench -out '$(BENCH_OUT)' $(if $(SHORT),-short -against $(COMMITTED)) $(if $(GROUP),-only '$(GROUP)')
# What misses a budget is in the page all the same, and make says so in the end. The rows
# of an earlier run are not there to be taken for those of one that came to none. Flame
# graphs that fail, as where the kernel has no perf events for one, fail nothing else.
.PHONY: performance
performance: ## run the whole benchmark, and write docs/performance.md, its plots, flame graphs and bench.json anew (needs root; 13 minutes)
	@rm -f '$(BUILD)/bench.json'
	@rc=0; $(MAKE) bench SHORT= GROUP= BENCH_OUT='$(BUILD)/bench.json' || rc=$$?; \
	$(BUILD)/bench/bench -report docs -rows '$(BUILD)/bench.json' && \
	{ $(MAKE) flames || echo "the flame graphs are those of before" >&2; exit $$rc; }

# That vgpud has the symbols that the installed one has not.
.PHONY: flames
flames: setup-flames build bench-programs ## draw where the CPU time of vgpud and of the engine goes, as flame graphs (docs/performance/flame-*.svg; needs root; a minute)
	@CGO_ENABLED=1 $(GOBUILD) -o $(BUILD)/bench/vgpud ./cmd/vgpud
	@GO='$(GO)' exec $(BUILD)/bench/bench -flames docs/performance
bench-programs:
	@$(MAKE) -C integration/bench OUT=$(BUILD)/bench
	@$(GOBUILD) -o $(BUILD)/bench/bench ./integration/bench

# build/hardware alone is what a machine with a GPU needs beside run.sh: neither Go nor
# a C compiler, and no network. OUT=FILE says where the results go.
.PHONY: hardware hardware-simulate hardware-build
HARDWARE := $(BUILD)/hardware
hardware: hardware-build ## look at vgpu on this machine's NVIDIA GPU, and at PyTorch on it (8 minutes; see docs/hardware.md; needs root)
	@exec integration/hardware/run.sh $(if $(OUT),--out '$(OUT)')
hardware-simulate: hardware-build ## the same on the simulated GPU, in a minute and a half
	@exec integration/hardware/run.sh --simulate $(if $(OUT),--out '$(OUT)')
hardware-build: libraries simulated bin/vgpud
	@mkdir -p $(HARDWARE)/bin $(HARDWARE)/lib $(HARDWARE)/simgpu/bin $(HARDWARE)/simgpu/lib $(HARDWARE)/torch $(HARDWARE)/kernels
	@$(MAKE) -C integration/hardware OUT=$(HARDWARE) SIMULATED=$(BUILD)/simgpu
	@CGO_ENABLED=0 $(GOBUILD) -ldflags '$(LDFLAGS)' -o $(HARDWARE)/hardware ./integration/hardware
	@install -m 0755 bin/vgpud $(HARDWARE)/bin
	@install -m 0755 -s $(BUILD)/lib/libvgpu-cuda.so $(BUILD)/lib/libvgpu-nvml.so $(HARDWARE)/lib
	@install -m 0755 -s $(BUILD)/simgpu/bin/simgpu $(HARDWARE)/simgpu/bin
	@cp -a --remove-destination $(BUILD)/simgpu/lib/. $(HARDWARE)/simgpu/lib
	@strip $(HARDWARE)/simgpu/lib/*.so.*.*
	@install -m 0644 integration/hardware/torch/*.py $(HARDWARE)/torch
	@install -m 0644 integration/kernels/*.ptx $(HARDWARE)/kernels
	@echo $(COMMIT) >$(HARDWARE)/commit

.PHONY: differences
differences: setup-test ## compare random call sequences with and without the library (SEQUENCES=5000, FIRST=1)
	VGPU_SEQUENCES=$(or $(SEQUENCES),5000) VGPU_FIRST_SEQUENCE=$(or $(FIRST),1) $(GO) test -count=1 -timeout 2h -run RandomSequences ./hooks/driver/test

.PHONY: fuzz
FUZZTIME ?= 100000x
fuzz: ## run each Go fuzz target for FUZZTIME inputs (100000x; a time such as 1m works too)
	@integration/setup/fuzz.sh $(FUZZTIME)

.PHONY: install
install: ## install into DESTDIR, PREFIX, as vgpu install does, but for containerd's configuration (make build first; make musl for containers with musl)
	@test -x bin/vgpu || { echo "nothing is built yet: run make build" >&2; exit 1; }
	bin/vgpu install --from '$(CURDIR)' --root '$(or $(DESTDIR),/)' --prefix '$(PREFIX)' --no-containerd

.PHONY: clean
clean: ## remove what was built (.tools, which setup made, stays)
	rm -rf bin build

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^##@/ { printf "\n%s\n", substr($$0, 5) } /^[a-z0-9-]+:.*## / { sub(/:.*/, "", $$1); printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
