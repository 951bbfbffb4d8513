// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// RivalInterval is how often it is looked who else offers the GPUs.
const RivalInterval = time.Minute

// Device plugins do not say which GPUs they offer. wholeGPUs begins the extended
// resources of those that offer whole ones; LimitsGPU is that of vgpu-kubelet
// device-plugin.
const (
	wholeGPUs = "nvidia.com/"
	LimitsGPU = DriverName + "/gpu"
)

// Rivals says which of the GPUs of a node somebody else offers to Kubernetes as well,
// and who, by UUID: another DRA driver in its ResourceSlices, or a device plugin in the
// node's capacity. Those named in own do not count: drivers, and extended resources. It
// takes get nodes and list resourceslices.
func Rivals(ctx context.Context, client kubernetes.Interface, node string, gpus []*v1.GPU, own ...string) (map[string]string, error) {
	out := map[string]string{}
	n, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("failed to read the node: %w", err)
	}
	for _, resource := range slices.Sorted(maps.Keys(n.Status.Capacity)) {
		q, name := n.Status.Capacity[resource], string(resource)
		if (name == LimitsGPU || strings.HasPrefix(name, wholeGPUs)) && !slices.Contains(own, name) && !q.IsZero() {
			for _, g := range gpus {
				out[g.GetUuid()] = name
			}
		}
	}
	list, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, node).String(),
	})
	if apierrors.IsNotFound(err) {
		return out, nil // before Kubernetes 1.34
	}
	if err != nil {
		return nil, fmt.Errorf("failed to read the ResourceSlices of the node: %w", err)
	}
	for _, s := range list.Items {
		if slices.Contains(own, s.Spec.Driver) || s.Spec.NodeName == nil || *s.Spec.NodeName != node {
			continue
		}
		for _, dev := range s.Spec.Devices {
			for _, g := range gpus {
				if is(dev, g) {
					out[g.GetUuid()] = s.Spec.Driver
				}
			}
		}
	}
	return out, nil
}

// is says whether somebody's device is g: by its UUID, whatever the driver's domain, or
// by its PCI address.
func is(dev resourceapi.Device, g *v1.GPU) bool {
	for name, a := range dev.Attributes {
		if a.StringValue == nil {
			continue
		}
		switch path.Base(string(name)) {
		case uuidAttribute:
			if strings.EqualFold(*a.StringValue, g.GetUuid()) {
				return true
			}
		case "pciBusID":
			if g.GetPciBusId() != "" && strings.EqualFold(*a.StringValue, BusID(g.GetPciBusId())) {
				return true
			}
		}
	}
	return false
}

// watchRivals looks for them until the driver ends, and tells of them. Nothing is published
// before it has looked once.
func (d *Driver) watchRivals() {
	said := map[string]string{}
	for d.ctx.Err() == nil {
		now, changed := d.snapshot()
		var look, tell <-chan time.Time
		if now.gpus != nil {
			changed, look, tell = nil, time.After(RivalInterval), time.After(0)
			if err := d.lookForRivals(now.gpus); err != nil && d.ctx.Err() == nil {
				d.cfg.Log.WithError(err).Warn("it is not known who else offers the GPUs; it is tried again")
				look = time.After(answerTimeout)
			}
		}
		for waits := true; waits; {
			select {
			case <-tell: // what could not be told is told later, without another look
				tell = nil
				if err := d.tellOfRivals(said); err != nil && d.ctx.Err() == nil {
					d.cfg.Log.WithError(err).Warn("not all GPUs that somebody else offers have an event; it is tried again")
					tell = time.After(answerTimeout)
				}
				continue
			case <-look:
			case <-changed:
			case <-d.ctx.Done():
			}
			waits = false
		}
	}
}

// lookForRivals takes in who else offers the GPUs, and logs what is new of it.
func (d *Driver) lookForRivals(gpus []*v1.GPU) error {
	ctx, cancel := context.WithTimeout(d.ctx, answerTimeout)
	defer cancel()
	rivals, err := Rivals(ctx, d.cfg.Client, d.cfg.NodeName, gpus, DriverName)
	if err != nil {
		return err
	}
	d.mu.Lock()
	before := d.rivals
	d.rivals = rivals
	d.mu.Unlock()
	if before == nil || !maps.Equal(before, rivals) {
		d.publish()
	}
	for uuid, who := range rivals {
		if before[uuid] != who {
			d.cfg.Log.WithField("gpu", uuid).Error(contested(uuid, who))
		}
	}
	return nil
}

// tellOfRivals makes an event of each, once; the next call makes those that could not be
// written. In said is what was told, by UUID.
func (d *Driver) tellOfRivals(said map[string]string) error {
	d.mu.Lock()
	rivals := d.rivals
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(d.ctx, answerTimeout)
	defer cancel()
	maps.DeleteFunc(said, func(uuid, who string) bool { return rivals[uuid] != who })
	for uuid, who := range rivals {
		if said[uuid] == who {
			continue
		}
		if err := d.tellNode(ctx, contested(uuid, who)); err != nil {
			return err
		}
		said[uuid] = who
	}
	return nil
}

func contested(uuid, who string) string {
	return fmt.Sprintf("%s is offered to Kubernetes by %s as well, which counts what it gives by itself: it takes no new claims of %s. "+
		"Keep %s away from this node, or start vgpu-kubelet with --allow-contested", uuid, who, DriverName, who)
}

// tellNode makes an event of the node.
func (d *Driver) tellNode(ctx context.Context, message string) error {
	// As kubelet's own.
	return d.event(ctx, corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: d.cfg.NodeName, UID: types.UID(d.cfg.NodeName)}, "ContestedGPU", message)
}

// event makes a warning of an object. That the API server refuses it is logged, and no
// error: it would refuse it again.
func (d *Driver) event(ctx context.Context, of corev1.ObjectReference, reason, message string) error {
	now := metav1.Now()
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "vgpu-kubelet-", Namespace: cmp.Or(of.Namespace, metav1.NamespaceDefault)},
		InvolvedObject: of, Type: corev1.EventTypeWarning, Reason: reason, Message: message,
		Source: corev1.EventSource{Component: fieldManager, Host: d.cfg.NodeName}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	_, err := d.cfg.Client.CoreV1().Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{})
	if err == nil {
		return nil
	}
	err = fmt.Errorf("failed to write the event %s of the %s %s: %w", reason, strings.ToLower(of.Kind), of.Name, err)
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) { // the last: of its namespace
		d.cfg.Log.WithError(err).Warn("an event is left out")
		return nil
	}
	return err
}
