// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

var args = Args{
	Action:        ActionStart,
	ID:            "c1",
	Namespace:     "default",
	Address:       "/run/containerd/containerd.sock",
	PublishBinary: "/usr/bin/containerd",
}

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func runcOptions(t *testing.T) *anypb.Any {
	return &anypb.Any{TypeUrl: "containerd.runc.v1.Options", Value: marshal(t, &options.Options{ShimCgroup: "/shims"})}
}

func read(t *testing.T, input []byte, a Args) (*bootapi.BootstrapParams, Protocol) {
	t.Helper()
	params, protocol, err := Read(bytes.NewReader(input), a, "/run/containerd/containerd.sock.ttrpc")
	if err != nil {
		t.Fatal(err)
	}
	return params, protocol
}

func answer(t *testing.T, p Protocol) string {
	t.Helper()
	var out bytes.Buffer
	result := &bootapi.BootstrapResult{Version: 3, Address: "unix:///run/containerd/s/x", Protocol: "ttrpc"}
	if err := Answer(&out, p, result); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestStart(t *testing.T) {
	const plain = "unix:///run/containerd/s/x"
	legacy := &bootapi.BootstrapParams{
		InstanceID:             "c1",
		Namespace:              "default",
		ContainerdGrpcAddress:  "/run/containerd/containerd.sock",
		ContainerdTtrpcAddress: "/run/containerd/containerd.sock.ttrpc",
		ContainerdBinary:       "/usr/bin/containerd",
	}
	withOptions := proto.Clone(legacy).(*bootapi.BootstrapParams)
	withOptions.Extensions = []*bootapi.Extension{{Value: runcOptions(t)}}
	debug := args
	debug.Debug = true
	debugged := proto.Clone(legacy).(*bootapi.BootstrapParams)
	debugged.LogLevel = bootapi.LogLevel_LOG_LEVEL_DEBUG
	modern := &bootapi.BootstrapParams{
		InstanceID:            "c1",
		Namespace:             "default",
		LogLevel:              bootapi.LogLevel_LOG_LEVEL_TRACE,
		ContainerdVersion:     "2.4.2",
		ContainerdGrpcAddress: "/somewhere/else",
		Extensions:            []*bootapi.Extension{{Value: runcOptions(t)}},
		SocketDir:             proto.String("/run/s"),
	}
	other := proto.Clone(modern).(*bootapi.BootstrapParams)
	other.InstanceID = "c2"

	// An Any whose two fields read as an id and a namespace, as any Any with
	// text in it does.
	accident := &anypb.Any{TypeUrl: "containerd.runc.v1.Options", Value: []byte("text")}
	if err := proto.Unmarshal(marshal(t, accident), new(bootapi.BootstrapParams)); err != nil {
		t.Fatalf("the example is none: %v", err)
	}
	accidental := proto.Clone(legacy).(*bootapi.BootstrapParams)
	accidental.Extensions = []*bootapi.Extension{{Value: accident}}

	for _, c := range []struct {
		description string
		args        Args
		input       []byte
		want        *bootapi.BootstrapParams
		answer      string // "" stands for a BootstrapResult
	}{
		{"empty input returns the plain-text response", args, nil, legacy, plain},
		{"runtime options return the plain-text response", args, marshal(t, runcOptions(t)), withOptions, plain},
		{"an Any that parses by accident returns the plain-text response", args, marshal(t, accident), accidental, plain},
		{"the debug flag becomes a log level", debug, nil, debugged, plain},
		{"bootstrap parameters return a result", args, marshal(t, modern), modern, ""},
	} {
		t.Run(c.description, func(t *testing.T) {
			got, protocol := read(t, c.input, c.args)
			if !proto.Equal(got, c.want) {
				t.Errorf("got  %v\nwant %v", got, c.want)
			}
			out := answer(t, protocol)
			if c.answer != "" {
				if out != c.answer {
					t.Errorf("the answer is %q, want %q", out, c.answer)
				}
				return
			}
			var result bootapi.BootstrapResult
			if err := proto.Unmarshal([]byte(out), &result); err != nil {
				t.Fatalf("the answer %q: %v", out, err)
			}
			if result.GetVersion() != 3 || result.GetAddress() != plain || result.GetProtocol() != "ttrpc" {
				t.Errorf("the answer is %v", &result)
			}
		})
	}

	t.Run("bootstrap parameters of another container are no bootstrap parameters", func(t *testing.T) {
		if _, ok := parse(marshal(t, other), args); ok {
			t.Error("taken")
		}
	})
}

func TestReadRefuses(t *testing.T) {
	for _, c := range []struct {
		description string
		args        Args
		input       string
		says        string
	}{
		{"rubbish", args, "\xff\xff\xff\xff", "runtime options"},
		{"no id", Args{Namespace: "default"}, "", "-id"},
		{"no namespace", Args{ID: "c1"}, "", "-namespace"},
		{"too much", args, strings.Repeat("x", maxInputBytes+1), "more than"},
	} {
		t.Run(c.description, func(t *testing.T) {
			_, _, err := Read(strings.NewReader(c.input), c.args, "")
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error is %v, want one that says %q", err, c.says)
			}
		})
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestAnswerToNobody(t *testing.T) {
	if err := Answer(brokenPipe{}, Legacy, &bootapi.BootstrapResult{Address: "x"}); err == nil {
		t.Error("succeeded")
	}
}

func TestParseArgs(t *testing.T) {
	for _, c := range []struct {
		description, line string
		want              Args
	}{
		{
			"start, as containerd 1.6 says it",
			"-namespace default -address /c.sock -publish-binary /usr/bin/containerd -id c1 -debug start",
			Args{Action: "start", Namespace: "default", Address: "/c.sock", PublishBinary: "/usr/bin/containerd", ID: "c1", Debug: true},
		},
		{
			"delete",
			"-namespace default -address /c.sock -publish-binary  -id c1 -bundle /b delete",
			Args{Action: "delete", Namespace: "default", Address: "/c.sock", ID: "c1", Bundle: "/b"},
		},
		{"the server", "-namespace default -id c1 -address /c.sock", Args{Namespace: "default", ID: "c1", Address: "/c.sock"}},
		{"info", "-info", Args{Info: true}},
		{"version", "-v", Args{Version: true}},
	} {
		t.Run(c.description, func(t *testing.T) {
			got, err := ParseArgs(strings.Split(c.line, " "))
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	t.Run("an unknown flag", func(t *testing.T) {
		if _, err := ParseArgs([]string{"-nonsense"}); err == nil {
			t.Error("succeeded")
		}
	})
}

// FuzzRead reads any input. Whatever it is, the identity is that of the command
// line, and only input that says so itself is answered in protobuf.
func FuzzRead(f *testing.F) {
	f.Add([]byte{})
	for _, m := range []proto.Message{
		&bootapi.BootstrapParams{InstanceID: "c1", Namespace: "default"},
		&bootapi.BootstrapParams{InstanceID: "c2", Namespace: "default"},
		&anypb.Any{TypeUrl: "c1", Value: []byte("default")},
		&anypb.Any{TypeUrl: "containerd.runc.v1.Options", Value: []byte{10, 1, 'x'}},
	} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		params, protocol, err := Read(bytes.NewReader(input), args, "")
		if err != nil {
			return
		}
		if params.GetInstanceID() != args.ID || params.GetNamespace() != args.Namespace {
			t.Errorf("read the identity %s/%s", params.GetNamespace(), params.GetInstanceID())
		}
		if protocol == Legacy && params.GetContainerdGrpcAddress() != args.Address {
			t.Errorf("read the address %s", params.GetContainerdGrpcAddress())
		}
	})
}
