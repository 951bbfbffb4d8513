// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// newestFormat is the newest format of containerd's configuration that is known
// here; a containerd with a newer one reads this one, too.
const newestFormat = 4

// errCRIDisabled is why nothing is to be configured.
var errCRIDisabled = errors.New("CRI is disabled in it, and nobody else needs a handler: ctr, nerdctl and docker find the shim by the runtime's name")

// wanted is how containerd's configuration shall be. Exactly one of file and block
// is set.
type wanted struct {
	file  string // path of a drop-in, as it is when the root is "/"
	block string
	text  string // of the drop-in, or of the whole configuration with the block

	changed bool // the block was changed by somebody, and is kept
}

// configuration is a file of containerd that is looked at.
type configuration struct {
	program string // containerd
	path    string // of the file, as it is when the root is "/"
	text    string // "" where there is none
	exists  bool
	place   func(string) string // where a path lies here
	ours    map[string]entry    // what was placed before
	edited  *edit               // block that was placed before
}

// want decides how the configuration shall be, and has containerd itself read it
// so: our handler must be in it, and all else as before.
func (c *configuration) want(ctx context.Context, shim string) (wanted, error) {
	rest, old, err := cut(c.text)
	if err != nil {
		return wanted{}, c.failed(err)
	}
	if !c.exists {
		rest = "version = 2\n" // which each containerd reads
	}
	main := map[string]any{}
	if err := toml.Unmarshal([]byte(rest), &main); err != nil {
		return wanted{}, c.failed(err)
	}
	if Configuration(main).CRIDisabled() {
		return wanted{}, errCRIDisabled
	}
	imports, patterns := c.imports(main)
	before, err := c.dump(ctx, rest, imports)
	if err != nil {
		return wanted{}, c.failed(err)
	}
	if before.CRIDisabled() {
		return wanted{}, errCRIDisabled
	}
	if r := before.Runtime(Handler); r != nil {
		return wanted{}, c.failed(fmt.Errorf("it has a runtime %q already, which vgpu did not write (%s, %v): remove or rename that, and run this again", Handler, r["runtime_type"], r["runtime_path"]))
	}
	h := handler{program: shim, lost: map[string]map[string]any{}}
	h.systemd, _ = table(before.defaultRuntime(), "options")["SystemdCgroup"].(bool)

	// Before version 3 an imported file does not add to the table of a plugin: it
	// takes its place, and everybody else's runtimes are gone.
	own := before.version() >= 3 && old == "" && len(patterns) > 0
	var format int64
	if own {
		format = min(before.version(), newestFormat)
	} else if format, _ = main["version"].(int64); format < 2 {
		return wanted{}, c.failed(errors.New(`it has no "version = 2" or later, so it is of the oldest format: bring it to a newer one first ("containerd config migrate" of containerd 2 writes it)`))
	} else if !c.exists {
		format = min(before.version(), newestFormat)
		rest = fmt.Sprintf("version = %d\n", format)
	}
	h.version = format

	// The first look tells which runtimes get lost, the second that none is.
	for range 2 {
		tables, err := h.tables()
		if err != nil {
			return wanted{}, err
		}
		w := wanted{}
		read, files := "", imports
		if own {
			w.file, w.text = filepath.Join(filepath.Dir(patterns[0]), Handler+".toml"), dropIn(format, tables)
			read = rest
		} else {
			w.block = block(tables)
			w.text = insert(c.text, rest, w.block)
			read = w.text
			if c.edited != nil && old != "" && hash([]byte(old)) != c.edited.SHA256 {
				return wanted{block: old, text: c.text, changed: true}, nil
			}
		}
		after, err := c.dumpWith(ctx, read, files, w)
		if err != nil {
			return wanted{}, c.failed(fmt.Errorf("containerd does not read it with our runtime in it: %w", err))
		}
		if r := after.Runtime(Handler); r == nil || r["runtime_path"] != shim {
			return wanted{}, c.failed(fmt.Errorf("a file that it imports (%s) sets the whole table of CRI, so a runtime in it does not count: put this into that file\n%s", strings.Join(imports, ", "), tables))
		}
		for _, p := range criPlugins {
			delete(table(after.containerd(p), "runtimes"), Handler)
		}
		again := false
		for _, p := range criPlugins {
			for name := range table(before.containerd(p), "runtimes") {
				if after.Runtime(name) == nil && h.lost[name] == nil {
					h.lost[name], again = before.Runtime(name), true
				}
			}
		}
		if again {
			continue
		}
		delete(before, "imports")
		delete(after, "imports")
		if d := differences(before, after, ""); len(d) > 0 {
			return wanted{}, c.failed(fmt.Errorf("our runtime in it would change more than itself (%s): add it by hand\n%s", strings.Join(d, ", "), tables))
		}
		return w, nil
	}
	return wanted{}, c.failed(fmt.Errorf("containerd forgets its own runtimes %v once ours is named: add those by hand first", slices.Sorted(maps.Keys(h.lost))))
}

func (c *configuration) failed(err error) error {
	return fmt.Errorf("failed to add the runtime to containerd's configuration %s: %w", c.path, err)
}

// imports are the files that a configuration imports, without ours, and the
// patterns in it that would fit ours: all of a directory's *.toml.
func (c *configuration) imports(main map[string]any) (files, patterns []string) {
	list, _ := main["imports"].([]any)
	for _, i := range list {
		pattern, _ := i.(string)
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(c.path), pattern)
		}
		if ok, _ := filepath.Match(filepath.Base(pattern), Handler+".toml"); ok && strings.Contains(pattern, "*") {
			patterns = append(patterns, pattern)
		}
		found := []string{c.place(pattern)}
		if strings.Contains(pattern, "*") {
			found, _ = filepath.Glob(c.place(pattern))
		}
		files = append(files, found...)
	}
	return slices.DeleteFunc(files, func(file string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool {
			ours := filepath.Join(filepath.Dir(p), Handler+".toml")
			return c.ours[ours] != entry{} && c.place(ours) == file
		})
	}), patterns
}

// dump has containerd read a text that imports these files instead of its own.
// Without imports it reads the very bytes.
func (c *configuration) dump(ctx context.Context, text string, imports []string) (Configuration, error) {
	all := map[string]any{}
	if err := toml.Unmarshal([]byte(text), &all); err != nil {
		return nil, err
	}
	if all["imports"] != nil || len(imports) > 0 {
		all["imports"] = imports
		b, err := toml.Marshal(all)
		if err != nil {
			return nil, err
		}
		text = string(b)
	}
	var result Configuration
	err := withFile(text, func(file string) (err error) {
		result, err = Dump(ctx, c.program, file)
		return err
	})
	return result, err
}

// dumpWith is dump with what is wanted in its place.
func (c *configuration) dumpWith(ctx context.Context, text string, imports []string, w wanted) (Configuration, error) {
	if w.file == "" {
		return c.dump(ctx, text, imports)
	}
	var result Configuration
	err := withFile(w.text, func(file string) (err error) {
		result, err = c.dump(ctx, text, append(slices.Clone(imports), file))
		return err
	})
	return result, err
}
