// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"
	"os"
	"strings"

	"github.com/containerd/containerd/api/types/runc/options"
	runtimeoptions "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/vgpu-shim/vgpu/shim/config"
)

// The messages that arrive as runtime options. containerd's client chooses by
// the runtime's name: runc's own for io.containerd.runc.v2, the generic ones
// for any other, or none. The second name is that of old CRI versions.
const (
	runcOptionsName       = "containerd.runc.v1.Options"
	genericOptionsName    = "runtimeoptions.v1.Options"
	oldGenericOptionsName = "cri.runtimeoptions.v1.Options"
)

// programEnv carries the name that the shim was started under from the start
// process to the server, whose own name is that of the resolved binary.
const programEnv = "VGPU_SHIM_PROGRAM"

// handler is the configuration for one call and the runc options that came
// with it, nil if none did.
type handler struct {
	config.Config
	runc *options.Options
}

// loadHandler reads the runtime options and the handler's configuration. It
// runs for each container, so that a change of the file needs no restart.
func loadHandler(opts *anypb.Any) (handler, error) {
	src := config.Sources{Program: program(), File: os.Getenv(config.Env), DefaultFile: config.DefaultFile}
	return loadHandlerFrom(src, opts)
}

func loadHandlerFrom(src config.Sources, opts *anypb.Any) (handler, error) {
	var h handler
	switch name := messageName(opts); name {
	case "":
	case runcOptionsName:
		h.runc = new(options.Options)
		if err := proto.Unmarshal(opts.GetValue(), h.runc); err != nil {
			return handler{}, invalid(fmt.Errorf("failed to parse the runtime options (%s): %w", name, err))
		}
	case genericOptionsName, oldGenericOptionsName:
		var generic runtimeoptions.Options
		if err := proto.Unmarshal(opts.GetValue(), &generic); err != nil {
			return handler{}, invalid(fmt.Errorf("failed to parse the runtime options (%s): %w", name, err))
		}
		src.ConfigPath, src.ConfigBody = generic.GetConfigPath(), generic.GetConfigBody()
	default:
		return handler{}, invalid(fmt.Errorf("runtime options of type %q are not supported, want %s, %s or none",
			name, runcOptionsName, genericOptionsName))
	}
	var err error
	if h.Config, err = config.Load(src); err != nil {
		return handler{}, invalid(err)
	}
	return h, nil
}

// messageName is the name of the message in opts, empty if there is none.
func messageName(opts *anypb.Any) string {
	if opts == nil || opts.GetTypeUrl() == "" && len(opts.GetValue()) == 0 {
		return ""
	}
	url := opts.GetTypeUrl()
	if url == "" {
		return "(no type)"
	}
	return url[strings.LastIndexByte(url, '/')+1:]
}

// runcOptions are the options for the inner service. Those that came as runc's
// own are passed on as they are. Otherwise they are made from the
// configuration, and whether systemd manages the cgroup is told from the shape
// of cgroupsPath where nobody said: most clients send no options to a runtime
// whose name they do not know, and a wrong guess makes runc fail. The result
// is nil if nothing differs from runc's defaults.
func (h handler) runcOptions(cgroupsPath string) *options.Options {
	if h.runc != nil {
		return h.runc
	}
	r, systemd := h.Runc, systemdCgroup(cgroupsPath)
	if r.SystemdCgroup != nil {
		systemd = *r.SystemdCgroup
		r.SystemdCgroup = nil
	}
	if r == (config.Runc{}) && !systemd {
		return nil
	}
	return &options.Options{
		BinaryName:    r.BinaryName,
		Root:          r.Root,
		ShimCgroup:    r.ShimCgroup,
		CriuWorkPath:  r.CriuWorkPath,
		NoPivotRoot:   r.NoPivotRoot,
		NoNewKeyring:  r.NoNewKeyring,
		IoUid:         r.IoUID,
		IoGid:         r.IoGID,
		SystemdCgroup: systemd,
	}
}

// systemdCgroup says whether a cgroupsPath has the form slice:prefix:name that
// runc's systemd driver wants, of which the slice may be empty.
func systemdCgroup(path string) bool {
	parts := strings.Split(path, ":")
	return len(parts) == 3 && parts[2] != "" && !strings.Contains(path, "/")
}

// marshalOptions wraps runc options for a request; nil stays nil.
func marshalOptions(o *options.Options) (*anypb.Any, error) {
	if o == nil {
		return nil, nil
	}
	value, err := proto.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("failed to marshal the runc options: %w", err)
	}
	return &anypb.Any{TypeUrl: runcOptionsName, Value: value}, nil
}

// program is the name that containerd started the shim under.
func program() string {
	if p := os.Getenv(programEnv); p != "" {
		return p
	}
	return os.Args[0]
}
