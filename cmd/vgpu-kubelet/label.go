// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// installedLabel is what the runtime class asks of nodes (configs/kubernetes/runtimeclass.yaml).
const installedLabel = "vgpu-shim.dev/installed"

const handler = "vgpu"

// labels are the flags of vgpu-kubelet label.
type labels struct {
	node, kubeconfig, address string
	remove, stay              bool
}

func labelCommand() *cobra.Command {
	l := labels{}
	cmd := &cobra.Command{
		Use: "label", Short: "Label this node as one on which pods of the runtime class can run",
		Long: "Give this node the label " + installedLabel + "=true, by which pods of the runtime class\n" +
			"come to it, once its containerd knows the handler and vgpud answers. It needs in the\n" +
			"cluster: get and patch nodes.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if l.node == "" {
				return usage{errors.New("name the node with --node-name, or in $NODE_NAME")}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, os.Interrupt)
			defer stop()
			client, err := connect(l.kubeconfig)
			if err != nil {
				return err
			}
			return l.run(ctx, client)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&l.node, "node-name", os.Getenv("NODE_NAME"), "name of this `NODE` in Kubernetes (default $NODE_NAME)")
	f.StringVar(&l.kubeconfig, "kubeconfig", "", "`FILE` that says how to reach the API server (default: as a pod does)")
	f.StringVar(&l.address, "address", "/run/vgpu/vgpud.sock", "control socket `PATH` of vgpud")
	f.BoolVar(&l.remove, "remove", false, "take the label away instead")
	f.BoolVar(&l.stay, "stay", false, "do not end afterwards, until a signal comes")
	return cmd
}

func (l *labels) run(ctx context.Context, client kubernetes.Interface) error {
	if !l.remove {
		if err := l.wait(ctx, client); err != nil {
			return err
		}
	}
	value := `"true"`
	if l.remove {
		value = "null"
	}
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, installedLabel, value)
	if _, err := client.CoreV1().Nodes().Patch(ctx, l.node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("failed to set the label %s of node %s to %s: %w", installedLabel, l.node, value, err)
	}
	fmt.Printf("label %s of node %s: %s\n", installedLabel, l.node, value)
	if l.stay {
		<-ctx.Done()
	}
	return nil
}

// wait waits until pods of the class can run here, and says what it waits for.
func (l *labels) wait(ctx context.Context, client kubernetes.Interface) error {
	again := time.NewTicker(time.Second)
	defer again.Stop()
	said := ""
	for {
		why, err := l.missing(ctx, client)
		if err != nil || why == "" {
			return err
		}
		if why != said {
			fmt.Println("waiting:", why)
			said = why
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stopped: %s", why)
		case <-again.C:
		}
	}
}

// missing tells what is missing yet; empty: nothing.
func (l *labels) missing(ctx context.Context, client kubernetes.Interface) (string, error) {
	conn, err := net.Dial("unix", l.address)
	if err != nil {
		return fmt.Sprintf("vgpud does not answer yet (%v)", err), nil
	}
	conn.Close()
	node, err := client.CoreV1().Nodes().Get(ctx, l.node, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("failed to look at node %s: %w", l.node, err)
	}
	// A containerd before 2.0 does not say which handlers it has.
	known := node.Status.RuntimeHandlers
	if len(known) > 0 && !slices.ContainsFunc(known, func(h corev1.NodeRuntimeHandler) bool { return h.Name == handler }) {
		return fmt.Sprintf("containerd of node %s does not know the handler %s yet: restart it there (systemctl restart containerd; pods go on)", l.node, handler), nil
	}
	return "", nil
}
