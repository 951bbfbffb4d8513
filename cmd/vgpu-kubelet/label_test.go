// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestLabelComesWhenPodsCanRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"a": "b"}}}
	node.Status.RuntimeHandlers = []corev1.NodeRuntimeHandler{{Name: ""}, {Name: "runc"}}
	client := fake.NewClientset(node)
	l := labels{node: "one", address: filepath.Join(t.TempDir(), "vgpud.sock")}
	missing := func(want string) {
		t.Helper()
		if got, err := l.missing(ctx, client); err != nil || !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("what is missing is %q (%v), not %q", got, err, want)
		}
	}
	missing("vgpud does not answer")
	listener, err := net.Listen("unix", l.address)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	missing("does not know the handler vgpu yet: restart it there")
	node.Status.RuntimeHandlers = append(node.Status.RuntimeHandlers, corev1.NodeRuntimeHandler{Name: "vgpu"})
	if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	missing("")

	for _, test := range []struct {
		remove bool
		want   map[string]string
	}{
		{false, map[string]string{"a": "b", installedLabel: "true"}},
		{false, map[string]string{"a": "b", installedLabel: "true"}},
		{true, map[string]string{"a": "b"}},
		{true, map[string]string{"a": "b"}},
	} {
		l.remove = test.remove
		if err := l.run(ctx, client); err != nil {
			t.Fatal(err)
		}
		got, err := client.CoreV1().Nodes().Get(ctx, "one", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Labels) != len(test.want) || got.Labels["a"] != "b" || got.Labels[installedLabel] != test.want[installedLabel] {
			t.Errorf("remove=%t: the labels are %v", test.remove, got.Labels)
		}
	}
}

// A containerd before 2.0 says nothing of its handlers.
func TestLabelWithoutAListOfHandlers(t *testing.T) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
	l := labels{node: "one", address: filepath.Join(t.TempDir(), "vgpud.sock")}
	listener, err := net.Listen("unix", l.address)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if why, err := l.missing(context.Background(), client); why != "" || err != nil {
		t.Errorf("it waits for %q (%v)", why, err)
	}
}
