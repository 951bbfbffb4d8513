// SPDX-License-Identifier: Apache-2.0

// Package oci edits OCI runtime specs (config.json): small edits, each of one
// concern, applied in order to a Spec that keeps whatever it does not know.
//
// # What an edit may do
//
// Add a bind mount, add a device node together with its device cgroup rule,
// set an environment variable or put an entry first in one, mask a path. Nothing here touches capabilities,
// seccomp, read-only paths, namespaces, or the process's arguments, and what was
// masked stays so. A mount's
// destination is absolute and clean, and lies neither in /proc nor in /sys; in
// /dev only the simulated GPU's directory is allowed, and device nodes.
//
// Every edit is idempotent: applied twice, it leaves what one application
// leaves. That matters because the spec that arrives may already hold edits of
// a CDI or NRI plugin, or of an earlier attempt.
//
// # Other toolkits
//
// NVIDIA's container toolkit may have been at work on the same container, by
// CDI or by its legacy hook. The driver take-over still has to win, otherwise
// a vGPU container would compute past the gate:
//
//   - A mount at one of our destinations is replaced by ours. Mounts are
//     appended, so they also lie above a mount on a parent directory.
//   - A mount of libcuda.so.<version> or libnvidia-ml.so.<version> at any other
//     place is redirected to the take-over library (Takeover), but in our own
//     directories: there are the real files, and the libraries for musl. Mounts
//     of whole directories that happen to hold a driver are left alone: what
//     they hold can not be told from the spec.
//   - The legacy hook (nvidia-container-runtime-hook) is dropped: it mounts a
//     driver after our mounts, whatever the environment says if devices were
//     asked for by volume mounts.
//   - nvidia-cdi-hook's enable-cuda-compat is dropped: it makes the loader
//     prefer another libcuda, that of the image. Images also name its directory
//     in LD_LIBRARY_PATH: it is masked (MaskCompat).
//   - nvidia-cdi-hook's create-symlinks loses the links that would replace a
//     file that is now a mount (the hook would fail on it) or that name
//     libcuda or libnvidia-ml. Its other links stay, and so do its other hooks (update-ldcache,
//     chmod and the like).
package oci
