# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2154 # the functions and versions are those of setup.sh
#
# Helm, for the tests of its chart. Sourced by setup.sh, never run.

setup_helm() { go_tool helm "helm.sh/helm/v4/cmd/helm@$HELM"; }
