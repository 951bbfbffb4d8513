// SPDX-License-Identifier: Apache-2.0

package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// insideArg is the first argument of a program in its box.
const insideArg = "inside"

// Main runs this program again in a box of a name, and calls inside there, with the
// arguments that the program has outside. It is called first thing in main or TestMain,
// and returns the status to exit with: what inside says, and not 0 with an error, which
// is printed.
func Main(name string, inside func() (status int, err error)) int {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case InitArg:
			status, err := Init(os.Args[2:])
			return say(name+": the box", status, err)
		case insideArg:
			os.Args = append(os.Args[:1], os.Args[2:]...)
			status, err := inside()
			return say(name, status, err)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := Run(ctx, name, os.Stdout, append([]string{insideArg}, os.Args[1:]...)...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode()
	}
	return say(name+": the box", 0, err)
}

// say tells of an error, with which no status is 0.
func say(who string, status int, err error) int {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", who, err)
		status = max(status, 1)
	}
	return status
}
