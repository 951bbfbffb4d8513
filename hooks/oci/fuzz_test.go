// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzSpec edits any document that Parse takes. The result has to be one that
// Parse takes too, a second application may not change it, and whatever no edit
// is about has to be in it as it was.
func FuzzSpec(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte(`{"process":{}}`))
	f.Add([]byte(`{"process":{"env":[""]},"linux":{"resources":{"devices":[{}]},"devices":[null]},"mounts":[null]}`))
	f.Add([]byte(`{"process":{},"hooks":{"prestart":[{"path":"nvidia-ctk","args":["","create-symlinks","--link","::libcuda.so"]}]}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		s, err := Parse(doc)
		if err != nil {
			return
		}
		if err := s.Apply(everything()...); err != nil {
			return // the one reason is a missing process
		}
		once, err := s.Marshal()
		if err != nil {
			t.Fatalf("the edited spec can not be written: %v", err)
		}
		if s, err = Parse(once); err != nil {
			t.Fatalf("the edited spec can not be read: %v\n%s", err, once)
		}
		if err := s.Apply(everything()...); err != nil {
			t.Fatalf("the edits can not be applied twice: %v", err)
		}
		twice, err := s.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(once, twice) {
			t.Errorf("a second application changes\n%s to\n%s", once, twice)
		}

		before, after := rest(t, doc), rest(t, once)
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("something else changed:\n%s", diff)
		}
	})
}

// rest is a document without what the edits are about.
func rest(t *testing.T, doc []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	delete(v, "mounts")
	delete(v, "hooks")
	prune := func(o map[string]any, section string, keys ...string) {
		s, _ := o[section].(map[string]any)
		for _, k := range keys {
			delete(s, k)
		}
		if len(s) == 0 {
			delete(o, section)
		}
	}
	prune(v, "process", "env")
	if linux, ok := v["linux"].(map[string]any); ok {
		prune(linux, "resources", "devices")
	}
	prune(v, "linux", "devices", "maskedPaths")
	return v
}
