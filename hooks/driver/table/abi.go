// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"sort"
	"strings"
)

// abiWriter prints the declarations of the binary interface in our own form:
// one member a line, every enumerator with its value, nothing but facts.
type abiWriter struct {
	b      strings.Builder
	values map[string]constant.Value // enumerators and numeric macros seen so far
	enums  []string                  // every enumerator, in order
	// structs are the complete aggregate types, by a C type name.
	structs []string
}

func (w *abiWriter) printf(format string, args ...any) { fmt.Fprintf(&w.b, format, args...) }

// declaration prints one type declaration.
func (w *abiWriter) declaration(d decl) error {
	open := slices.Index(d.toks, "{")
	enumAt := slices.Index(d.toks, "enum")
	switch {
	case open < 0:
		w.printf("%s;\n", join(d.toks))
		return nil
	case enumAt >= 0 && enumAt < open:
		return w.enum(d, open)
	}
	w.aggregate(d.toks, 0)
	if name := d.name(); d.toks[0] == "typedef" && d.toks[len(d.toks)-2] != "*" {
		w.structs = append(w.structs, name)
	} else if d.toks[0] == "struct" {
		w.structs = append(w.structs, name)
	}
	return nil
}

// aggregate prints tokens that hold a struct or union body.
func (w *abiWriter) aggregate(toks []string, indent int) {
	tabs := strings.Repeat("\t", indent)
	open := slices.Index(toks, "{")
	if open < 0 {
		w.printf("%s%s;\n", tabs, strings.ReplaceAll(join(toks), "_Alignas(", "VGPU_ABI_ALIGN("))
		return
	}
	w.printf("%s%s {\n", tabs, join(toks[:open]))
	depth, from, end := 0, open+1, open
	for i := open; i < len(toks); i++ {
		switch toks[i] {
		case "{", "(", "[":
			depth++
		case "}", ")", "]":
			depth--
			if depth == 0 && toks[i] == "}" {
				end = i
			}
		case ";":
			if depth == 1 {
				w.aggregate(toks[from:i], indent+1)
				from = i + 1
			}
		}
		if end > open {
			break
		}
	}
	if rest := toks[end+1:]; len(rest) > 0 {
		w.printf("%s} %s;\n", tabs, join(rest))
	} else {
		w.printf("%s};\n", tabs)
	}
}

func (w *abiWriter) enum(d decl, open int) error {
	w.printf("%s {\n", join(d.toks[:open]))
	end := slices.Index(d.toks, "}")
	next := constant.MakeInt64(0)
	depth, from := 0, open+1
	flush := func(item []string) error {
		if len(item) == 0 {
			return nil
		}
		value := next
		if len(item) > 1 {
			v, err := w.eval(item[2:])
			if err != nil {
				return fmt.Errorf("enumerator %s: %w", item[0], err)
			}
			value = v
		}
		w.values[item[0]] = value
		w.enums = append(w.enums, item[0])
		w.printf("\t%s = %s,\n", item[0], literal(value))
		next = constant.BinaryOp(value, token.ADD, constant.MakeInt64(1))
		return nil
	}
	for i := open + 1; i <= end; i++ {
		switch t := d.toks[i]; {
		case t == "(":
			depth++
		case t == ")":
			depth--
		case (t == "," || t == "}") && depth == 0:
			if err := flush(d.toks[from:i]); err != nil {
				return err
			}
			from = i + 1
		}
	}
	if rest := join(d.toks[end+1:]); rest != "" {
		w.printf("} %s;\n", rest)
	} else {
		w.printf("};\n")
	}
	return nil
}

func literal(v constant.Value) string {
	n, _ := constant.Int64Val(v)
	switch {
	case n == -1<<31:
		return "(-2147483647 - 1)"
	case n >= 1<<16:
		return fmt.Sprintf("0x%x", n)
	}
	return fmt.Sprintf("%d", n)
}

var suffix = regexp.MustCompile(`^(0[xX][0-9a-fA-F]+|[0-9]+)[uUlL]*$`)

// eval computes an integer expression of C that is one of Go too, once the
// suffixes are gone.
func (w *abiWriter) eval(toks []string) (constant.Value, error) {
	clean := make([]string, len(toks))
	for i, t := range toks {
		if m := suffix.FindStringSubmatch(t); m != nil {
			t = m[1]
		}
		if t == "~" {
			t = "^"
		}
		clean[i] = t
	}
	expr, err := parser.ParseExpr(strings.Join(clean, " "))
	if err != nil {
		return nil, err
	}
	return w.evalExpr(expr)
}

