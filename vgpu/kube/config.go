// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"github.com/vgpu-shim/vgpu/vgpu/kube/vgpud"
)

// DriverName is the driver's name in the API, and the domain of its attributes.
const DriverName = "vgpu-shim.dev"

// Order is by which a pod gets one of the GPUs that fit: the scheduler takes the first
// that was published.
type Order string

// The orders.
const (
	FirstFit Order = "first-fit" // as vgpud lists them
	Pack     Order = "pack"      // the most memory claimed first
	Spread   Order = "spread"    // the least memory claimed first
	Random   Order = "random"    // anew for each claim
)

// Orders returns the names of all orders.
func Orders() []string {
	return []string{string(FirstFit), string(Pack), string(Spread), string(Random)}
}

// Config is what an administrator decides, and where things are.
type Config struct {
	NodeName string
	Client   kubernetes.Interface
	Address  string // of vgpud's control socket

	PluginDir   string // the driver's socket and checkpoint; kubelet's plugins/vgpu-shim.dev
	RegistryDir string // kubelet's plugins_registry
	CDIDir      string // where the container runtime reads CDI specs
	Sysfs       string // usually /sys

	Order            Order
	Oversubscription float64 // memory that may be claimed of a GPU, over what it has; 1 or more
	DefaultMemory    uint64  // bytes of a request that says none; 0: the default share of the GPU's
	DefaultShare     int     // percent of a request that says none

	// Absence is after how long without vgpud no new pods are wanted on this node.
	Absence time.Duration

	// AllowContested publishes GPUs that another driver or device plugin offers as well.
	AllowContested bool

	// StatusInterval is how often the status of one claim is written at most; 0: it is
	// not.
	StatusInterval time.Duration

	Log     *logrus.Entry
	Metrics prometheus.Registerer // nil: nobody wants any

	answer, firstWord time.Duration // vgpud.AnswerTimeout and firstWord, but in tests
	untoldInterval    time.Duration // for tests; 0: the constant
}

// DefaultConfig is a configuration without flags.
func DefaultConfig() Config {
	return Config{
		Address:   "/run/vgpu/vgpud.sock",
		PluginDir: "/var/lib/kubelet/plugins/" + DriverName, RegistryDir: "/var/lib/kubelet/plugins_registry",
		CDIDir: "/var/run/cdi", Sysfs: "/sys",
		Order: FirstFit, Oversubscription: 1, DefaultShare: 10, Absence: 10 * time.Second, StatusInterval: time.Minute,
		answer: vgpud.AnswerTimeout, firstWord: firstWord,
	}
}

// Check returns all that is wrong.
func (c *Config) Check() error {
	var errs []error
	bad := func(flag string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("--%s=%v: must be %s", flag, value, allowed))
	}
	if wrong := validation.IsDNS1123Subdomain(c.NodeName); len(wrong) > 0 {
		bad("node-name", c.NodeName, "the name of this Node in Kubernetes")
	}
	if !slices.Contains(Orders(), string(c.Order)) {
		bad("order", c.Order, strings.Join(Orders(), ", "))
	}
	if !(c.Oversubscription >= 1 && c.Oversubscription <= 100) { // also not a number
		bad("oversubscription", c.Oversubscription, "from 1 to 100")
	}
	if c.DefaultShare < 1 || c.DefaultShare > 100 {
		bad("default-share", c.DefaultShare, "from 1 to 100")
	}
	if c.DefaultMemory%mebibyte != 0 {
		bad("default-memory", c.DefaultMemory, "whole Mi")
	}
	if c.Absence < 0 {
		bad("absence", c.Absence, "0 or more")
	}
	if c.StatusInterval != 0 && c.StatusInterval < time.Second {
		bad("status-interval", c.StatusInterval, "1s or more, or 0")
	}
	for _, d := range [][2]string{{"address", c.Address}, {"plugin-dir", c.PluginDir}, {"registry-dir", c.RegistryDir}, {"cdi-dir", c.CDIDir}} {
		if !strings.HasPrefix(d[1], "/") {
			bad(d[0], cmp.Or(d[1], `""`), "an absolute path")
		}
	}
	return errors.Join(errs...)
}
