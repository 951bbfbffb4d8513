// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/vgpu-shim/vgpu/vgpu/install"
	"github.com/vgpu-shim/vgpu/vgpu/version"
)

// containerdConfig is where containerd looks by default.
const containerdConfig = "/etc/containerd/config.toml"

// installation are the flags of vgpu install and vgpu uninstall.
type installation struct {
	install.Options
	without bool // containerd's configuration
	dry     bool
	force   bool
}

func (a *app) installCommand() *cobra.Command {
	i := installation{}
	cmd := &cobra.Command{
		Use: "install", Short: "Place vgpu on this machine, and tell containerd of it", Args: none,
		Long: "Place the programs and libraries of a build, their configuration and systemd's\n" +
			"units, and add the runtime handler \"vgpu\" to containerd's configuration: as a file\n" +
			"of its own where the configuration imports a directory and containerd is 2.0 or\n" +
			"later, else as a marked block. containerd itself reads the result first, in which\n" +
			"nothing but our runtime may be new.\n\n" +
			"All of it is done, or nothing; the next run mends what a killed one left. A file\n" +
			"that was changed is kept, with the new one as NAME.new beside it. Running containers keep the library that they have. A second\n" +
			"run changes nothing. Nothing is restarted: the end of the output says what to.",
		Example: "  vgpu install --dry-run\n  vgpu install --root /tmp/package --prefix /usr --no-containerd",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.install(cmd.Context(), cmd.OutOrStdout(), i)
		},
	}
	f := i.flags(cmd)
	f.StringVar(&i.From, "from", "", "`DIR` that was built, or of an installed version (default: the one that this program is of)")
	f.StringVar(&i.Containerd, "containerd", "containerd", "containerd's `PROGRAM`, by which the configuration is checked")
	f.StringVar(&i.Config, "containerd-config", containerdConfig, "containerd's configuration `FILE`")
	f.BoolVar(&i.without, "no-containerd", false, "leave containerd's configuration alone")
	return cmd
}

func (a *app) uninstallCommand() *cobra.Command {
	i := installation{}
	cmd := &cobra.Command{
		Use: "uninstall", Short: "Take away what vgpu install placed", Args: none,
		Long: "Take away exactly what \"vgpu install\" placed, and its part of containerd's\n" +
			"configuration, whatever others changed there since. A file that was changed is kept,\n" +
			"and named. It is refused while containers run that have a vGPU, or a shim of ours.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.uninstall(cmd.OutOrStdout(), i)
		},
	}
	i.flags(cmd)
	cmd.Flags().BoolVar(&i.force, "force", false, "although such containers run: they go on, and what they use stays until a later run")
	return cmd
}

type flags interface {
	StringVar(p *string, name, value, usage string)
	BoolVar(p *bool, name string, value bool, usage string)
}

func (i *installation) flags(cmd *cobra.Command) flags {
	i.Version, i.Proc = version.Version, "/proc"
	f := cmd.Flags()
	f.StringVar(&i.Root, "root", "/", "`DIR` that all paths are below, for packages; what is written names them without it")
	f.StringVar(&i.Prefix, "prefix", "/usr/local", "`DIR` of programs and units; libraries are always in /usr/lib/vgpu")
	f.BoolVar(&i.dry, "dry-run", false, "only show what would change, with a unified diff of text")
	return f
}

func (a *app) install(ctx context.Context, w io.Writer, i installation) error {
	for name, dir := range map[string]*string{"root": &i.Root, "prefix": &i.Prefix, "containerd-config": &i.Config} {
		if !filepath.IsAbs(*dir) {
			return usage{fmt.Errorf("--%s=%s: must be an absolute path", name, *dir)}
		}
		*dir = filepath.Clean(*dir)
	}
	if i.From == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		i.From = filepath.Dir(filepath.Dir(self))
	}
	if i.without {
		i.Containerd = ""
	} else if _, err := exec.LookPath(i.Containerd); err != nil {
		return fmt.Errorf("failed to find containerd, which must read its new configuration first: %w; name it with --containerd, or leave its configuration alone with --no-containerd", err)
	}
	unlock, err := i.lock()
	if err != nil {
		return err
	}
	defer unlock()
	p, err := install.Install(ctx, i.Options)
	if err != nil {
		return err
	}
	return a.carryOut(w, p, i.dry)
}

func (a *app) uninstall(w io.Writer, i installation) error {
	unlock, err := i.lock()
	if err != nil {
		return err
	}
	defer unlock()
	p, err := install.Uninstall(i.Options, i.force)
	if err != nil {
		return err
	}
	return a.carryOut(w, p, i.dry)
}

// lock keeps others away, if anything is to be changed.
func (i *installation) lock() (unlock func(), err error) {
	if i.dry {
		return func() {}, nil
	}
	return i.Lock()
}

// planJSON is what changes, and what to say about it.
type planJSON struct {
	Done    bool         `json:"done"`
	Changes []changeJSON `json:"changes"`
	Notes   []string     `json:"notes"`
	Then    []string     `json:"then"`
}

type changeJSON struct {
	Action string `json:"action"`
	Path   string `json:"path"`
	Diff   string `json:"diff"`
}

// carryOut makes a plan true, unless dry, and shows it.
func (a *app) carryOut(w io.Writer, p *install.Plan, dry bool) error {
	if !dry {
		if err := p.Apply(); err != nil {
			return err
		}
	}
	if a.output == "json" {
		j := planJSON{Done: !dry, Changes: []changeJSON{}, Notes: append([]string{}, p.Notes...), Then: append([]string{}, p.Then...)}
		for _, c := range p.Changes {
			j.Changes = append(j.Changes, changeJSON{c.Action(), c.Path, c.Diff()})
		}
		return writeJSON(w, j)
	}
	var b bytes.Buffer
	if dry {
		for _, c := range p.Changes {
			fmt.Fprintf(&b, "%s", c.Diff())
		}
	}
	for _, c := range p.Changes {
		fmt.Fprintf(&b, "%-8s %s\n", c.Action(), c.Path)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	switch {
	case len(p.Changes) == 0:
		fmt.Fprintf(&b, "nothing to change\n")
	case dry:
		fmt.Fprintf(&b, "nothing was changed (--dry-run)\n")
	}
	if len(p.Changes) > 0 && len(p.Then) > 0 {
		fmt.Fprintf(&b, "then:\n")
		for _, t := range p.Then {
			fmt.Fprintf(&b, "  %s\n", t)
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}