func (w *abiWriter) evalExpr(e ast.Expr) (constant.Value, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0), nil
	case *ast.ParenExpr:
		return w.evalExpr(e.X)
	case *ast.Ident:
		if v, ok := w.values[e.Name]; ok {
			return v, nil
		}
		return nil, fmt.Errorf("unknown name %s", e.Name)
	case *ast.UnaryExpr:
		x, err := w.evalExpr(e.X)
		if err != nil {
			return nil, err
		}
		return constant.UnaryOp(e.Op, x, 0), nil
	case *ast.BinaryExpr:
		x, err := w.evalExpr(e.X)
		if err != nil {
			return nil, err
		}
		y, err := w.evalExpr(e.Y)
		if err != nil {
			return nil, err
		}
		if e.Op == token.SHL || e.Op == token.SHR {
			n, _ := constant.Uint64Val(y)
			v, _ := constant.Int64Val(constant.Shift(x, e.Op, uint(n)))
			return constant.MakeInt64(int64(int32(v))), nil // an int, as in C
		}
		return constant.BinaryOp(x, e.Op, y), nil
	}
	return nil, fmt.Errorf("expression %T is not understood", e)
}

// constantMacro says whether a macro belongs into the interface: a number, a
// handle or another name for an enumerator.
func constantMacro(name, value string) bool {
	if value == "" || (!strings.HasPrefix(name, "CU_") && !strings.HasPrefix(name, "CUDA_")) {
		return false
	}
	return name != "CUDA_CB"
}

// macros prints the constants that the header gives as macros.
func (w *abiWriter) macros(h *header) {
	for _, name := range h.order {
		if constantMacro(name, h.macros[name]) {
			w.printf("#define %s %s\n", name, h.macros[name])
		}
	}
}

// aliases prints the names that a program writes and the exported names that
// they stand for, with and without per-thread default streams.
func (w *abiWriter) aliases(plain, perThread *header) {
	get := func(h *header) map[string]string {
		out := map[string]string{}
		for name, value := range h.macros {
			if strings.HasPrefix(name, "cu") && value != "" && name[2] >= 'A' && name[2] <= 'Z' {
				// `#define cuX __CUDA_API_PTSZ(cuX_v2)`: what it means in this run.
				flavour := ""
				if inner, ok := strings.CutPrefix(value, "__CUDA_API_PTSZ("); ok {
					value, flavour = strings.TrimSuffix(inner, ")"), "_ptsz"
				} else if inner, ok := strings.CutPrefix(value, "__CUDA_API_PTDS("); ok {
					value, flavour = strings.TrimSuffix(inner, ")"), "_ptds"
				}
				if h == perThread {
					value += flavour
				}
				if value != name {
					out[name] = value
				}
			}
		}
		return out
	}
	p, t := get(plain), get(perThread)
	delete(t, "cuGetProcAddress_v2") // an inline function there
	delete(p, "cuGetProcAddress")
	delete(t, "cuGetProcAddress")
	var same, onlyPlain, onlyThread []string
	for name, value := range p {
		if t[name] == value {
			same = append(same, name)
		} else {
			onlyPlain = append(onlyPlain, name)
		}
	}
	for name, value := range t {
		if p[name] != value {
			onlyThread = append(onlyThread, name)
		}
	}
	list := func(names []string, of map[string]string) {
		sort.Strings(names)
		for _, n := range names {
			w.printf("#define %s %s\n", n, of[n])
		}
	}
	w.printf("#ifndef VGPU_CUDA_ABI_EXPORTS\n")
	list(same, p)
	w.printf("#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM\n")
	list(onlyThread, t)
	w.printf(`static inline CUresult vgpu_abi_get_proc_address_ptsz(const char *symbol, void **pfn, int version, cuuint64_t flags,
		CUdriverProcAddressQueryResult *status)
{
	if ((flags & (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)) == 0)
		flags |= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	return cuGetProcAddress_v2(symbol, pfn, version, flags, status);
}
#define cuGetProcAddress vgpu_abi_get_proc_address_ptsz
#else
`)
	list(onlyPlain, p)
	w.printf("#define cuGetProcAddress cuGetProcAddress_v2\n#endif\n#endif\n")
}
