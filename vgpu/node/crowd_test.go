// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Hundreds of processes connect, take turns, fork, exit and are killed, while
// vGPUs are made and removed and vgpud is stopped and started again. It is in this
// process, so that the race detector sees it. In the end everybody who was not
// killed has done its work, and nothing is left of anybody.
func TestACrowdComesAndGoes(t *testing.T) {
	const (
		tenants   = 24
		atOnce    = 150
		processes = 500
		restarts  = 3
		submits   = 20
	)
	stress := buildStress(t, "-DCROWD")
	n := newNode(t, settings{gpus: 2, quantum: time.Millisecond, quiet: true})
	witness := filepath.Join(t.TempDir(), "witness")
	mapStressWitness(t, witness)
	dirs := make([]string, tenants)
	for i := range dirs {
		dirs[i] = n.create(fmt.Sprint("crowd", i))
	}

	random := rand.New(rand.NewPCG(1, 2))
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		alive   = make(map[*exec.Cmd]bool)
		ended   int
	)
	places := make(chan struct{}, atOnce)
	start := func(tenant int) {
		places <- struct{}{}
		cmd := exec.Command(stress, dirs[tenant], witness, fmt.Sprint(tenant), "2", fmt.Sprint(submits))
		mu.Lock()
		defer mu.Unlock()
		if err := cmd.Start(); err != nil {
			t.Error(err)
			<-places
			return
		}
		alive[cmd] = true
		running.Add(1)
		go func() {
			defer running.Done()
			err := cmd.Wait()
			mu.Lock()
			killed := !alive[cmd]
			delete(alive, cmd)
			ended++
			mu.Unlock()
			<-places
			var exit *exec.ExitError
			if err != nil && (!killed || !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL) {
				t.Errorf("a process that was not killed ended with %v", err)
			}
		}()
	}
	t.Cleanup(func() { // after a failure in between
		mu.Lock()
		for cmd := range alive {
			_ = cmd.Process.Kill()
		}
		mu.Unlock()
		running.Wait()
	})
	for i := range processes {
		start(random.IntN(tenants))
		if random.IntN(5) == 0 {
			mu.Lock()
			for cmd := range alive { // any of them
				alive[cmd] = false
				_ = cmd.Process.Kill()
				break
			}
			mu.Unlock()
		}
		if i%40 == 0 { // beside them, one whose vGPU comes and goes
			name := fmt.Sprint("passing", i)
			n.create(name)
			n.delete(name)
		}
		if i%(processes/(restarts+1)) == processes/(restarts+1)-1 && i < processes-1 {
			n.stop()
			n.start()
		}
	}
	running.Wait()

	n.until("nothing is left of anybody", func() bool {
		for i := range dirs {
			if v := n.vgpu(fmt.Sprint("crowd", i)); v.GetClients() != 0 || v.GetState() != "UNBOUND" {
				return false
			}
		}
		return n.gpu(0).GetState() == "FREE" && n.gpu(1).GetState() == "FREE"
	})
	if err := n.daemon.call(func(l *loop) {
		if len(l.pages) != 0 || len(l.timers) != 0 {
			t.Errorf("%d pages and %d timers are left", len(l.pages), len(l.timers))
		}
	}); err != nil {
		t.Error(err)
	}
	t.Logf("%d processes", ended)
}
