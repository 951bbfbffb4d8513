// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"encoding/json"
	"fmt"
)

// EditProcess applies edits to a process of an OCI spec that stands alone, as runtimes
// get one for what joins a container, and returns it as JSON.
func EditProcess(process []byte, edits ...Edit) ([]byte, error) {
	document, err := encode(object{"process": process})
	if err != nil {
		return nil, fmt.Errorf("failed to parse a process: %w", err)
	}
	s, err := Parse(document)
	if err != nil {
		return nil, fmt.Errorf("failed to parse a process: %w", err)
	}
	if err := s.Apply(edits...); err != nil {
		return nil, err
	}
	if document, err = s.Marshal(); err != nil {
		return nil, err
	}
	var o object
	if err := json.Unmarshal(document, &o); err != nil {
		return nil, err
	}
	return o["process"], nil
}
