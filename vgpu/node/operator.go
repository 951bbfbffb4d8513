// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// nodeStore keeps what belongs to the node, and not to one vGPU.
type nodeStore interface {
	// saveNode writes value under name, then calls then, on another goroutine.
	saveNode(name string, value []byte, then func(error))
	loadNode(name string) ([]byte, error) // nil if nothing was saved
	nodeNames(prefix string) []string     // under which something is saved, sorted
}

// saveNode waits until value stands in s under name.
func saveNode(s nodeStore, name string, value []byte) error {
	done := make(chan error, 1)
	s.saveNode(name, value, func(err error) { done <- err })
	return <-done
}

// operatorKey is under which operatorSet stands in the store.
const operatorKey = "operator"

const operatorVersion = 1

// operatorSet is what the operator set on the node, and a restarted vgpud must know. It
// may name GPUs that are not there at present. Maps in it are never changed in
// place.
type operatorSet struct {
	Version  int                     `json:"version"`
	Cordons  map[string]string       `json:"cordons,omitempty"` // GPU -> reason
	Policy   *chosenPolicy           `json:"policy,omitempty"`  // of the node; nil: the configuration's
	Policies map[string]chosenPolicy `json:"policies,omitempty"`
}

type chosenPolicy struct {
	Name  string `json:"name"`
	Slots int    `json:"slots,omitempty"` // 0: the configuration's
}

// policy is the engine's form of k, for a GPU or for the node if none is named.
// The zero policy takes a GPU back to the node's.
func (d *Daemon) policy(gpu arbiter.UUID, k chosenPolicy) (arbiter.Policy, error) {
	preset, err := request.ParsePreset(k.Name)
	if err != nil || gpu != "" && preset == request.Default {
		return arbiter.Policy{}, err
	}
	return arbiter.Policy{Preset: preset, Slots: cmp.Or(k.Slots, d.cfg.Engine.Slots)}, nil
}

// keep writes next, which is what is kept from then on. It has d.mu.
func (d *Daemon) keep(next operatorSet) error {
	next.Version = operatorVersion
	data, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("failed to encode what the operator set: %w", err)
	}
	if err := saveNode(d.nodeStore, operatorKey, data); err != nil {
		return fmt.Errorf("nothing was changed: failed to keep what the operator set: %w", err)
	}
	d.set = next
	return nil
}

// restoreSet puts what was kept into force, before anything is served.
func (d *Daemon) restoreSet() {
	data, err := d.nodeStore.loadNode(operatorKey)
	if err != nil {
		d.log.WithError(err).Error("what the operator set is not known: no GPU is cordoned by the operator, and the policies are the configuration's")
		return
	}
	if data == nil {
		return
	}
	var k operatorSet
	if err = json.Unmarshal(data, &k); err == nil && k.Version != operatorVersion {
		err = fmt.Errorf("it has version %d, this vgpud knows %d", k.Version, operatorVersion)
	}
	if err != nil {
		d.log.WithError(err).Error("what the operator set can not be used: no GPU is cordoned by the operator, and the policies are the configuration's")
		if err := saveNode(d.nodeStore, operatorKey+keptSuffix, data); err != nil {
			d.log.WithError(err).Warn("what the operator set is lost")
		}
		return
	}
	d.set = k
	l := d.loop
	for _, uuid := range slices.Sorted(maps.Keys(k.Cordons)) {
		l.setCause(arbiter.UUID(uuid), causeOperator, k.Cordons[uuid])
	}
	restore := func(gpu arbiter.UUID, kp chosenPolicy) {
		p, err := d.policy(gpu, kp)
		if err != nil {
			d.log.WithField("gpu", gpu).WithError(err).Error("a policy that the operator set can not be used")
			return
		}
		l.setPolicy(gpu, p)
	}
	if k.Policy != nil {
		restore("", *k.Policy)
	}
	for _, uuid := range slices.Sorted(maps.Keys(k.Policies)) {
		restore(arbiter.UUID(uuid), k.Policies[uuid])
	}
}
