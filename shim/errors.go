// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// coded gives an error its code for the RPC. Only the code is wrapped: of an
// error that wraps several, containerd prints each once more.
func coded(err, code error) error { return fmt.Errorf("%s: %w", err.Error(), code) }

// invalid is the error of a request that can not be right at a second try.
func invalid(err error) error { return coded(err, errdefs.ErrInvalidArgument) }
