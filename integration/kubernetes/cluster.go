// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	client "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// startLimit bounds how long the control plane or a node may take until it answers.
const startLimit = 3 * time.Minute

// Cluster is a control plane and its nodes.
type Cluster struct {
	Dir        string
	Client     client.Interface
	Kubeconfig string // path of a file that lets everybody do everything
	Nodes      []*Node

	// SchedulerAddress is where anybody may read the metrics and profiles of a scheduler
	// for PlacementOnly, by TLS with a certificate that it signs itself.
	SchedulerAddress string

	paths     harness.Paths // of what was installed
	config    *rest.Config
	images    string // archive of the images that each node has
	guarded   bool
	processes []*harness.Process // of the control plane, as they were started
	added     int                // nodes, with those that are gone
}

// Options choose a control plane.
type Options struct {
	// PlacementOnly leaves out all that nodes without a kubelet have no use for: the
	// controller manager, which would take them for dead, and the images. The
	// scheduler may then ask the API server as often as it likes, and tells of itself
	// at SchedulerAddress.
	PlacementOnly bool
	// NodesToScore is the percentage of nodes that have room for a pod after which a
	// scheduler for PlacementOnly looks no further. 0: it chooses it by itself.
	NodesToScore int32
	// Guarded lets the API server look at who asks for what. Pods have the tokens of
	// their accounts then, and reach it at ServiceAddress.
	Guarded bool
}

// ServiceAddress is the first of the services': the API server's, whose certificate
// names it. Here it is an address of the machine.
const ServiceAddress = "10.96.0.1"

// Start starts a control plane without nodes, in a directory that is made. What
// was started before an error is ended again.
func Start(ctx context.Context, paths harness.Paths, dir string, o Options) (_ *Cluster, err error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir, paths: paths, guarded: o.Guarded, Kubeconfig: filepath.Join(dir, "kubeconfig"), images: filepath.Join(dir, "images.tar")}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stopControlPlane())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if !o.PlacementOnly {
		if err := writeImages(paths, filepath.Join(dir, "rootfs"), c.images); err != nil {
			return nil, fmt.Errorf("failed to make the images: %w", err)
		}
	}
	addresses, err := freeAddresses(4)
	if err != nil {
		return nil, err
	}
	etcd := "http://" + addresses[0]
	if err := c.startEtcd(etcd, "http://"+addresses[1]); err != nil {
		return nil, err
	}
	if err := c.startAPIServer(ctx, etcd, addresses[2]); err != nil {
		return nil, err
	}
	if o.PlacementOnly {
		return c, c.startPlacement(addresses[3], o.NodesToScore)
	}
	// Neither serves anything to anybody here.
	common := []string{"--kubeconfig=" + c.Kubeconfig, "--leader-elect=false", "--secure-port=0"}
	if err := c.run("kube-scheduler", c.program("kube-scheduler"), common...); err != nil {
		return nil, err
	}
	manager := append(common, "--service-account-private-key-file="+c.keyFile())
	if o.Guarded {
		manager = append(manager, "--root-ca-file="+filepath.Join(c.certificates(), "apiserver.crt"))
	}
	return c, c.run("kube-controller-manager", c.program("kube-controller-manager"), manager...)
}

// startPlacement starts the scheduler for nodes that are objects alone.
func (c *Cluster) startPlacement(address string, nodesToScore int32) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	config := filepath.Join(c.Dir, "scheduler.yaml")
	text := fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %q, qps: 5000, burst: 5000}
