// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Info says what the runtime is and can do. CRI asks it for the features of
// runc (user namespaces among them) with whatever options the handler has;
// runc's own Info accepts runc's options only.
func (m shimManager) Info(ctx context.Context, optionsR io.Reader) (*types.RuntimeInfo, error) {
	data, err := io.ReadAll(optionsR)
	if err != nil {
		return nil, fmt.Errorf("failed to read the runtime options: %w", err)
	}
	var opts anypb.Any
	if err := proto.Unmarshal(data, &opts); err != nil {
		return nil, fmt.Errorf("failed to parse the runtime options: %w", err)
	}
	h, err := loadHandler(&opts)
	if err != nil {
		return nil, err
	}
	converted, err := marshalOptions(h.runcOptions(""))
	if err != nil {
		return nil, err
	}
	data = nil
	if converted != nil {
		if data, err = proto.Marshal(converted); err != nil {
			return nil, err
		}
	}
	return m.Shim.Info(ctx, bytes.NewReader(data))
}
