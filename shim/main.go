// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	cshim "github.com/containerd/containerd/v2/pkg/shim"
	cversion "github.com/containerd/containerd/v2/version"
	"github.com/containerd/log"

	"github.com/vgpu-shim/vgpu/shim/bootstrap"
	"github.com/vgpu-shim/vgpu/shim/config"
	"github.com/vgpu-shim/vgpu/vgpu/version"
)

const help = `containerd runs this program for each container or pod of the runtime
io.containerd.vgpu.v1: runc, with a virtual GPU for the container. It is not made
to be started by hand:

  ctr run --runtime io.containerd.vgpu.v1 IMAGE NAME

Configuration: ` + config.DefaultFile + ` if it is there, or the file that the environment
variable ` + config.Env + ` of containerd names. The file of the release, with every
key explained, is configs/shim.toml.

  -v, -version   show the version
  -info          show what containerd asks about a runtime, in protobuf
`

// Main is the shim binary. It returns the exit status, and only when there is
// nothing left to run.
func Main() int {
	args, err := bootstrap.ParseArgs(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		fmt.Print(help)
		return 0
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s\n", os.Args[0], err)
		return 2
	}
	m := newManager(program(), args.Address)
	switch {
	case args.Version:
		fmt.Printf("%s:\n  Version:    %s\n  containerd: %s\n  Go version: %s\n\n",
			filepath.Base(os.Args[0]), version.Version, cversion.Version, runtime.Version())
	case args.Action == bootstrap.ActionStart && !args.Info:
		if err := start(m, args); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %s", m.Name(), err)
			return 1
		}
	default:
		used := make(chan struct{})
		if args.Action == "" && !args.Info {
			go exitIfAbandoned(used)
			go warm(".")
		}
		registerService(used)
		// Ends the process itself on an error.
		cshim.RunShim(context.Background(), m)
	}
	return 0
}

// start is the `start` action; package bootstrap says why it is not left to
// containerd's RunShim.
func start(m cshim.Shim, args bootstrap.Args) error {
	// containerd reads standard error as part of the answer.
	log.L.Logger.SetOutput(io.Discard)

	if err := os.Setenv(programEnv, program()); err != nil {
		return err
	}
	params, protocol, err := bootstrap.Read(os.Stdin, args, os.Getenv("TTRPC_ADDRESS"))
	if err != nil {
		return err
	}
	ctx := namespaces.WithNamespace(context.Background(), args.Namespace)
	ctx = context.WithValue(ctx, cshim.OptsKey{}, cshim.Opts{BundlePath: args.Bundle, Debug: args.Debug})
	result, err := m.Start(ctx, params)
	if err != nil {
		return err
	}
	return bootstrap.Answer(os.Stdout, protocol, result)
}
