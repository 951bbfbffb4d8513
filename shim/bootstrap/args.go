// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"flag"
	"fmt"
	"io"
)

// The actions of a shim binary. Without one it is the server.
const (
	ActionStart  = "start"
	ActionDelete = "delete"
)

// Args is the shim's command line, as containerd's pkg/shim defines it.
type Args struct {
	Action        string
	ID            string
	Namespace     string
	Address       string // of containerd's gRPC API
	PublishBinary string
	Bundle        string
	Debug         bool
	Version       bool
	Info          bool
}

// ParseArgs reads a command line without the program's name. The server parses
// it again through package flag; this copy decides what the process is to be.
func ParseArgs(args []string) (Args, error) {
	var a Args
	f := flag.NewFlagSet("containerd-shim", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.BoolVar(&a.Debug, "debug", false, "")
	f.BoolVar(&a.Version, "v", false, "")
	f.BoolVar(&a.Version, "version", false, "")
	f.BoolVar(&a.Info, "info", false, "")
	f.StringVar(&a.Namespace, "namespace", "", "")
	f.StringVar(&a.ID, "id", "", "")
	f.StringVar(&a.Bundle, "bundle", "", "")
	f.StringVar(&a.Address, "address", "", "")
	f.StringVar(&a.PublishBinary, "publish-binary", "", "")
	f.String("socket", "", "")
	f.String("debug-socket", "", "")
	if err := f.Parse(args); err != nil {
		return Args{}, fmt.Errorf("failed to parse the command line: %w", err)
	}
	a.Action = f.Arg(0)
	return a, nil
}
