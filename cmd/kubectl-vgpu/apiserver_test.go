// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientsetfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// A cluster that knows no claims, or does not use them, is asked for no more; one that
// tells nothing of them is an error.
func TestAskingForClaims(t *testing.T) {
	slices := schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}
	for _, test := range []struct {
		name  string
		fails error
		there []runtime.Object
		asks  string // of resources, in this order
		says  string
	}{
		{"an older API server", apierrors.NewNotFound(slices, ""), nil, "resourceslices", ""},
		{"without claims", nil, nil, "resourceslices", ""},
		{"with claims", nil, []runtime.Object{&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}, "resourceslices resourceclaims", ""},
		{"without rights", apierrors.NewForbidden(slices, "", nil), nil, "resourceslices", "failed to list ResourceSlices"},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := clientsetfake.NewClientset(test.there...)
			if test.fails != nil {
				client.PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, test.fails })
			}
			published, _, err := apiServer{client}.claims(t.Context())
			if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("the error is %v", err)
			}
			if len(published) != len(test.there) {
				t.Errorf("%d slices", len(published))
			}
			var asked []string
			for _, a := range client.Actions() {
				asked = append(asked, a.GetResource().Resource)
			}
			if strings.Join(asked, " ") != test.asks {
				t.Errorf("it asked for %v", asked)
			}
		})
	}
}

// The pods of vgpud are found in any namespace, and no others.
func TestFindingThePods(t *testing.T) {
	pod := func(namespace, component string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: component, Labels: map[string]string{
			"app.kubernetes.io/name": "vgpu", "app.kubernetes.io/component": component,
		}}}
	}
	got, err := apiServer{clientsetfake.NewClientset(pod("a", "vgpud"), pod("b", "vgpud"), pod("a", "vgpu-kubelet"))}.pods(t.Context())
	if err != nil || len(got) != 2 || got[0].Name != "vgpud" || got[1].Name != "vgpud" {
		t.Errorf("%v, %v", got, err)
	}
}
