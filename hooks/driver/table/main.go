// SPDX-License-Identifier: Apache-2.0

// Command table generates what libvgpu-cuda.so knows about the CUDA driver API.
//
//	table fetch -header cuda.h -names cuda_names.txt -tsv cuda.tsv -abi cuda_abi.h
//	table hooks -tsv cuda.tsv -out hooks/driver/gen -exports integration/simgpu -coverage docs/cuda-coverage.md
//
// fetch reads NVIDIA's public header (it is brought by `make generate`, and is
// not kept in this tree) and a list of exported names, and writes our own table
// and our own header of the binary interface. hooks reads only that table, so
// that every later step works without the header. README.md, one folder up,
// says how to change what either step decides.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: table fetch|hooks [flags]")
	}
	fs := flag.NewFlagSet("table "+args[0], flag.ExitOnError)
	tsv := fs.String("tsv", "hooks/driver/cuda.tsv", "the table")
	switch args[0] {
	case "fetch":
		header := fs.String("header", "", "path of cuda.h")
		names := fs.String("names", "", "list of exported names, one a line")
		abi := fs.String("abi", "hooks/driver/cuda_abi.h", "the header of the binary interface, to write")
		cc := fs.String("cc", "cc", "C compiler: preprocesses the header and checks the result against it")
		_ = fs.Parse(args[1:])
		if *header == "" {
			return errors.New("fetch: -header is needed")
		}
		return fetch(fetchConfig{cc: *cc, header: *header, names: *names, tsv: *tsv, abi: *abi})
	case "hooks":
		out := fs.String("out", "hooks/driver/gen", "folder for the library's generated files")
		exports := fs.String("exports", "integration/simgpu", "folder for the simulated driver's export list")
		about := fs.String("coverage", "docs/cuda-coverage.md", "the document about every name, to write")
		_ = fs.Parse(args[1:])
		return hooks(*tsv, *out, *exports, *about)
	}
	return fmt.Errorf("unknown step %q: use fetch or hooks", args[0])
}
