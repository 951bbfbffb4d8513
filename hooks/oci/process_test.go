// SPDX-License-Identifier: Apache-2.0

package oci

import "testing"

func TestEditProcess(t *testing.T) {
	list := EnvList{Name: "LAYERS", First: "/ours"}
	for _, c := range []struct{ description, process, want string }{
		{"without an environment", `{"args": ["a"]}`, `{"args":["a"],"env":["LAYERS=/ours"]}`},
		{"with another value", `{"env": ["A=b", "LAYERS=/theirs"]}`, `{"env":["A=b","LAYERS=/ours:/theirs"]}`},
		{"with what nobody knows", `{"unknown": {"a": 10000000000000001}}`, `{"env":["LAYERS=/ours"],"unknown":{"a":10000000000000001}}`},
	} {
		t.Run(c.description, func(t *testing.T) {
			if got, err := EditProcess([]byte(c.process), list); err != nil || string(got) != c.want {
				t.Errorf("it became %s, %v; want %s", got, err, c.want)
			}
		})
	}
	for _, process := range []string{``, `null`, `[]`, `{"env": 1}`, `{"ENV": []}`} {
		if got, err := EditProcess([]byte(process), list); err == nil {
			t.Errorf("%s became %s", process, got)
		}
	}
}
