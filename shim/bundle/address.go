// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"fmt"
	"os"
	"path/filepath"
)

// AddressFile is the name of the file in a bundle that holds the address of
// the shim's server. The name is containerd's.
const AddressFile = "address"

// WriteAddress puts the address into the directory dir.
func WriteAddress(dir, address string) error {
	o := owner{mode: 0o600, uid: os.Geteuid(), gid: os.Getegid()}
	if err := replace(filepath.Join(dir, AddressFile), []byte(address), o); err != nil {
		return fmt.Errorf("failed to note the shim's address: %w", err)
	}
	return nil
}
