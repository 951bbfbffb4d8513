#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Renders the Helm chart for those who use kustomize: configs/kubernetes/vgpu.yaml and
# configs/kustomize/uninstall/vgpu.yaml. The tests of integration/chart compare.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# What has files of its own there is left out.
own=(--set runtimeClass.create=false --set deviceClasses.create=false --set admission.create=false --set nodeRestriction.create=false)
render() {
	echo "# Made of configs/helm/vgpu by make chart. Do not edit."
	.tools/bin/helm template vgpu configs/helm/vgpu --namespace vgpu-system --kube-version 1.37.2 "${own[@]}" "$@"
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
render >"$scratch/vgpu.yaml"
render --set uninstall=true >"$scratch/uninstall.yaml"
install -m 0644 "$scratch/vgpu.yaml" configs/kubernetes/vgpu.yaml
install -m 0644 "$scratch/uninstall.yaml" configs/kustomize/uninstall/vgpu.yaml
