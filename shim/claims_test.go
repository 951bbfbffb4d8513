// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/claim"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

const inPod = `"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": "main",
	"io.kubernetes.cri.sandbox-namespace": "ml", "io.kubernetes.cri.sandbox-name": "train-0", "io.kubernetes.cri.sandbox-uid": "1-2-3"`

var pointer = claim.Pointer{UID: "c-1", Request: "gpu"}

// claimedSpec is the config.json of a container of a pod, as containerd leaves it after
// the CDI edits of the pointers.
func claimedSpec(annotations string, pointers ...claim.Pointer) string {
	var mounts []string
	for _, p := range pointers {
		mounts = append(mounts, fmt.Sprintf(`{"destination": %q, "type": "bind", "source": %q, "options": ["ro", "rbind"]}`, p.Destination(), p.Source()))
	}
	mounts = append(mounts, `{"destination": "/data", "type": "bind", "source": "/data"}`)
	return `{"process": {}, "annotations": {` + inPod + annotations + `}, "mounts": [` + strings.Join(mounts, ", ") + `], "linux": {}}`
}

// grant answers each call with what the claim gives.
func (f *fixture) grant(annotations map[string]string) *[]*v1.ResolveClaimsRequest {
	var asked []*v1.ResolveClaimsRequest
	f.vgpud.resolve = func(r *v1.ResolveClaimsRequest) (*v1.ResolveClaimsResponse, error) {
		asked = append(asked, r)
		return &v1.ResolveClaimsResponse{Claimed: true, Annotations: annotations, Claims: []string{"ml/train (request gpu)"}}, nil
	}
	return &asked
}

func ours(kv ...string) map[string]string {
	out := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		out[request.Prefix+kv[i]] = kv[i+1]
	}
	return out
}

func TestAClaimMakesTheRequest(t *testing.T) {
	f := newFixture(t, claimedSpec(`, "vgpu-shim.dev/memory": "4096Mi", "vgpu-shim.dev/main.weight": "7", "vgpu-shim.dev/bind": "early"`, pointer))
	asked := f.grant(ours("gpus", "2", "memory", "4Gi", "weight", "7"))
	if err := f.create(); err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{Namespace: "ml", Name: "train-0", Uid: "1-2-3", Container: "main"}
	wantAsked := []*v1.ResolveClaimsRequest{{Pod: pod, Pointers: []*v1.ClaimPointer{{Claim: "c-1", Request: "gpu"}}}}
	if diff := cmp.Diff(wantAsked, *asked, protocmp.Transform()); diff != "" {
		t.Errorf("vgpud was asked (-want +got):\n%s", diff)
	}
	got := f.vgpud.created[0]
	if diff := cmp.Diff(ours("gpus", "2", "memory", "4Gi", "weight", "7", "bind", "early"), got.GetAnnotations()); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantAsked[0].GetPointers(), got.GetClaims(), protocmp.Transform()); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	if strings.Contains(f.inner.spec, "claims") || !strings.Contains(f.inner.spec, `"/data"`) || !strings.Contains(f.inner.spec, `"/.vgpu"`) {
		t.Errorf("the pointer is left, or more than it is gone: %s", f.inner.spec)
	}
}

// What only looks like a pointer is none: the source is what counts, which neither an
// image nor a volume can choose.
func TestOnlyAPointersOwnMountIsOne(t *testing.T) {
	f := newFixture(t, `{"process": {"env": ["VGPU_CLAIM=c-1/gpu", "SOURCE=`+pointer.Source()+`"]}, "annotations": {`+inPod+`},
		"mounts": [{"destination": "`+pointer.Destination()+`", "type": "bind", "source": "/var/lib/kubelet/pods/1-2-3/volumes/x"}]}`)
	f.vgpud.resolve = func(r *v1.ResolveClaimsRequest) (*v1.ResolveClaimsResponse, error) {
		if len(r.GetPointers()) > 0 {
			t.Errorf("vgpud was asked for %v", r.GetPointers())
		}
		return &v1.ResolveClaimsResponse{}, nil
	}
	if err := f.create(); err != nil {
		t.Fatal(err)
	}
	if got := f.vgpud.created[0]; len(got.GetClaims()) != 0 {
		t.Errorf("it was given the claims %v", got.GetClaims())
	}
}

