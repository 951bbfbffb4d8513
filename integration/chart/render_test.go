// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	sigsyaml "sigs.k8s.io/yaml"
)

// repository is the tree from here.
const repository = "../.."

// tool runs a program that setup brought in.
func tool(t *testing.T, path string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(filepath.Join(repository, ".tools", path), args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	// Nothing of the caller's is read.
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + t.TempDir()}
	out, err := cmd.Output()
	if errors.Is(err, os.ErrNotExist) {
		t.Fatalf("run make setup-chart: %v", err)
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s%s", path, strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out), err
}

const chart = repository + "/configs/helm/vgpu"

func template(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return tool(t, "bin/helm", append([]string{"template", "vgpu", chart, "--namespace", "vgpu-system", "--kube-version", "1.37.2"}, args...)...)
}

// kubectl is the real one; it brings kustomize.
func kustomize(t *testing.T, dir string) string {
	t.Helper()
	out, err := tool(t, "suites/kubernetes/kubectl", "kustomize", filepath.Join(repository, dir))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// documents are the objects of a text, each as it is written there.
func documents(t *testing.T, text string) (all [][]byte) {
	t.Helper()
	d := yaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(text)))
	for {
		b := make([]byte, len(text)+1)
		n, err := d.Read(b)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		var object map[string]any
		if err := sigsyaml.UnmarshalStrict(b[:n], &object); err != nil {
			t.Fatalf("%v in\n%s", err, b[:n])
		}
		if len(object) > 0 { // else there are comments alone
			all = append(all, b[:n])
		}
	}
}

// objects decodes a text as the API server does with fieldValidation=Strict: a field
// that the type does not have, or that is there twice, fails the test.
func objects(t *testing.T, text string) (all []runtime.Object) {
	t.Helper()
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, monitoringv1.AddToScheme} {
		if err := add(types); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(types, serializer.EnableStrict).UniversalDeserializer()
	for _, b := range documents(t, text) {
		object, _, err := decoder.Decode(b, nil, nil)
		if err != nil {
			t.Errorf("%v in\n%s", err, b)
			continue
		}
		all = append(all, object)
	}
	return all
}

// names are kinds and names of objects, sorted.
func names(all []runtime.Object) (found []string) {
	for _, o := range all {
		m, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		u := unstructured.Unstructured{Object: m}
		found = append(found, o.GetObjectKind().GroupVersionKind().Kind+"/"+u.GetName())
	}
	slices.Sort(found)
	return found
}

