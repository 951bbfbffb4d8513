// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Handler is the name of the runtime handler for CRI.
const Handler = "vgpu"

// handler is CRI's part of containerd's configuration for us.
type handler struct {
	version int64  // of the format of the file that it goes into
	program string // path of the shim
	systemd bool   // whether runc makes cgroups through systemd here
	lost    map[string]map[string]any
}

// bare are the keys of TOML that need no quotes.
var bare = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// tables is the text of it. Headers only, so that it can stand at the end of any
// file, and no table of somebody else's is written again.
func (h handler) tables() (string, error) {
	plugin := criPlugins[0]
	if h.version < 3 {
		plugin = criPlugins[1]
	}
	var b strings.Builder
	header := func(name ...string) {
		for i, part := range name {
			if !bare.MatchString(part) {
				name[i] = strconv.Quote(part)
			}
		}
		fmt.Fprintf(&b, "[plugins.%q.containerd.runtimes.%s]\n", plugin, strings.Join(name, "."))
	}
	header(Handler)
	// The stock runtime's name with our program: containerd 1.6 passes options such
	// as SystemdCgroup only to a runtime of this name.
	fmt.Fprintf(&b, "  runtime_type = \"io.containerd.runc.v2\"\n  runtime_path = %q\n", h.program)
	b.WriteString("  # CRI passes on only the annotations that are named here.\n")
	b.WriteString("  pod_annotations = [\"vgpu-shim.dev/*\"]\n  container_annotations = [\"vgpu-shim.dev/*\"]\n")
	if h.systemd {
		header(Handler, "options")
		b.WriteString("  SystemdCgroup = true\n")
	}
	for _, name := range slices.Sorted(maps.Keys(h.lost)) {
		b.WriteString("# A runtime that is built into containerd, which this one forgets once another is\n# named: as it was. Name it elsewhere to change it, and run vgpu install again.\n")
		fields, options := maps.Clone(h.lost[name]), map[string]any(nil)
		options, _ = fields["options"].(map[string]any)
		delete(fields, "options")
		// What is empty is so by itself; not in the options, which are passed on as
		// they are written.
		maps.DeleteFunc(fields, func(_ string, v any) bool {
			r := reflect.ValueOf(v)
			return r.IsZero() || (r.Kind() == reflect.Slice || r.Kind() == reflect.Map) && r.Len() == 0
		})
		for _, part := range []struct {
			name   []string
			fields map[string]any
		}{{[]string{name}, fields}, {[]string{name, "options"}, options}} {
			if part.fields == nil {
				continue
			}
			body, err := toml.Marshal(part.fields)
			if err != nil {
				return "", err
			}
			header(part.name...)
			for line := range strings.Lines(string(body)) {
				b.WriteString("  " + line)
			}
		}
	}
	return b.String(), nil
}

// What encloses our block in a file of somebody else's.
const (
	blockBegin = "# >>> vgpu: written by \"vgpu install\", removed by \"vgpu uninstall\"\n"
	blockEnd   = "# <<< vgpu\n"
)

func block(tables string) string { return "\n" + blockBegin + tables + blockEnd }

// cut divides a file into what is somebody else's and our block. What insert made
// is cut to what was there, byte for byte.
func cut(text string) (rest, ours string, err error) {
	begin := strings.Index(text, "\n"+blockBegin)
	if begin < 0 {
		return text, "", nil
	}
	n := strings.Index(text[begin:], "\n"+blockEnd)
	if n < 0 {
		return "", "", fmt.Errorf("the line %q is there without the line %q: put it back, or remove the block", strings.TrimSpace(blockBegin), strings.TrimSpace(blockEnd))
	}
	end := begin + n + len("\n"+blockEnd)
	return text[:begin] + text[end:], text[begin:end], nil
}

// insert puts a block where it was, or to the end.
func insert(text, rest, block string) string {
	at := strings.Index(text, "\n"+blockBegin)
	if at < 0 {
		at = len(rest)
	}
	return rest[:at] + block + rest[at:]
}

// dropIn is the file of our own, for a directory that is imported.
func dropIn(version int64, tables string) string {
	return fmt.Sprintf("# CRI's part of the vgpu handler: written by \"vgpu install\", removed by \"vgpu\n# uninstall\". ctr, nerdctl and docker need none of this.\nversion = %d\n\n%s", version, tables)
}

// differences are the paths at which two configurations differ. Empty tables are
// as none.
func differences(before, after map[string]any, path string) (all []string) {
	keys := slices.Sorted(maps.Keys(before))
	for k := range after {
		if _, ok := before[k]; !ok {
			keys = append(keys, k)
		}
	}
	for _, k := range keys {
		name := strings.TrimPrefix(path+"."+k, ".")
		b, isTable := before[k].(map[string]any)
		a, isTable2 := after[k].(map[string]any)
		if (isTable || before[k] == nil) && (isTable2 || after[k] == nil) {
			all = append(all, differences(b, a, name)...)
		} else if !reflect.DeepEqual(before[k], after[k]) {
			all = append(all, name)
		}
	}
	return all
}
