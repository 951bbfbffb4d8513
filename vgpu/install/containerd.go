// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
)

// answerLimit bounds how long a program may take that only tells about itself.
const answerLimit = 10 * time.Second

// Output runs a program that only tells about itself, and returns what it wrote to
// its standard output. It does not hang.
func Output(ctx context.Context, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // G204: the operator names it, and no shell reads the rest
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		err = errors.New("it did not end in time")
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
		if said := strings.TrimSpace(stderr.String()); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return nil, err
	}
	return stdout.Bytes(), nil
}

// ContainerdVersion asks a containerd for its version, such as 1.6.20.
func ContainerdVersion(ctx context.Context, program string) (string, error) {
	out, err := Output(ctx, program, "--version")
	if err != nil {
		return "", err
	}
	// "containerd github.com/containerd/containerd v1.7.29 REVISION"; Debian's has
	// a suffix, such as 1.6.20~ds1.
	fields := strings.Fields(string(out))
	if len(fields) < 3 || fields[0] != "containerd" {
		return "", fmt.Errorf("%s --version says %q, which is not containerd's", program, strings.TrimSpace(string(out)))
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(fields[2], "v"), "~")
	return version, nil
}

// Configuration is a configuration of containerd as that itself reads it, with all
// that is imported and, of the plugins that were built in, with the defaults.
type Configuration map[string]any

// Dump asks a containerd how it reads a configuration.
func Dump(ctx context.Context, program, config string) (Configuration, error) {
	out, err := Output(ctx, program, "--config", config, "config", "dump")
	if err != nil {
		return nil, err
	}
	c := Configuration{}
	if err := toml.Unmarshal(out, &c); err != nil {
		return nil, fmt.Errorf("failed to read what %s config dump wrote: %w", program, err)
	}
	return c, nil
}

// withFile calls f with a file that holds a text, and is gone afterwards.
func withFile(text string, f func(file string) error) error {
	d, err := os.MkdirTemp("", "vgpu-install-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(d)
	file := filepath.Join(d, "config.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	return f(file)
}

// criPlugins is what the plugin that knows runtimes is called: since version 3 of
// the configuration, and before. A containerd that was built without it leaves the
// name as it is in the file.
var criPlugins = []string{"io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"}

// version of the configuration's format that this containerd writes.
func (c Configuration) version() int64 {
	v, _ := c["version"].(int64)
	return v
}

// containerd is CRI's table containerd, by the name of the plugin.
func (c Configuration) containerd(plugin string) map[string]any {
	return table(c, "plugins", plugin, "containerd")
}

// Runtime is a handler of CRI; nil if there is none of that name.
func (c Configuration) Runtime(name string) map[string]any {
	for _, p := range criPlugins {
		if r := table(c.containerd(p), "runtimes", name); r != nil {
			return r
		}
	}
	return nil
}

// defaultRuntime is the handler of those who name none.
func (c Configuration) defaultRuntime() map[string]any {
	for _, p := range criPlugins {
		if name, ok := c.containerd(p)["default_runtime_name"].(string); ok {
			if r := c.Runtime(name); r != nil {
				return r
			}
		}
	}
	return c.Runtime("runc")
}

// CRIDisabled tells whether CRI is switched off, by any of its names.
func (c Configuration) CRIDisabled() bool {
	list, _ := c["disabled_plugins"].([]any)
	for _, name := range list {
		if name == "cri" || name == criPlugins[0] || name == criPlugins[1] {
			return true
		}
	}
	return false
}

// HasCRI tells whether anything is said of CRI: nothing is by a containerd that was
// built without it, unless the file does.
func (c Configuration) HasCRI() bool {
	for _, p := range criPlugins {
		if table(c, "plugins", p) != nil {
			return true
		}
	}
	return false
}

// table goes down into tables; nil if one is not there.
func table(t map[string]any, path ...string) map[string]any {
	for _, key := range path {
		t, _ = t[key].(map[string]any)
	}
	return t
}
