// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// addAddress gives the loopback device an address more, under a number.
func addAddress(number int, address string) error {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	label, err := unix.NewIfreq(fmt.Sprintf("lo:%d", number))
	if err != nil {
		return err
	}
	if err := label.SetInet4Addr(ip.AsSlice()); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCSIFADDR, label); err != nil {
		return fmt.Errorf("address %s: %w", address, err)
	}
	return nil
}
