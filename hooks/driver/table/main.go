// SPDX-License-Identifier: Apache-2.0

// Command table generates what libvgpu-cuda.so knows about the CUDA driver API.
//
//	table fetch -header cuda.h -typedefs cudaTypedefs.h -names cuda_names.txt -tsv cuda.tsv -abi cuda_abi.h
//	table hooks -tsv cuda.tsv -out hooks/driver/gen -exports integration/simgpu -coverage docs/cuda-coverage.md
//	table nvml -header nvml.h -names names -out hooks/driver/nvml
//
// fetch reads NVIDIA's public header (it is brought by `make generate`, and is
// not kept in this tree) and a list of exported names, and writes our own table
// and our own header of the binary interface. hooks reads only that table, so
// that every later step works without the header. nvml does the like for
// libvgpu-nvml.so, in one step, as its header comes with a Go module. README.md,
// one folder up, says how to change what a step decides.
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
		return errors.New("usage: table fetch|hooks|nvml [flags]")
	}
	fs := flag.NewFlagSet("table "+args[0], flag.ExitOnError)
	tsv := fs.String("tsv", "hooks/driver/cuda.tsv", "the table")
	switch args[0] {
	case "fetch":
		header := fs.String("header", "", "path of cuda.h")
		typedefs := fs.String("typedefs", "", "path of cudaTypedefs.h")
		names := fs.String("names", "", "list of exported names, one a line")
		abi := fs.String("abi", "hooks/driver/cuda_abi.h", "the header of the binary interface, to write")
		cc := fs.String("cc", "cc", "C compiler: preprocesses the header and checks the result against it")
		_ = fs.Parse(args[1:])
		if *header == "" || *typedefs == "" {
			return errors.New("fetch: -header and -typedefs are needed")
		}
		return fetch(fetchConfig{cc: *cc, header: *header, typedefs: *typedefs, names: *names, tsv: *tsv, abi: *abi})
	case "hooks":
		out := fs.String("out", "hooks/driver/gen", "folder for the library's generated files")
		exports := fs.String("exports", "integration/simgpu", "folder for the simulated driver's export list")
		about := fs.String("coverage", "docs/cuda-coverage.md", "the document about every name, to write")
		_ = fs.Parse(args[1:])
		return hooks(*tsv, *out, *exports, *about)
	case "nvml":
		header := fs.String("header", "", "path of nvml.h")
		names := fs.String("names", "", "list of exported names, one a line")
		out := fs.String("out", "hooks/driver/nvml", "folder of the take-over of NVML: gets nvml.tsv, nvml_abi.h and gen/")
		cc := fs.String("cc", "cc", "C compiler: preprocesses the header")
		_ = fs.Parse(args[1:])
		if *header == "" || *names == "" {
			return errors.New("nvml: -header and -names are needed")
		}
		return nvml(*cc, *header, *names, *out)
	}
	return fmt.Errorf("unknown step %q: use fetch, hooks or nvml", args[0])
}
