// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/kubernetes"

	"github.com/vgpu-shim/vgpu/vgpu/kube/vgpud"
)

// Config is what an administrator decides, and where things are.
type Config struct {
	Address vgpud.Address
	Dir     string // kubelet's device-plugins, with its socket and checkpoint
	PodsDir string // kubelet's pods, with a directory for each
	Sysfs   string // usually /sys

	Oversubscription float64 // memory that may be asked for of a GPU, over what it has; 1 or more
	DefaultMemory    uint64  // bytes on each GPU for a container that asks for none; 0: the default share of the GPU's
	DefaultShare     int     // percent of each GPU for a container that asks for none

	// Absence is after how long without vgpud no new pods are wanted on this node.
	Absence time.Duration

	// NUMA tells kubelet the NUMA node of each GPU, and keeps containers on the GPUs
	// of those that kubelet chose.
	NUMA bool
	// AllowContested serves also where another driver or device plugin offers the same
	// GPUs.
	AllowContested bool

	// Client is asked who else offers the GPUs of NodeName. Nil: nobody is asked, and
	// only device plugins are seen that kubelet's checkpoint tells of.
	Client   kubernetes.Interface
	NodeName string

	Log     *logrus.Entry
	Metrics prometheus.Registerer // nil: nobody wants any
}

// DefaultConfig is a configuration without flags.
func DefaultConfig() Config {
	return Config{
		Address: "/run/vgpu/vgpud.sock", Sysfs: "/sys",
		Dir: "/var/lib/kubelet/device-plugins", PodsDir: "/var/lib/kubelet/pods",
		Oversubscription: 1, DefaultShare: 10, Absence: 10 * time.Second,
	}
}

// Check returns all that is wrong.
func (c *Config) Check() error {
	var errs []error
	bad := func(flag string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("--%s=%v: must be %s", flag, value, allowed))
	}
	if !(c.Oversubscription >= 1 && c.Oversubscription <= 100) { // also not a number
		bad("oversubscription", c.Oversubscription, "from 1 to 100")
	}
	if c.DefaultShare < 1 || c.DefaultShare > wholeGPU {
		bad("default-share", c.DefaultShare, "from 1 to 100")
	}
	if c.DefaultMemory%mebibyte != 0 {
		bad("default-memory", c.DefaultMemory, "whole Mi")
	}
	if c.Absence < 0 {
		bad("absence", c.Absence, "0 or more")
	}
	for _, d := range [][2]string{{"address", string(c.Address)}, {"device-plugins-dir", c.Dir}, {"pods-dir", c.PodsDir}} {
		if !strings.HasPrefix(d[1], "/") {
			bad(d[0], cmp.Or(d[1], `""`), "an absolute path")
		}
	}
	return errors.Join(errs...)
}
