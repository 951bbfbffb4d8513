// SPDX-License-Identifier: Apache-2.0

// Package cases lists programs that behave the same with the driver library as
// without it. The library's tests run them on the simulated driver, and
// integration/hardware on a real one too.
package cases

// Trap is a program that does something odd around CUDA
// (../testdata/traps/PROGRAM.c) and says what came of it.
type Trap struct {
	Name, Program string
	Clients       int32    // processes that call cuInit, each once
	Plugin        string   // a library, built from PLUGIN.c: its path is the first argument
	Args, Env     []string // Env is of this machine (Debian 12)
}

// preloads are the allocators that a trap is also run under, where Debian keeps them.
const preloads = "LD_PRELOAD=/usr/lib/x86_64-linux-gnu/"

// Traps are all of them that need nobody who leads them.
func Traps() []Trap {
	return []Trap{
		{Name: "vfork and exec, posix_spawn", Program: "vfork", Clients: 3},
		{Name: "fork while threads wait", Program: "fork_waiting", Clients: 1},
		{Name: "threads cancelled at the gate", Program: "cancel", Clients: 1},
		{Name: "threads that end at once", Program: "thread_exit", Clients: 1},
		{Name: "threads that end at once, under jemalloc", Program: "thread_exit", Clients: 1, Env: []string{preloads + "libjemalloc.so.2"}},
		{Name: "threads that end at once, under tcmalloc", Program: "thread_exit", Clients: 1, Env: []string{preloads + "libtcmalloc_minimal.so.4"}},
		{Name: "a storm of signals", Program: "signals", Clients: 1},
		{Name: "exec from a thread", Program: "exec_thread", Clients: 2},
		{Name: "_exit in a thread", Program: "exit_thread", Clients: 1},
		{Name: "environment", Program: "environment", Clients: 1},
		{Name: "environment that names GPUs", Program: "environment", Clients: 1, Env: []string{"CUDA_VISIBLE_DEVICES=0"}},
		{Name: "CUDA calls in host functions", Program: "host_function", Clients: 1},
		{Name: "dlclose and dlopen again", Program: "dlclose", Clients: 1},
		{Name: "RTLD_DEEPBIND", Program: "deepbind", Clients: 1},
		{Name: "dlmopen", Program: "dlmopen", Clients: 1},
		{Name: "two copies", Program: "two_copies", Clients: 2},
		{Name: "memory of the device is not managed", Program: "plain_memory", Clients: 1},
		{Name: "names that begin as the driver's do", Program: "lookalikes", Clients: 1, Plugin: "lookalikes_plugin"},
		{Name: "RTLD_NOW with a name that is missing", Program: "unresolved", Clients: 0, Plugin: "unresolved_plugin"},
		{Name: "many processes at once", Program: "crowd", Clients: 20, Args: []string{"20"}},
	}
}
