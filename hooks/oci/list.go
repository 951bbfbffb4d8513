// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"encoding/json"
	"fmt"
)

// list is a JSON array of which each element is known in part: value holds
// what we know of it, raw is what stands in the document. An element that no
// edit touches goes back as it came.
type list[T any] struct {
	elements []element[T]
	changed  bool
}

type element[T any] struct {
	value T
	raw   json.RawMessage
}

func (l *list[T]) decode(data json.RawMessage) error {
	var raws []json.RawMessage
	if err := json.Unmarshal(data, &raws); err != nil {
		return err
	}
	l.elements = make([]element[T], len(raws))
	for i, raw := range raws {
		l.elements[i].raw = raw
		if err := json.Unmarshal(raw, &l.elements[i].value); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
	}
	return nil
}

func (l *list[T]) encode() json.RawMessage {
	b := []byte{'['}
	for i, e := range l.elements {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, e.raw...)
	}
	return append(b, ']')
}

// add appends elements.
func (l *list[T]) add(values ...T) error {
	more := make([]element[T], len(values))
	for i, v := range values {
		raw, err := encode(v)
		if err != nil {
			return err
		}
		more[i] = element[T]{v, raw}
	}
	if len(more) > 0 {
		l.elements, l.changed = append(l.elements, more...), true
	}
	return nil
}

// set makes v the one element that same holds for. It replaces the first of
// them and removes the others; without one, v is appended.
func (l *list[T]) set(v T, same func(T) bool) error {
	return l.place(v, same, true)
}

// last removes every element that same holds for and appends v.
func (l *list[T]) last(v T, same func(T) bool) error {
	return l.place(v, same, false)
}

func (l *list[T]) place(v T, same func(T) bool, keepPlace bool) error {
	raw, err := encode(v)
	if err != nil {
		return err
	}
	kept := make([]element[T], 0, len(l.elements)+1)
	placed := false
	for _, e := range l.elements {
		switch {
		case !same(e.value):
			kept = append(kept, e)
		case keepPlace && !placed:
			kept = append(kept, element[T]{v, raw})
			placed = true
		}
	}
	if !placed {
		kept = append(kept, element[T]{v, raw})
	}
	l.elements, l.changed = kept, true
	return nil
}

// remove removes the elements that drop holds for.
func (l *list[T]) remove(drop func(T) bool) {
	kept := l.elements[:0:0]
	for _, e := range l.elements {
		if !drop(e.value) {
			kept = append(kept, e)
		}
	}
	if len(kept) != len(l.elements) {
		l.elements, l.changed = kept, true
	}
}
