// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"net"
	"path/filepath"
	"reflect"
	"testing"

	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Both versions answer on one socket.
func TestRegister(t *testing.T) {
	f := newFixture(t, plainSpec)
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.service.RegisterTTRPC(server); err != nil {
		t.Fatal(err)
	}
	address := filepath.Join(filepath.Dir(f.bundle), "shim.sock")
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(context.Background(), l) }()
	defer func() { _ = server.Close() }()
	conn, err := net.Dial("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()

	v2, err := taskv2.NewTTRPCTaskClient(client).Connect(t.Context(), &taskv2.ConnectRequest{ID: "two"})
	if err != nil || v2.GetVersion() != "two" {
		t.Errorf("version 2: %v, %v", v2, err)
	}
	v3, err := taskv3.NewTTRPCTaskClient(client).Connect(t.Context(), &taskv3.ConnectRequest{ID: "three"})
	if err != nil || v3.GetVersion() != "three" {
		t.Errorf("version 3: %v, %v", v3, err)
	}
	// The overridden verbs, too.
	if _, err := taskv2.NewTTRPCTaskClient(client).Checkpoint(t.Context(), &taskv2.CheckpointTaskRequest{ID: "x"}); err != nil {
		t.Error(err)
	}
	f.called("checkpoint")
}

// What RegisterTTRPC relies on: version 2 has the methods of version 3, and
// their messages are the same on the wire.
func TestVersionsAreAlike(t *testing.T) {
	v2, v3 := reflect.TypeFor[taskv2.TTRPCTaskService](), reflect.TypeFor[taskv3.TTRPCTaskService]()
	if v2.NumMethod() != v3.NumMethod() || v2.NumMethod() != 17 {
		t.Fatalf("%d and %d methods", v2.NumMethod(), v3.NumMethod())
	}
	for i := range v2.NumMethod() {
		m2 := v2.Method(i)
		m3, ok := v3.MethodByName(m2.Name)
		if !ok {
			t.Errorf("version 3 has no %s", m2.Name)
			continue
		}
		for _, pair := range [][2]reflect.Type{{m2.Type.In(1), m3.Type.In(1)}, {m2.Type.Out(0), m3.Type.Out(0)}} {
			alike(t, message(pair[0]), message(pair[1]))
		}
	}
}

func message(t reflect.Type) protoreflect.MessageDescriptor {
	return reflect.New(t.Elem()).Interface().(protoreflect.ProtoMessage).ProtoReflect().Descriptor()
}

func alike(t *testing.T, a, b protoreflect.MessageDescriptor) {
	t.Helper()
	if a.Fields().Len() != b.Fields().Len() {
		t.Errorf("%s and %s differ in the number of fields", a.FullName(), b.FullName())
		return
	}
	for i := range a.Fields().Len() {
		x := a.Fields().Get(i)
		y := b.Fields().ByNumber(x.Number())
		if y == nil || x.Name() != y.Name() || x.Kind() != y.Kind() || x.Cardinality() != y.Cardinality() {
			t.Errorf("%s differs in version 3: %v", x.FullName(), y)
			continue
		}
		if x.Message() != nil && x.Message().FullName() != y.Message().FullName() {
			alike(t, x.Message(), y.Message())
		}
	}
}
