// SPDX-License-Identifier: Apache-2.0

// Command conformance runs suites that nobody here wrote with containerd's own
// runc shim and with ours, and compares. docs/conformance.md tells what came of
// it; make conformance builds and runs it. It needs root.
//
// A run of one suite with one runtime happens in a box (integration/box), with a daemon, a
// registry and a vgpud of its own. A test whose outcome differs from that with
// runc's shim is run again; a difference that stays needs a line with its cause
// in differences.tsv, or the program fails.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/vgpu-shim/vgpu/integration/box"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case effectiveUID: // in the image nonewprivs
			fmt.Printf("Effective uid: %d\n", os.Geteuid())
			return
		case box.InitArg:
			status, err := box.Init(os.Args[2:])
			if err != nil {
				fmt.Fprintln(os.Stderr, "conformance: init:", err)
			}
			os.Exit(status)
		case "inside":
			if err := runInside(context.Background(), parseInside(os.Args[2:])); err != nil {
				fmt.Fprintln(os.Stderr, "conformance: inside:", err)
				os.Exit(1)
			}
			return
		}
	}
	var o options
	flag.BoolVar(&o.short, "short", false, "a fixed list of the most telling tests, in a minute and a half")
	flag.StringVar(&o.out, "out", "build/conformance", "folder for the output of the runs")
	flag.StringVar(&o.causes, "differences", "integration/conformance/differences.tsv", "the known differences and their causes")
	flag.StringVar(&o.doc, "doc", "", "write the tables to this file (a whole run only)")
	flag.StringVar(&o.only, "only", "", "suites, versions and runtimes to run, such as client-2.4.2-with: a regular expression")
	flag.StringVar(&o.tests, "tests", "", "tests to run: a regular expression of the suite's")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := conform(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "conformance: failed:", err)
		os.Exit(1)
	}
}
