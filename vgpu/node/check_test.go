// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// set puts a value into the field of a message that a path names.
func set(m proto.Message, path string, value any) {
	at := m.ProtoReflect()
	for {
		name, rest, more := strings.Cut(path, ".")
		f := at.Descriptor().Fields().ByName(protoreflect.Name(name))
		if more {
			if path = rest; f.IsList() { // the first one of several
				all := at.Mutable(f).List()
				if all.Len() == 0 {
					all.Append(all.NewElement())
				}
				at = all.Get(0).Message()
				continue
			}
			at = at.Mutable(f).Message()
			continue
		}
		if entries, ok := value.(map[string]string); ok {
			at.Clear(f)
			for k, v := range entries {
				at.Mutable(f).Map().Set(protoreflect.ValueOf(k).MapKey(), protoreflect.ValueOf(v))
			}
			return
		}
		at.Set(f, protoreflect.ValueOf(value))
		return
	}
}

// fields are the paths of all fields of a message that are no messages.
func fields(m protoreflect.MessageDescriptor, prefix string) (all []string) {
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		path := prefix + string(f.Name())
		if f.Kind() == protoreflect.MessageKind && !f.IsMap() {
			all = append(all, fields(f.Message(), path+".")...)
		} else {
			all = append(all, path)
		}
	}
	return all
}

// bad is a value that a call must refuse.
type bad struct {
	value any
	says  string // beside the field
	is    func(error) bool
}

func invalid(says string, values ...any) (all []bad) {
	for _, v := range values {
		all = append(all, bad{v, says, errdefs.IsInvalidArgument})
	}
	return all
}