func TestAClaimIsRefused(t *testing.T) {
	for _, c := range []struct {
		description, annotations string
		gives                    map[string]string
		says                     []string
	}{
		{
			"annotations that contradict it", `, "vgpu-shim.dev/memory": "8Gi", "vgpu-shim.dev/main.gpus": "0"`, ours("gpus", "1", "memory", "4Gi"),
			[]string{
				"claim ml/train (request gpu)", `annotation vgpu-shim.dev/memory="8Gi": contradicts the claim, which gives "4Gi": remove the annotation`,
				`vgpu-shim.dev/main.gpus="0": contradicts the claim, which gives "1"`,
			},
		},
		{"more than the handler allows", "", ours("gpus", "1", "weight", "5000"), []string{"claim ml/train (request gpu)", "weight", "5000", "at most 1000 under this runtime"}},
		{"an annotation that is wrong by itself", `, "vgpu-shim.dev/memory": "lots"`, ours("gpus", "1", "memory", "4Gi"), []string{`vgpu-shim.dev/memory="lots": must be a quantity`}},
	} {
		t.Run(c.description, func(t *testing.T) {
			f := newFixture(t, claimedSpec(c.annotations, pointer))
			f.config.Limits = request.Limits{"weight": "1000"}
			f.grant(c.gives)
			err := f.create()
			if !errdefs.IsInvalidArgument(errgrpc.ToNative(err)) {
				t.Errorf("error is %v, want an invalid argument", err)
			}
			for _, s := range c.says {
				if err == nil || !strings.Contains(err.Error(), s) {
					t.Errorf("error %v does not say %q", err, s)
				}
			}
			f.called()
			f.untouched()
		})
	}
}

// vgpud's own refusal, and its absence, reach whoever reads the event of the pod.
func TestAClaimThatVgpudRefuses(t *testing.T) {
	f := newFixture(t, claimedSpec("", pointer))
	f.vgpud.resolve = func(*v1.ResolveClaimsRequest) (*v1.ResolveClaimsResponse, error) {
		return nil, errgrpc.ToGRPC(fmt.Errorf("claim ml/other is reserved for somebody: %w", errdefs.ErrPermissionDenied))
	}
	err := f.create()
	if !errdefs.IsPermissionDenied(errgrpc.ToNative(err)) || !strings.Contains(err.Error(), "claim ml/other is reserved for somebody") {
		t.Errorf("error is %v", err)
	}
	f.stop()
	err = f.create()
	if !errdefs.IsUnavailable(errgrpc.ToNative(err)) || !strings.Contains(err.Error(), "claims of container c1") || !strings.Contains(err.Error(), "systemctl start vgpud") {
		t.Errorf("error is %v", err)
	}
	f.called()
	f.untouched()
}

// The scheduler counted a GPU for the container with the claim alone.
func TestAContainerBesideAClaimGetsNoneByDefault(t *testing.T) {
	for _, c := range []struct {
		description, annotations string
		claimed                  error
		vgpus                    int
	}{
		{"nothing said", "", nil, 0},
		{"asked for by annotation", `, "vgpu-shim.dev/main.gpus": "1"`, nil, 1},
		{"under a vgpud that knows no claims", "", errdefs.ErrNotImplemented, 1},
	} {
		t.Run(c.description, func(t *testing.T) {
			f := newFixture(t, claimedSpec(c.annotations))
			f.vgpud.resolve = func(*v1.ResolveClaimsRequest) (*v1.ResolveClaimsResponse, error) {
				return &v1.ResolveClaimsResponse{Claimed: true}, errgrpc.ToGRPC(c.claimed)
			}
			if err := f.create(); err != nil {
				t.Fatal(err)
			}
			f.called("create")
			f.vgpus(c.vgpus)
			if c.vgpus == 0 {
				f.untouched()
			}
		})
	}
}
