// SPDX-License-Identifier: Apache-2.0

// Command tool writes the archive of the chart's image, for make image.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"

	"github.com/vgpu-shim/vgpu/integration/image"
)

func main() {
	o := image.Options{}
	flag.StringVar(&o.From, "from", ".", "tree that was built")
	flag.StringVar(&o.Tag, "tag", "", "name and tag of the image")
	flag.StringVar(&o.Version, "version", "", "the product's version")
	flag.StringVar(&o.Commit, "commit", "", "the product's commit")
	flag.StringVar(&o.Arch, "arch", runtime.GOARCH, "architecture of the programs")
	out := flag.String("out", "", "archive that is written")
	flag.Parse()
	if err := image.Write(o, *out); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}