// The chart is well made, and with each set of values it gives exactly these objects,
// in fields that their types have.
func TestRenderedObjects(t *testing.T) {
	always := []string{"ClusterRole/vgpu-kubelet", "ClusterRoleBinding/vgpu-kubelet", "ServiceAccount/vgpu-kubelet"}
	restriction := []string{"ValidatingAdmissionPolicy/vgpu-node-restriction", "ValidatingAdmissionPolicyBinding/vgpu-node-restriction"}
	daemons := []string{"DaemonSet/vgpud", "DaemonSet/vgpu-kubelet"}
	classes := []string{"DeviceClass/vgpu", "DeviceClass/vgpu-small", "DeviceClass/vgpu-medium", "DeviceClass/vgpu-large"}
	runtimes := []string{"RuntimeClass/vgpu"}
	var admission []string
	for _, name := range []string{"config", "sizes", "limits", "claimless"} {
		admission = append(admission, "ValidatingAdmissionPolicy/vgpu-"+name, "ValidatingAdmissionPolicyBinding/vgpu-"+name)
	}
	for _, test := range []struct {
		values string
		want   [][]string
	}{
		{"", [][]string{always, restriction, admission, daemons, runtimes, classes}},
		{"everything", [][]string{always, restriction, admission, daemons, runtimes, classes, {"ConfigMap/vgpud", "Service/vgpu-metrics", "ServiceMonitor/vgpu"}}},
		{"device-plugin", [][]string{always, restriction, admission, daemons, runtimes}},
		{"none", [][]string{always, restriction, daemons, runtimes}},
		{"bare", [][]string{always, daemons}},
		{"uninstall", [][]string{always, restriction, admission, runtimes, classes, {"DaemonSet/vgpu-uninstall"}}},
	} {
		t.Run(test.values, func(t *testing.T) {
			var args []string
			if test.values != "" {
				args = []string{"--values", "testdata/" + test.values + ".yaml"}
			}
			if out, err := tool(t, "bin/helm", append([]string{"lint", "--strict", chart}, args...)...); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			text, err := template(t, args...)
			if err != nil {
				t.Fatal(err)
			}
			want := slices.Concat(test.want...)
			slices.Sort(want)
			if diff := cmp.Diff(want, names(objects(t, text))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What each value is for reaches the objects.
func TestValuesReachTheObjects(t *testing.T) {
	reach(t, "everything", []string{
		"image: registry.example:5000/gpu/vgpu:v1.2.3", "imagePullPolicy: Always", "- name: registry", "nvidia.com/gpu.present: \"true\"",
		"priorityClassName: high", "example.com/a: b", "maxUnavailable: 10%", "values:\n", "operator: Exists",
		"--containerd=/opt/bin/containerd", "--containerd-config=/etc/k/config.toml", "--containerd-socket=/run/k/containerd.sock", "--restart=signal",
		"--gpus=sim:2", "--state=/run/other", "--socket=/run/other/vgpud.sock", "/usr/local/bin/vgpu, --address=/run/other/vgpud.sock", "hostPath: {path: /run/other,",
		`quantum = \"10ms\"`, "--config=/etc/vgpu/vgpud.toml", "--log-level=debug", "memory: 1Gi",
		"--plugin-dir=/data/kubelet/plugins/vgpu-shim.dev", "--registry-dir=/data/kubelet/plugins_registry", "--cdi-dir=/etc/cdi", "hostPath: {path: /etc/cdi,",
		"--order=pack", "--oversubscription=1.5", "--default-share=25", "--default-memory=4Gi", "--allow-contested=true",
		"--metrics=0.0.0.0:19442", "--metrics=:19443", "interval: 1m", "release: prometheus",
		"name: KUBERNETES_SERVICE_HOST\n          value: \"10.0.0.1\"", "value: \"6443\"",
	})
	reach(t, "device-plugin", []string{
		"- device-plugin\n", "--pods-dir=/data/kubelet/pods", "mountPath: /data/kubelet/pods, readOnly: true, mountPropagation: HostToContainer}", "hostPath: {path: /data/kubelet/pods,",
		"--device-plugins-dir=/var/lib/kubelet/device-plugins", "mountPath: /var/lib/kubelet/device-plugins}", "hostPath: {path: /var/lib/kubelet/device-plugins,",
		"--numa=true", "--allow-contested=true", "--oversubscription=1.5", "--default-share=25", "--default-memory=4Gi", "--log-level=debug", "--metrics=:19443",
		"hostPath: {path: /run/other,",
	})
}

func reach(t *testing.T, values string, all []string) {
	t.Helper()
	text, err := template(t, "--values", "testdata/"+values+".yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range all {
		if !strings.Contains(text, want) {
			t.Errorf("with the values %s nothing says %q", values, want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	for _, test := range []struct{ set, says string }{
		{`mode="DRA"`, "'/mode': value must be one of 'dra', 'device-plugin', 'none'"},
		{`vgpud.gpu="auto"`, "'/vgpud': additional properties 'gpu' not allowed"},
		{`vgpud.gpus="sim:17"`, "'/vgpud/gpus'"},
		{`vgpud.state="run"`, "'/vgpud/state'"},
		{`containerd.restart="reload"`, "'/containerd/restart'"},
		{"kubelet.oversubscription=0.5", "'/kubelet/oversubscription': minimum"},
		{`kubelet.defaultMemory="lots"`, "'/kubelet/defaultMemory'"},
		{"kubelet.defaultShare=101", "'/kubelet/defaultShare'"},
		{"metrics.vgpudPort=80", "'/metrics/vgpudPort'"},
		{"maxUnavailable=0", "'/maxUnavailable'"},
		{`image.pullPolicy="Sometimes"`, "'/image/pullPolicy'"},
	} {
		if _, err := template(t, "--set-json", test.set); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: the error does not say %q: %v", test.set, test.says, err)
		}
	}
	for version, says := range map[string]string{"1.33.4": "mode dra needs Kubernetes 1.34, and this is v1.33.4: use mode device-plugin", "1.25.0": "incompatible with Kubernetes"} {
		if _, err := template(t, "--kube-version", version); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Kubernetes %s: the error does not say %q: %v", version, says, err)
		}
	}
	// Which has neither tokens that name nodes, nor claims.
	for _, mode := range []string{"device-plugin", "none"} {
		text, err := template(t, "--kube-version", "1.26.0", "--set", "mode="+mode)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names(objects(t, text)) {
			if strings.HasPrefix(name, "Validating") || strings.HasPrefix(name, "DeviceClass") {
				t.Errorf("Kubernetes 1.26 gets a %s", name)
			}
		}
	}
}

// Who may do what: only what changes the node is privileged, only what speaks to the
// API server has a token, and that may do no more than it must.
func TestLeastPrivilege(t *testing.T) {
	for _, values := range []string{"everything", "device-plugin", "none", "uninstall"} {
		text, err := template(t, "--values", "testdata/"+values+".yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects(t, text) {
			switch o := o.(type) {
			case *appsv1.DaemonSet:
				checkPods(t, o)
			case *rbacv1.ClusterRole:
				checkRole(t, values, o)
			}
		}
	}
}

func checkPods(t *testing.T, set *appsv1.DaemonSet) {
	t.Helper()
	spec := set.Spec.Template.Spec
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		t.Errorf("%s: all its containers have a token", set.Name)
	}
	if surge := set.Spec.UpdateStrategy.RollingUpdate.MaxSurge; surge == nil || surge.IntValue() != 0 {
		t.Errorf("%s: two of its pods may be on a node at once", set.Name)
	}
	if spec.HostNetwork || spec.HostIPC {
		t.Errorf("%s has the host's network or IPC", set.Name)
	}
	privileged := false
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		token := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "token" })
		s := c.SecurityContext
		switch program := c.Command[0]; {
		case program == "vgpu-node":
			privileged = true
			if s.Privileged == nil || !*s.Privileged || token {
				t.Errorf("%s/%s: privileged %v, token %t", set.Name, c.Name, s.Privileged, token)
			}
		case s.Privileged != nil && *s.Privileged, *s.AllowPrivilegeEscalation, !token,
			!cmp.Equal(s.Capabilities, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}), s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault:
			t.Errorf("%s/%s (%s) has more rights than it needs, or no token: %v", set.Name, c.Name, program, s)
		}
		if s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
			t.Errorf("%s/%s can write to its image", set.Name, c.Name)
		}
	}
	if spec.HostPID != privileged {
		t.Errorf("%s: hostPID is %t, and it is %t that it changes the node", set.Name, spec.HostPID, privileged)
	}
}

