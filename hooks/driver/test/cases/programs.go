// SPDX-License-Identifier: Apache-2.0

package cases

// Program is a test program of the simulated driver (integration/simgpu/testdata),
// and how it is run behind the library. Its first argument is the folder of the
// kernels.
type Program struct {
	Name      string
	Args, Env []string
	Says      string
	Machine   []string // options of its simulated machine
	Processes int      // that use the driver; 0 is one
	NotHere   string   // why it is not run
}

// Programs are all of them.
func Programs() []Program {
	return []Program{
		{Name: "arrays"},
		{Name: "attach"},
		{Name: "batches"},
		{Name: "boxes"},
		{Name: "capture"},
		{Name: "errors"},
		{Name: "graph_capture"},
		{Name: "graph_change"},
		{Name: "graph_events"},
		{Name: "graph_memory"},
		{Name: "graph_shape"},
		{Name: "green"},
		{Name: "huge"},
		{Name: "launch_v1"},
		{Name: "managed"},
		{Name: "many", Machine: []string{"--gpus", "2"}},
		{Name: "memory"},
		{Name: "module_memory"},
		{Name: "pools"},
		{Name: "procaddr"},
		{Name: "share", Processes: 2},
		{Name: "spin", Args: []string{"20", "100"}},
		{Name: "stamps"},
		{Name: "streams"},
		{Name: "user_objects"},
		{Name: "v1"},
		{Name: "vecadd"},
		{Name: "vmm"},
		{Name: "wild"},
		{Name: "numba", Env: []string{"NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM=0"}, Says: "numba ok"},
		{Name: "numba", Env: []string{"NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM=1"}, Says: "numba ok"},

		{Name: "devices", NotHere: "prints names, which are not the driver's own on purpose; each machine here is asked by it"},
		{Name: "endless", NotHere: "never ends"},
		{Name: "faults", NotHere: "counts allocations and times, of a machine with injected faults"},
		{Name: "ipc", NotHere: "two programs that are led through; what is shared is a case of the ledger's tests"},
		{Name: "lost", NotHere: "is led through while its GPU is lost"},
		{Name: "meet", NotHere: "a kernel waits for one that the end of the turn may hold back: vgpud's drain limit is for that"},
		{Name: "mode", NotHere: "prints compute modes, of a machine that is changed meanwhile"},
		{Name: "pids", NotHere: "is about NVML"},
		{Name: "swap", NotHere: "is led through, beside another; the benchmark has two jobs that do not fit"},
		{Name: "queue", NotHere: "expects to fill the driver's own queue without being held"},
	}
}
