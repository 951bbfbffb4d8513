// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// A decl is one top-level declaration of the header, as tokens without the
// final semicolon.
type decl struct {
	toks []string
}

// A header is what one preprocessor run over cuda.h shows.
type header struct {
	decls  []decl
	macros map[string]string // object-like macros, and their replacement
	order  []string          // the macros' names, in the order of the header
}

var tokenPattern = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[A-Za-z_][A-Za-z_0-9]*|[0-9][0-9A-Za-z.]*|\.\.\.|<<|>>|->|\S`)

// preprocess runs the C preprocessor over path, and keeps what path itself
// declares: the files that it includes are cut out by the line markers.
func preprocess(cc, path string, defines ...string) (*header, error) {
	flags := []string{"-E", "-dD", "-std=c11"}
	for _, d := range defines {
		flags = append(flags, "-D"+d)
	}
	cmd := exec.Command(cc, append(flags, path)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("failed to preprocess %s: %w: %s", path, err, stderr.String())
	}
	h := &header{macros: map[string]string{}}
	var text strings.Builder
	inside := false
	want := filepath.Base(path)
	for line := range strings.Lines(string(out)) {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "# "):
			_, file, _ := strings.Cut(trimmed, `"`)
			file, _, _ = strings.Cut(file, `"`)
			inside = filepath.Base(file) == want
		case !inside:
		case strings.HasPrefix(trimmed, "#define "):
			name, value, _ := strings.Cut(strings.TrimPrefix(trimmed, "#define "), " ")
			if strings.Contains(name, "(") {
				continue // function-like: the header's own tools
			}
			if _, again := h.macros[name]; !again {
				h.order = append(h.order, name)
			}
			h.macros[name] = strings.TrimSpace(value)
		case strings.HasPrefix(trimmed, "#"):
		default:
			text.WriteString(line)
		}
	}
	h.decls = split(tokenPattern.FindAllString(text.String(), -1))
	return h, nil
}

// split cuts a token stream into top-level declarations. Function bodies (the
// header has an inline function) end a declaration too and are dropped.
func split(toks []string) []decl {
	var out []decl
	var cur []string
	depth := 0
	for i := 0; i < len(toks); i++ {
		switch t := toks[i]; t {
		case "__attribute__":
			i = skipGroup(toks, i+1)
			continue
		case "{", "(", "[":
			depth++
			cur = append(cur, t)
		case "}", ")", "]":
			depth--
			cur = append(cur, t)
			if t == "}" && depth == 0 && len(cur) > 0 && cur[0] == "static" {
				cur = nil
			}
		case ";":
			if depth > 0 {
				cur = append(cur, t)
			} else if len(cur) > 0 {
				out = append(out, decl{cur})
				cur = nil
			}
		default:
			cur = append(cur, t)
		}
	}
	return out
}

// skipGroup returns the index of the parenthesis that closes the one at i.
func skipGroup(toks []string, i int) int {
	depth := 0
	for ; i < len(toks); i++ {
		switch toks[i] {
		case "(":
			depth++
		case ")":
			depth--
			if depth == 0 {
				return i
			}
		}
	}
	return i
}

// A prototype is one exported function.
type prototype struct {
	name   string
	ret    string
	params []string // C types with parameter names
}

// exported are the names of functions of the driver and of NVML.
var exported = regexp.MustCompile(`^(cu|nvml[A-Z])`)

// prototype reads d as the prototype of such a function.
func (d decl) prototype() (prototype, bool) {
	if d.toks[0] == "typedef" || d.toks[0] == "struct" || d.toks[0] == "enum" || d.toks[0] == "static" {
		return prototype{}, false
	}
	for i, t := range d.toks {
		if t == "{" || t == "=" {
			return prototype{}, false
		}
		if t != "(" {
			continue
		}
		if i < 2 || !exported.MatchString(d.toks[i-1]) {
			return prototype{}, false
		}
		p := prototype{name: d.toks[i-1], ret: join(d.toks[:i-1])}
		inner := d.toks[i+1 : len(d.toks)-1]
		if len(inner) == 1 && inner[0] == "void" {
			return p, true
		}
		depth, from := 0, 0
		for j, u := range inner {
			switch u {
			case "(", "[":
				depth++
			case ")", "]":
				depth--
			case ",":
				if depth == 0 {
					p.params = append(p.params, join(inner[from:j]))
					from = j + 1
				}
			}
		}
		if from < len(inner) {
			p.params = append(p.params, join(inner[from:]))
		}
		return p, true
	}
	return prototype{}, false
}

// names returns what d defines: tags (with their keyword), typedef names and
// enumerators, so that two preprocessor runs can be merged.
func (d decl) name() string {
	if p, ok := d.prototype(); ok {
		return p.name
	}
	if d.toks[0] == "typedef" {
		// typedef R (*NAME)(...): the name stands behind "( *".
		depth := 0
		for i, t := range d.toks {
			switch t {
			case "{":
				depth++
			case "}":
				depth--
			case "(":
				if depth == 0 && d.toks[i+1] == "*" {
					return d.toks[i+2]
				}
			}
		}
		last := len(d.toks) - 1
		for d.toks[last] == "]" {
			last -= 3
		}
		return d.toks[last]
	}
	if len(d.toks) > 1 {
		return d.toks[0] + " " + d.toks[1]
	}
	return d.toks[0]
}

// join prints tokens as C, on one line.
func join(toks []string) string {
	var b strings.Builder
	for i, t := range toks {
		if i > 0 && spaced(toks[i-1], t) {
			b.WriteByte(' ')
		}
		b.WriteString(t)
	}
	return b.String()
}

func spaced(prev, t string) bool {
	switch t {
	case ",", ";", ")", "]", "[":
		return false
	case "(":
		return prev != "sizeof" && prev != ")" && prev != "_Alignas"
	}
	switch prev {
	case "(", "[", "~":
		return false
	case "*":
		return t == "const"
	case "-":
		return false
	}
	return true
}
