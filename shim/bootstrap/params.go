// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"errors"
	"fmt"
	"io"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// maxInputBytes bounds what is read from standard input; containerd's own
// shim has the same bound.
const maxInputBytes = 10 << 20

// Protocol is how a containerd speaks to `start`.
type Protocol int

const (
	// Legacy is spoken by containerd 1.6 to 2.2; the answer is the address.
	Legacy Protocol = iota
	// Protobuf is spoken by containerd 2.3 and newer; the answer is a
	// BootstrapResult.
	Protobuf
)

// Read reads the parameters of `start` from standard input and, where the
// caller speaks the legacy protocol, from its flags and the address of
// containerd's ttrpc API (the environment variable TTRPC_ADDRESS, which may be
// empty). Runtime options become an extension in both cases.
func Read(stdin io.Reader, args Args, ttrpcAddress string) (*bootapi.BootstrapParams, Protocol, error) {
	input, err := io.ReadAll(io.LimitReader(stdin, maxInputBytes+1))
	if err != nil {
		return nil, Legacy, fmt.Errorf("failed to read standard input: %w", err)
	}
	if len(input) > maxInputBytes {
		return nil, Legacy, fmt.Errorf("failed to read standard input: more than %d bytes", maxInputBytes)
	}
	if args.ID == "" || args.Namespace == "" {
		return nil, Legacy, errors.New("failed to start: -id and -namespace are required")
	}
	if params, ok := parse(input, args); ok {
		return params, Protobuf, nil
	}
	params := &bootapi.BootstrapParams{
		InstanceID:             args.ID,
		Namespace:              args.Namespace,
		ContainerdGrpcAddress:  args.Address,
		ContainerdTtrpcAddress: ttrpcAddress,
		ContainerdBinary:       args.PublishBinary,
	}
	if args.Debug {
		params.LogLevel = bootapi.LogLevel_LOG_LEVEL_DEBUG
	}
	if len(input) > 0 {
		options := new(anypb.Any)
		if err := proto.Unmarshal(input, options); err != nil {
			return nil, Legacy, fmt.Errorf("failed to parse standard input as runtime options: %w", err)
		}
		if err := params.AddExtension(options); err != nil {
			return nil, Legacy, err
		}
	}
	return params, Legacy, nil
}

// parse tells BootstrapParams from legacy input. An Any of runtime options can
// parse as BootstrapParams by accident (both start with two strings), so the
// identity must also be the one on the command line, which every version
// gives.
func parse(input []byte, args Args) (*bootapi.BootstrapParams, bool) {
	params := new(bootapi.BootstrapParams)
	if len(input) == 0 || proto.Unmarshal(input, params) != nil {
		return nil, false
	}
	return params, params.GetInstanceID() == args.ID && params.GetNamespace() == args.Namespace
}

// Answer writes the result in the way that the caller understands.
func Answer(stdout io.Writer, p Protocol, result *bootapi.BootstrapResult) error {
	data := []byte(result.GetAddress())
	if p == Protobuf {
		var err error
		if data, err = proto.Marshal(result); err != nil {
			return fmt.Errorf("failed to marshal the bootstrap result: %w", err)
		}
	}
	if _, err := stdout.Write(data); err != nil {
		return fmt.Errorf("failed to answer: %w", err)
	}
	return nil
}