func checkRole(t *testing.T, values string, role *rbacv1.ClusterRole) {
	t.Helper()
	want := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "patch"}}}
	group := []string{"resource.k8s.io"}
	switch values {
	case "everything":
		want = append(
			want,
			rbacv1.PolicyRule{APIGroups: group, Resources: []string{"resourceclaims"}, Verbs: []string{"get", "list", "watch"}},
			rbacv1.PolicyRule{APIGroups: group, Resources: []string{"resourceslices"}, Verbs: []string{"get", "list", "watch", "create", "update", "patch", "delete"}},
			rbacv1.PolicyRule{APIGroups: group, Resources: []string{"resourceclaims/status"}, Verbs: []string{"patch"}},
			rbacv1.PolicyRule{APIGroups: group, Resources: []string{"resourceclaims/driver"}, ResourceNames: []string{"vgpu-shim.dev"}, Verbs: []string{"associated-node:patch"}},
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}},
		)
	case "device-plugin":
		want = append(want, rbacv1.PolicyRule{APIGroups: group, Resources: []string{"resourceslices"}, Verbs: []string{"list"}})
	}
	if diff := cmp.Diff(want, role.Rules); diff != "" {
		t.Errorf("%s: %s", values, diff)
	}
}

// Who uses kustomize gets the same objects.
func TestKustomizeIsTheChart(t *testing.T) {
	for _, test := range []struct {
		dir    string
		render []string
	}{
		{"configs/kubernetes", nil},
		{"configs/kustomize/uninstall", []string{"--set", "uninstall=true,runtimeClass.create=false,deviceClasses.create=false,admission.create=false,nodeRestriction.create=false"}},
	} {
		text, err := template(t, test.render...)
		if err != nil {
			t.Fatal(err)
		}
		read := func(text string) map[string]any {
			all := map[string]any{}
			for _, b := range documents(t, text) {
				var u unstructured.Unstructured
				if err := sigsyaml.Unmarshal(b, &u.Object); err != nil {
					t.Fatal(err)
				}
				all[u.GetKind()+"/"+u.GetName()] = u.Object
			}
			return all
		}
		got := read(kustomize(t, test.dir))
		delete(got, "Namespace/vgpu-system") // helm makes none
		if diff := cmp.Diff(read(text), got); diff != "" {
			t.Errorf("%s is not current, run make chart:\n%s", test.dir, diff)
		}
	}
	objects(t, kustomize(t, "configs/kubernetes"))
}

