// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var state = State{
	Version:    1,
	Address:    "/run/vgpu/vgpud.sock",
	Namespace:  "k8s.io",
	ID:         "abc",
	Containerd: "/run/containerd/containerd.sock",
	Instance:   "ONCE",
}

func TestState(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadState(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file the error is %v", err)
	}
	if err := (State{Instance: "OLD"}).Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := state.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := ReadState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got != state {
		t.Errorf("got %+v, want %+v", got, state)
	}
	info, err := os.Stat(filepath.Join(dir, StateFile))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o600 {
		t.Errorf("mode is %v", info.Mode())
	}
	only(t, dir, StateFile)

	for range 2 {
		if err := RemoveState(dir); err != nil {
			t.Fatal(err)
		}
	}
	only(t, dir)
}

// The file that version 1 of the shim wrote. It stays readable for ever: a
// container outlives an upgrade, and the new binary cleans up its bundle.
const stateV1 = `{"version":1,"address":"/run/vgpu/vgpud.sock","namespace":"k8s.io","id":"abc","containerd":"/run/containerd/containerd.sock","instance":"ONCE"}`

func TestReadState(t *testing.T) {
	for _, c := range []struct{ description, content, fails string }{
		{"version 1", stateV1, ""},
		{"a field that a later version added", strings.Replace(stateV1, "{", `{"later":{},`, 1), ""},
		{"a newer version", strings.Replace(stateV1, ":1,", ":2,", 1), "version 2"},
		{"no version", strings.Replace(stateV1, `"version":1,`, "", 1), "version 0"},
		// Without an instance, vgpud would remove whichever the container has.
		{"no instance", strings.Replace(stateV1, `"instance":"ONCE"`, `"instance":""`, 1), "instance"},
		{"no container", strings.Replace(stateV1, `"id":"abc",`, "", 1), "id"},
		{"no address", strings.Replace(stateV1, `"address":"/run/vgpu/vgpud.sock",`, "", 1), "address"},
		{"an object of something else", `{"version":1}`, "damaged"},
		{"no object", `"version 1"`, "cannot unmarshal"},
		{"half a file", stateV1[:30], "unexpected end"},
		{"an empty file", "", "unexpected end"},
	} {
		t.Run(c.description, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, StateFile), []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := ReadState(dir)
			switch {
			case c.fails == "" && (err != nil || got != state):
				t.Errorf("got %+v, %v", got, err)
			case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails) || errors.Is(err, fs.ErrNotExist)):
				t.Errorf("error is %v, want one that says %q", err, c.fails)
			}
		})
	}
}

func TestWriteAddress(t *testing.T) {
	dir := t.TempDir()
	if err := WriteAddress(dir, "unix:///run/containerd/s/x"); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "address"))
	if err != nil {
		t.Fatal(err)
	}
	// containerd takes the whole content as the address.
	if string(data) != "unix:///run/containerd/s/x" {
		t.Errorf("got %q", data)
	}
}
