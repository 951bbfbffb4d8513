// SPDX-License-Identifier: Apache-2.0

// Command gocgo adds vectors by cgo, linked with the driver: gocgo N, with N pairs
// of goroutines.
//
// Its goroutines are not bound to threads: what one submits another collects, and
// the scheduler moves them between threads as it likes.
package main

/*
#include "adder.h"
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
)

func main() {
	n, err := strconv.Atoi(os.Args[1])
	if err != nil || C.adder_open(nil, 0) != 0 {
		os.Exit(1)
	}
	var all sync.WaitGroup
	for range n {
		a := C.adder_new()
		if a == nil {
			os.Exit(1)
		}
		submitted, collected := make(chan struct{}), make(chan struct{})
		all.Go(func() {
			for seed := range C.uint(C.ADDER_SUMS) {
				must(C.adder_submit(a, seed))
				submitted <- struct{}{}
				runtime.Gosched()
				<-collected
			}
			close(submitted)
		})
		all.Go(func() {
			first := true
			for range submitted {
				must(C.adder_collect(a))
				if first {
					must(C.adder_meet())
				}
				first = false
				collected <- struct{}{}
			}
		})
	}
	all.Wait()
	fmt.Println(`{"ok":true}`)
}

func must(result C.int) {
	if result != 0 {
		os.Exit(1)
	}
}
