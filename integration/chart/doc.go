// SPDX-License-Identifier: Apache-2.0

// Package chart renders the Helm chart and what is made of it for kustomize, and looks
// at every object. Helm and kubectl are real, and no cluster is needed; what the chart
// does on one is looked at by the package cluster.
package chart
