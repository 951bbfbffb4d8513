// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/request"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// vgpuID is the id of the vGPU of a container: the same container has the same.
func vgpuID(containerd, namespace, id string) string {
	sum := sha256.Sum256([]byte(containerd + "\x00" + namespace + "\x00" + id))
	return hex.EncodeToString(sum[:8])
}

// description is for people and programs in the container.
type description struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	GPUs    int    `json:"gpus"`
}

const descriptionFile = "vgpu.json"

// makeDir makes the directory of a vGPU, without its socket, and returns its
// name. devices is what its file of GPUs says. The directory is what a container
// mounts, so it stays the same one as long as the vGPU lives.
func makeDir(parent, id string, gpus int, devices []byte) (_ string, retErr error) {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", fmt.Errorf("failed to name a vGPU's directory: %w", err)
	}
	name := id + "-" + hex.EncodeToString(random[:])
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("failed to make a vGPU's directory: %w", err)
	}
	defer func() {
		if retErr != nil {
			os.RemoveAll(dir)
		}
	}()
	// Whatever the umask is: the users of the container must get through.
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // G302: its parent keeps everybody else out
		return "", fmt.Errorf("failed to open a vGPU's directory to its container: %w", err)
	}
	about, err := json.Marshal(description{1, id, gpus})
	if err != nil {
		return "", err
	}
	for file, content := range map[string][]byte{
		descriptionFile:  append(about, '\n'),
		gpu.RealCUDAFile: nil, // mount points for the real libraries
		gpu.RealNVMLFile: nil,
		// Of the OpenCL layer: its mount point, what loaders read, what it reads.
		gpu.OpenCLFile:     nil,
		gpu.OpenCLListFile: []byte(gpu.OpenCL + "\n"),
		wire.GPUs:          devices,
	} {
		if err := writeIn(dir, file, content); err != nil {
			return "", err
		}
	}
	return name, nil
}

// writeIn writes a file of a vGPU's directory, anew if it is there.
func writeIn(dir, file string, content []byte) error {
	path := filepath.Join(dir, file)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("failed to fill a vGPU's directory: %w", err)
	}
	if err := os.WriteFile(path, content, 0o400); err != nil {
		return fmt.Errorf("failed to fill a vGPU's directory: %w", err)
	}
	if err := os.Chmod(path, 0o444); err != nil { //nolint:gosec // G302: its parent keeps everybody else out
		return fmt.Errorf("failed to fill a vGPU's directory: %w", err)
	}
	return nil
}

// listenIn makes the socket of a vGPU in its directory, in the place of one that
// an earlier vgpud left. Any user of the container may connect.
func listenIn(dir string) (_ int, retErr error) {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, fmt.Errorf("failed to open %s: %w", dir, err)
	}
	defer unix.Close(d)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("failed to make a vGPU's socket: %w", err)
	}
	defer func() {
		if retErr != nil {
			unix.Close(fd)
		}
	}()
	// Under another name until any user may connect: one who came in between would
	// be told EACCES. Through /proc, as the path of a socket is limited to 107
	// bytes.
	const making = "." + wire.Socket
	if err := unix.Unlinkat(d, making, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return -1, fmt.Errorf("failed to remove an unfinished socket in %s: %w", dir, err)
	}
	path := filepath.Join("/proc/self/fd", strconv.Itoa(d), making)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return -1, fmt.Errorf("failed to bind the socket in %s: %w", dir, err)
	}
	if err := unix.Chmod(path, 0o666); err != nil {
		return -1, fmt.Errorf("failed to open the socket in %s to its container: %w", dir, err)
	}
	if err := unix.Listen(fd, 128); err != nil {
		return -1, fmt.Errorf("failed to listen in %s: %w", dir, err)
	}
	if err := unix.Renameat(d, making, d, wire.Socket); err != nil {
		return -1, fmt.Errorf("failed to name the socket in %s: %w", dir, err)
	}
	return fd, nil
}

// described reads how many GPUs the vGPU of a directory has; 1 if that can not
// be read.
func described(dir string) int {
	var about description
	data, err := os.ReadFile(filepath.Join(dir, descriptionFile))
	if err != nil || json.Unmarshal(data, &about) != nil {
		return 1
	}
	return min(max(about.GPUs, 1), request.MaxCount)
}
