// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/node"
)

// unit is a unit file of systemd's (systemd.syntax(7)), without what is rare: the
// values by "Section.Key", in their order.
type unit map[string][]string

func readUnit(t *testing.T, name string) unit {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "configs", "systemd", name))
	if err != nil {
		t.Fatal(err)
	}
	u, section := make(unit), ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "", line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
		default:
			key, value, ok := strings.Cut(line, "=")
			if !ok || strings.HasSuffix(line, `\`) {
				t.Fatalf("%s: %q is not understood here", name, line)
			}
			u[section+"."+key] = append(u[section+"."+key], strings.Fields(value)...)
		}
	}
	return u
}

// must makes sure of the keys that containers rely on; the files say why.
func (u unit) must(t *testing.T, want map[string]string) {
	t.Helper()
	for key, value := range want {
		if got := strings.Join(u[key], " "); got != value {
			t.Errorf("%s=%s, not %s", key, got, value)
		}
	}
}

func TestTheServiceUnit(t *testing.T) {
	u := readUnit(t, "vgpud.service")
	u.must(t, map[string]string{
		"Service.Type": "notify",
		// Containers outlive vgpud, and their state does.
		"Service.KillMode":                 "process",
		"Service.RuntimeDirectory":         "vgpu",
		"Service.RuntimeDirectoryMode":     "0700",
		"Service.RuntimeDirectoryPreserve": "yes",
		// It comes back for ever.
		"Service.Restart":            "always",
		"Unit.StartLimitIntervalSec": "0",
		"Service.WatchdogSec":        "30s",
		"Service.WatchdogSignal":     "SIGABRT",
		// What vgpu/node's tests run their vgpuds with, but for the last two, which
		// only a policy and a real driver need.
		"Service.CapabilityBoundingSet":   "CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_KILL CAP_MKNOD",
		"Service.NoNewPrivileges":         "yes",
		"Service.ProtectSystem":           "strict",
		"Service.RestrictAddressFamilies": "AF_UNIX",
		"Service.DevicePolicy":            "closed",
		"Service.DeviceAllow":             "char-nvidia* rwm",
		"Install.Also":                    "vgpud.socket",
	})
	if cfg := node.DefaultConfig(); "/run/"+u["Service.RuntimeDirectory"][0] != cfg.State {
		t.Errorf("RuntimeDirectory= is not the default state directory %s", cfg.State)
	}
	if !slices.Contains(u["Unit.Wants"], "vgpud.socket") {
		t.Error("vgpud does not bring its socket in")
	}
	// A Create waits for 3 s in all.
	if d, err := time.ParseDuration(u["Service.RestartSec"][0]); err != nil || d > time.Second {
		t.Errorf("RestartSec=%v, %v", d, err)
	}
	for _, breaks := range []string{
		"PrivateTmp", "ProtectHome", "PrivateDevices", "PrivateUsers", "PrivatePIDs", "ProcSubset", "ProtectProc",
		"ProtectControlGroups", "User", "RootDirectory", "RestartPreventExitStatus", "MountFlags",
	} {
		if value := u["Service."+breaks]; value != nil {
			t.Errorf("%s=%s breaks vgpud", breaks, value)
		}
	}
}

func TestTheSocketUnit(t *testing.T) {
	cfg := node.DefaultConfig()
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	readUnit(t, "vgpud.socket").must(t, map[string]string{
		"Socket.ListenStream":            cfg.Socket,
		"Socket.SocketMode":              "0600",
		"Socket.SocketUser":              "root",
		"Socket.DirectoryMode":           "0700",
		"Socket.RemoveOnStop":            "no",
		"Socket.TriggerLimitIntervalSec": "0",
		"Socket.Accept":                  "", // one vgpud for all
		"Socket.Service":                 "", // that of the same name
		"Install.WantedBy":               "sockets.target",
	})
}