// The overlay that shows how is one.
func TestOverlay(t *testing.T) {
	text := kustomize(t, "configs/kustomize/simulated")
	objects(t, text)
	for _, want := range []string{"--gpus=sim:2", "image: registry.example/vgpu:1"} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing says %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "--gpus=auto") || strings.Contains(text, "vgpu.shim.dev/vgpu") {
		t.Errorf("something is as in the base:\n%s", text)
	}
}

// The README has each value with its default.
func TestValuesAreDocumented(t *testing.T) {
	readme, err := os.ReadFile(chart + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for line := range strings.Lines(string(readme)) {
		if cells := strings.Split(line, "|"); len(cells) == 5 && strings.HasPrefix(cells[1], " `") {
			documented = append(documented, strings.Trim(cells[1], " `")+"="+strings.Trim(cells[2], " `"))
		}
	}
	text, err := os.ReadFile(chart + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := sigsyaml.UnmarshalStrict(text, &values); err != nil {
		t.Fatal(err)
	}
	var there []string
	var walk func(path string, v any)
	walk = func(path string, v any) {
		// Of a map of the user's, the README says what is in it.
		told := map[string]string{"nodeSelector": `vgpu-shim.dev/node: "true"`, "tolerations": "nvidia.com/gpu", "vgpud.resources": "requests", "kubelet.resources": "requests"}
		m, ok := v.(map[string]any)
		switch {
		case told[path] != "":
			there = append(there, path+"="+told[path])
		case ok && len(m) > 0:
			for k, v := range m {
				walk(strings.TrimPrefix(path+"."+k, "."), v)
			}
		case ok:
			there = append(there, path+"={}")
		default:
			there = append(there, fmt.Sprintf("%s=%v", path, v))
		}
	}
	walk("", values)
	slices.Sort(documented)
	slices.Sort(there)
	if diff := cmp.Diff(there, documented); diff != "" {
		t.Errorf("README.md and values.yaml differ:\n%s", diff)
	}
}