// Each field of each call has values that are refused with the field and the
// rule, and a refused call changes nothing.
func TestEveryCallRefusesBadValues(t *testing.T) {
	long := strings.Repeat("x", maxName+1)
	unprintable := []any{"a\x00b", "a\nb", "a\x1b[31mb", "a\u202eb", long}
	name := append(invalid("printable", unprintable...), invalid("must not be empty", "")...)
	text := invalid("printable", unprintable...)
	id := append(invalid("16 hexadecimal digits", "", "0123", "0123456789ABCDEF", "0123456789abcdef0", "0123456789abcde\x00", "0123456789abcde\n", long),
		bad{"0123456789abcdef", "", errdefs.IsNotFound})
	noUUID := []any{
		"GPU-1", "0", "00000000-0000-0000-0000-000000000001", "MIG-00000000-0000-0000-0000-000000000001",
		"GPU-00000000-0000-0000-0000-00000000000A", "GPU-00000000000000000000000000000001", "GPU-00000000-0000-0000-0000-0000000000001",
		gpuUUID(0) + "\x00", gpuUUID(0) + "\n", long,
	}
	elsewhere := bad{gpuUUID(7), gpuUUID(7), errdefs.IsNotFound}
	uuid := append(invalid("must be as GPU-", append(noUUID, "")...), elsewhere)
	reason := append(text, invalid("256", strings.Repeat("x", maxReason+1))...)
	many := map[string]string{}
	for i := range maxAnnotations + 1 {
		many[fmt.Sprintf("vgpu-shim.dev/%d", i)] = "x"
	}
	annotation := func(key, value string) any { return map[string]string{"vgpu-shim.dev/" + key: value} }
	annotations := slices.Concat(
		invalid("must be at most", many),
		invalid("printable", annotation("weight", "1\x00"), annotation("weight", "1\n"), annotation("wei\x00ght", "1"),
			annotation("weight", long), annotation(strings.Repeat("x", maxKey), "1")),
		invalid("must be a whole number", annotation("weight", "0"), annotation("weight", "many")),
	)
	claim := invalid("UID of a claim", "", "a b", "a/b", "a\x00", strings.Repeat("x", 129))
	requirement := func(value string) any { return map[string]string{"NVIDIA_REQUIRE_CUDA": value} }
	table := map[string]struct {
		good   proto.Message
		fields map[string][]bad
	}{
		"Create": {&v1.CreateRequest{}, map[string][]bad{
			"container.containerd": name, "container.namespace": name, "container.id": name, "instance": name,
			"bundle":      append(name, invalid("absolute", "relative")...),
			"annotations": append(annotations, invalid("unknown key", annotation("memroy", "1Gi"), annotation("", "1"))...),
			"requirements": slices.Concat(
				invalid("must be at most", many, requirement(strings.Repeat("cuda>=1 ", maxRequirement))),
				invalid("printable", requirement("cuda>=1\x00"), map[string]string{"\n": ""}),
				invalid("no condition", requirement("cuda"), requirement("brand<x")),
			),
			"default_count": append(invalid("above 16", uint32(17), uint32(1<<32-1)), invalid("no vGPU", uint32(0))...),
			"pod.namespace": text, "pod.name": text, "pod.uid": text, "pod.container": text,
			"claims.claim": claim, "claims.request": name,
		}},
		"SetClaim": {&v1.SetClaimRequest{}, map[string][]bad{
			"claim.uid": claim, "claim.namespace": text, "claim.name": name,
			"claim.requests.name": name, "claim.requests.annotations": annotations, "claim.requests.refusal": text,
			"claim.requests.promises.gpu":             invalid("must be as GPU-", append(noUUID, "")...),
			"claim.requests.promises.memory_bytes":    invalid("must be 1 or more", uint64(0)),
			"claim.requests.promises.claimable_bytes": invalid("at least memory_bytes and at most", uint64(0), uint64(1<<50+1), ^uint64(0)),
			"claim.pods.namespace":                    text, "claim.pods.name": text, "claim.pods.uid": text, "claim.pods.container": text,
		}},
		"DeleteClaim": {&v1.DeleteClaimRequest{}, map[string][]bad{"uid": claim}},
		"ResolveClaims": {&v1.ResolveClaimsRequest{}, map[string][]bad{
			"pod.namespace": text, "pod.name": text, "pod.uid": text, "pod.container": text,
			"pointers.claim": claim, "pointers.request": name,
		}},
		"Delete": {&v1.DeleteRequest{}, map[string][]bad{
			"container.containerd": name, "container.namespace": name, "container.id": name, "instance": text,
		}},
		"Update": {&v1.UpdateRequest{}, map[string][]bad{
			"id":          id,
			"annotations": append(annotations, invalid("", map[string]string{}, annotation("gpus", "2"), annotation("nothing", ""))...),
		}},
		"Get":         {&v1.GetRequest{}, map[string][]bad{"id": id}},
		"CordonGPU":   {&v1.CordonGPURequest{}, map[string][]bad{"uuid": uuid, "reason": reason}},
		"DrainGPU":    {&v1.DrainGPURequest{}, map[string][]bad{"uuid": uuid, "reason": reason}},
		"UncordonGPU": {&v1.UncordonGPURequest{}, map[string][]bad{"uuid": uuid}},
		"SetPolicy": {&v1.SetPolicyRequest{}, map[string][]bad{
			"gpu":    append(invalid("must be as GPU-", noUUID...), elsewhere),
			"policy": invalid("must be one of default, native,", "", "Fair", "fair ", "fair\x00", "unfair", long),
			"slots":  append(invalid("from 1 to 100", uint32(101), uint32(1<<32-1)), invalid("must be 0", uint32(5))...),
		}},
		"Watch": {&v1.WatchRequest{}, map[string][]bad{
			"after": invalid("newest event", uint64(1<<40), ^uint64(0)),
			"epoch": invalid("16 hexadecimal digits", "x", "0123456789ABCDEF", "0123456789abcde\x00", long),
		}},
		"List": {}, "ListGPUs": {}, "ListProcesses": {}, "ListClaims": {}, "Info": {}, "Stats": {}, "WatchGPUs": {}, // they ask for nothing
	}

	n := newNode(t, settings{gpus: 2})
	n.create("a", "weight=7")
	n.create("b")
	n.client("a")
	n.cordon(1, "kept")
	create := n.request("new")
	table["Create"].good.(*v1.CreateRequest).Reset()
	proto.Merge(table["Create"].good, create)
	proto.Merge(table["Delete"].good, &v1.DeleteRequest{Container: n.request("a").GetContainer(), Instance: "a-1"})
	proto.Merge(table["Update"].good, &v1.UpdateRequest{Id: n.vgpu("a").GetId(), Annotations: map[string]string{"vgpu-shim.dev/weight": "8"}})
	proto.Merge(table["Get"].good, &v1.GetRequest{Id: n.vgpu("a").GetId()})
	proto.Merge(table["CordonGPU"].good, &v1.CordonGPURequest{Uuid: gpuUUID(0), Reason: "r"})
	proto.Merge(table["DrainGPU"].good, &v1.DrainGPURequest{Uuid: gpuUUID(0), Reason: "r"})
	proto.Merge(table["UncordonGPU"].good, &v1.UncordonGPURequest{Uuid: gpuUUID(1)})
	proto.Merge(table["SetPolicy"].good, &v1.SetPolicyRequest{Gpu: gpuUUID(0), Policy: "default"})
	pod := &v1.Pod{Namespace: "ml", Name: "pod", Uid: "1"}
	proto.Merge(table["SetClaim"].good, &v1.SetClaimRequest{Claim: &v1.Claim{
		Uid: "2", Namespace: "ml", Name: "claim", Pods: []*v1.Pod{pod},
		Requests: []*v1.ClaimGrant{{
			Name: "gpu", Annotations: map[string]string{"vgpu-shim.dev/weight": "8"},
			Promises: []*v1.Promise{{Gpu: gpuUUID(0), MemoryBytes: 1, ClaimableBytes: 1}},
		}},
	}})
	proto.Merge(table["ResolveClaims"].good, &v1.ResolveClaimsRequest{Pod: pod, Pointers: []*v1.ClaimPointer{{Claim: "2", Request: "gpu"}}})
	proto.Merge(table["DeleteClaim"].good, &v1.DeleteClaimRequest{Uid: "2"})
	proto.Merge(table["Watch"].good, &v1.WatchRequest{Epoch: n.info().GetEpoch()})

	type state struct {
		VGPUs  []*v1.VGPU
		GPUs   []*v1.GPU
		Claims []*v1.Claim
		Info   *v1.InfoResponse
		Kept   string
	}
	look := func() (s state) {
		t.Helper()
		list, err := n.control.List(t.Context(), &v1.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		claims, err := n.control.ListClaims(t.Context(), &v1.ListClaimsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		kept, err := n.daemon.nodeStore.loadNode(operatorKey)
		if err != nil {
			t.Fatal(err)
		}
		// Info has the number of the newest event: nothing was told either.
		return state{list.GetVgpus(), []*v1.GPU{n.gpu(0), n.gpu(1)}, claims.GetClaims(), n.info(), string(kept)}
	}
	before := look()

	service := v1.File_vgpu_api_v1_vgpu_proto.Services().ByName("Control")
	for i := range service.Methods().Len() {
		method := service.Methods().Get(i)
		row, ok := table[string(method.Name())]
		if !ok {
			t.Errorf("%s: no bad value is tried", method.Name())
		}
		for _, field := range fields(method.Input(), "") {
			if len(row.fields[field]) == 0 {
				t.Errorf("%s: no bad %s is tried", method.Name(), field)
			}
		}
		for _, field := range slices.Sorted(maps.Keys(row.fields)) {
			for _, b := range row.fields[field] {
				r := proto.Clone(row.good)
				set(r, field, b.value)
				err := errgrpc.ToNative(n.ask(method, r))
				what := fmt.Sprintf("%s with %s %.60q", method.Name(), field, fmt.Sprint(b.value))
				if err == nil || !b.is(err) {
					t.Errorf("%s: %v", what, err)
					continue
				}
				names := field
				if errdefs.IsNotFound(err) {
					names = fmt.Sprint(b.value)
				} else if strings.HasSuffix(field, "annotations") {
					names = "annotation"
				} else if strings.HasPrefix(b.says, "no vGPU") {
					names = "gpus=0" // what stands for the count
				}
				if !strings.Contains(err.Error(), names) || !strings.Contains(err.Error(), b.says) {
					t.Errorf("%s: %q does not say %q and %q", what, err, names, b.says)
				}
				if class := err.Error()[strings.LastIndex(err.Error(), ": ")+1:]; strings.Contains(class, "\n") {
					t.Errorf("%s: %q says its class twice", what, err)
				}
				if len(err.Error()) > 64<<10 {
					t.Errorf("%s: the error has %d bytes", what, len(err.Error()))
				}
			}
		}
	}
	if diff := cmp.Diff(before, look(), protocmp.Transform()); diff != "" {
		t.Errorf("something was changed all the same: %s", diff)
	}
	// What was refused was so because of the one bad value: the rest is good.
	for _, name := range []string{"Create", "Update", "Get", "CordonGPU", "DrainGPU", "UncordonGPU", "SetPolicy", "SetClaim", "ResolveClaims", "DeleteClaim", "Delete"} {
		if err := n.ask(service.Methods().ByName(protoreflect.Name(name)), table[name].good); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// ask makes a call, whatever it is, and returns its error.
func (n *node) ask(method protoreflect.MethodDescriptor, r proto.Message) error {
	if !method.IsStreamingServer() {
		return n.conn.Call(n.t.Context(), "vgpu.v1.Control", string(method.Name()), r, newMessage(method.Output()))
	}
	s, err := n.conn.NewStream(n.t.Context(), &ttrpc.StreamDesc{StreamingServer: true}, "vgpu.v1.Control", string(method.Name()), r)
	if err != nil {
		return err
	}
	return s.RecvMsg(newMessage(method.Output()))
}

func newMessage(m protoreflect.MessageDescriptor) proto.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(m.FullName())
	if err != nil {
		panic(err)
	}
	return t.New().Interface()
}