leaderElection: {leaderElect: false}
percentageOfNodesToScore: %d
`, c.Kubeconfig, nodesToScore)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	c.SchedulerAddress = address
	return c.run("kube-scheduler", c.program("kube-scheduler"), "--config="+config, "--bind-address="+host, "--secure-port="+port,
		"--cert-dir="+c.certificates(), "--authorization-always-allow-paths=/metrics,/debug/pprof/*")
}

// Processes are those of the control plane.
func (c *Cluster) Processes() []*harness.Process { return slices.Clone(c.processes) }

// program is where setup put one of Kubernetes' programs.
func (c *Cluster) program(name string) string {
	return filepath.Join(c.paths.Tools, "suites", "kubernetes", name)
}

// run starts a program of the control plane.
func (c *Cluster) run(name, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Env = c.environment()
	p, err := harness.StartProcess(name, filepath.Join(c.Dir, name+".log"), cmd)
	if err == nil {
		c.processes = append(c.processes, p)
	}
	return err
}

func (c *Cluster) environment() []string {
	return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + c.Dir, "TMPDIR=" + c.Dir}
}

// startEtcd starts etcd with its two URLs.
func (c *Cluster) startEtcd(serve, peer string) error {
	// What it stores need not outlive the machine.
	return c.run("etcd", filepath.Join(c.paths.Tools, "debian", "etcd-server", "usr", "bin", "etcd"),
		"--name=one", "--data-dir="+filepath.Join(c.Dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+serve, "--advertise-client-urls="+serve,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=one="+peer)
}

// Port is the API server's.
func (c *Cluster) Port() string {
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(c.config.Host, "https://"))
	return port
}

// As is the cluster's address for whoever has a token.
func (c *Cluster) As(token string) *rest.Config {
	config := rest.CopyConfig(c.config)
	config.BearerToken = token
	return config
}

func (c *Cluster) certificates() string { return filepath.Join(c.Dir, "certificates") }

func (c *Cluster) keyFile() string { return filepath.Join(c.Dir, "service-account.key") }

// startAPIServer starts the API server, and waits until it is ready. Whoever knows
// the token may do everything: who may do what is not what is looked at here.
func (c *Cluster) startAPIServer(ctx context.Context, etcd, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if err := writeKey(c.keyFile()); err != nil {
		return err
	}
	secret := make([]byte, 16)
	if _, err := rand.Read(secret); err != nil {
		return err
	}
	c.config = &rest.Config{
		Host: "https://" + address, BearerToken: hex.EncodeToString(secret),
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, // it signs its certificate itself
		QPS:             -1,                                   // no limit of its own
	}
	if c.Client, err = client.NewForConfig(c.config); err != nil {
		return err
	}
	tokens := filepath.Join(c.Dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(c.config.BearerToken+",admin,admin,system:masters\n"), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(c.Kubeconfig, []byte(c.kubeconfigText()), 0o600); err != nil {
		return err
	}
	// Pods get no tokens, so they need no account.
	access := []string{"--bind-address=" + host, "--authorization-mode=AlwaysAllow", "--disable-admission-plugins=ServiceAccount"}
	if c.guarded {
		access = []string{"--authorization-mode=RBAC"}
		if err := addAddress(0, ServiceAddress); err != nil {
			return err
		}
	}
	if err := c.run("kube-apiserver", c.program("kube-apiserver"), append(access,
		"--etcd-servers="+etcd, "--advertise-address="+host, "--secure-port="+port,
		"--endpoint-reconciler-type=none", "--cert-dir="+c.certificates(),
		"--token-auth-file="+tokens,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.keyFile(), "--service-account-signing-key-file="+c.keyFile(),
		"--kubelet-preferred-address-types=InternalIP", // nobody knows the nodes' names
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true",
	)...); err != nil {
		return err
	}
	return c.wait(ctx, c.processes, func() error {
		_, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
}

func (c *Cluster) kubeconfigText() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: one, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: %q}}]
contexts: [{name: one, context: {cluster: one, user: admin}}]
current-context: one
`, c.config.Host, c.config.BearerToken)
}

// wait waits until f returns nil, and gives up when one of the processes ends.
func (c *Cluster) wait(ctx context.Context, processes []*harness.Process, f func() error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := harness.Eventually(ctx, startLimit, func() error {
		for _, p := range processes {
			select {
			case <-p.Done():
				cancel(fmt.Errorf("%s ended: %s", p.Name, p.Tail()))
			default:
			}
		}
		return f()
	})
	if cause := context.Cause(ctx); cause != nil {
		err = errors.Join(cause, err)
	}
	return err
}

// Kubectl runs kubectl and returns what it printed.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.program("kubectl"), append([]string{"--kubeconfig=" + c.Kubeconfig}, args...)...)
	cmd.Env = c.environment()
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// Tails is the end of the log of each process, for messages.
func (c *Cluster) Tails() string {
	all := slices.Clone(c.processes)
	for _, n := range c.Nodes {
		all = append(all, n.processes()...)
	}
	return tails(all)
}

func tails(all []*harness.Process) string {
	var b strings.Builder
	for _, p := range all {
		fmt.Fprintf(&b, "end of %s:\n%s\n", p.Log, p.Tail())
	}
	return b.String()
}

// Close ends nodes and control plane. Pods should be gone: only the API server can
// have them removed. What is left of a pod is the error, and ends with the box.
func (c *Cluster) Close(ctx context.Context) error {
	var errs []error
	for _, n := range slices.Clone(c.Nodes) {
		errs = append(errs, c.RemoveNode(ctx, n))
	}
	return errors.Join(append(errs, c.stopControlPlane())...)
}

// RemoveNode takes a node out of the cluster and ends it. Its pods should be gone.
func (c *Cluster) RemoveNode(ctx context.Context, n *Node) error {
	c.Nodes = slices.DeleteFunc(c.Nodes, func(other *Node) bool { return other == n })
	err := errors.Join(n.CheckLeaks(ctx), n.stop())
	return errors.Join(err, c.Client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{}))
}

// stopControlPlane ends what was started last first: the others' clients. Nothing of
// it is kept, so nobody waits for the API server, which takes its time for an orderly
// end.
func (c *Cluster) stopControlPlane() error {
	var errs []error
	for _, p := range slices.Backward(c.processes) {
		errs = append(errs, p.Kill())
	}
	c.processes = nil
	return errors.Join(errs...)
}

// writeKey makes a key by which the accounts of services are signed.
func writeKey(path string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return os.WriteFile(path, text, 0o600)
}

// freeAddresses finds addresses on whose ports nobody listens. They differ, as all
// are taken at once.
func freeAddresses(n int) (addresses []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addresses = append(addresses, l.Addr().String())
	}
	return addresses, nil
}
