// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Edit is one change of a Spec. Apply either makes the whole change or returns
// an error and makes none.
type Edit interface {
	Apply(*Spec) error
}

// Spec is an OCI runtime spec that is being edited. What the edits do not
// touch is kept as it came: fields that this version does not know, and
// numbers digit for digit. The order of keys is not kept. A Spec is not safe
// for concurrent use.
type Spec struct {
	root      object
	process   object
	linux     object
	resources object
	hooks     object

	env     list[string]
	mounts  list[Mount]
	devices list[device]
	rules   list[rule]
	masked  list[string]
	stages  map[string]*list[hook] // by the name under which hooks has them
}

// stageNames are the lists of hooks that a spec may have.
var stageNames = [...]string{"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}

// Parse reads a spec. An error says at which place of the document it lies.
func Parse(data []byte) (*Spec, error) {
	s := &Spec{stages: make(map[string]*list[hook])}
	if err := json.Unmarshal(data, &s.root); err != nil {
		return nil, err
	}
	if s.root == nil {
		return nil, errors.New("the document is not an object")
	}
	err := errors.Join(
		s.root.section("process", &s.process),
		s.root.section("linux", &s.linux),
		s.root.section("hooks", &s.hooks),
		s.linux.section("resources", &s.resources),
		s.process.list("env", s.env.decode),
		s.root.list("mounts", s.mounts.decode),
		s.linux.list("devices", s.devices.decode),
		s.linux.list("maskedPaths", s.masked.decode),
		s.resources.list("devices", s.rules.decode),
	)
	for _, name := range stageNames {
		stage := new(list[hook])
		err = errors.Join(err, s.hooks.list(name, stage.decode))
		s.stages[name] = stage
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Apply applies the edits in order. After an error the Spec holds the edits
// before the one that failed.
func (s *Spec) Apply(edits ...Edit) error {
	for _, e := range edits {
		if err := e.Apply(s); err != nil {
			return err
		}
	}
	return nil
}

// Marshal returns the spec as JSON.
func (s *Spec) Marshal() ([]byte, error) {
	root, linux, process, resources, hooks := s.root.clone(), s.linux.clone(), s.process.clone(), s.resources.clone(), s.hooks.clone()
	put(&process, "env", &s.env)
	put(&root, "mounts", &s.mounts)
	put(&resources, "devices", &s.rules)
	put(&linux, "devices", &s.devices)
	put(&linux, "maskedPaths", &s.masked)
	for name, stage := range s.stages {
		put(&hooks, name, stage)
	}
	err := errors.Join(
		nest(&linux, "resources", resources, s.rules.changed),
		nest(&root, "linux", linux, s.rules.changed || s.devices.changed || s.masked.changed),
		nest(&root, "process", process, s.env.changed),
		nest(&root, "hooks", hooks, s.hooksChanged()),
	)
	if err != nil {
		return nil, err
	}
	return encode(root)
}

func (s *Spec) hooksChanged() bool {
	for _, stage := range s.stages {
		if stage.changed {
			return true
		}
	}
	return false
}

// object is a JSON object whose values are kept as they came.
type object map[string]json.RawMessage

// get returns the value under key, nil if there is none or it is null. The OCI
// runtimes written in Go match keys without regard to case; a spelling that
// they would take and that we would pass by is an error.
func (o object) get(key string) (json.RawMessage, error) {
	for k := range o {
		if k != key && strings.EqualFold(k, key) {
			return nil, fmt.Errorf("%q: ambiguous key, want %q", k, key)
		}
	}
	v := o[key]
	if isNull(v) {
		return nil, nil
	}
	return v, nil
}

func (o object) section(key string, into *object) error {
	v, err := o.get(key)
	if err != nil || v == nil {
		return err
	}
	if err := json.Unmarshal(v, into); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (o object) list(key string, decode func(json.RawMessage) error) error {
	v, err := o.get(key)
	if err != nil || v == nil {
		return err
	}
	if err := decode(v); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (o object) clone() object {
	if o == nil {
		return nil
	}
	c := make(object, len(o)+1)
	for k, v := range o {
		c[k] = v
	}
	return c
}

// nest puts a changed section back into its parent.
func nest(parent *object, key string, section object, changed bool) error {
	if !changed {
		return nil
	}
	b, err := encode(section)
	if err != nil {
		return err
	}
	parent.set(key, b)
	return nil
}

// put puts a changed list back into its section.
func put[T any](section *object, key string, l *list[T]) {
	if l.changed {
		section.set(key, l.encode())
	}
}

func (o *object) set(key string, v json.RawMessage) {
	if *o == nil {
		*o = make(object)
	}
	(*o)[key] = v
}

func isNull(v json.RawMessage) bool {
	return len(v) == 0 || bytes.Equal(bytes.TrimSpace(v), []byte("null"))
}

// encode is json.Marshal without the escapes that HTML needs.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
