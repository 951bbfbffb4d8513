// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/sirupsen/logrus"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
)

// role makes the test binary another program.
const role = "VGPU_NODE_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "client":
		fakeMain()
	case "vgpud":
		daemonMain()
	default:
		os.Exit(m.Run())
	}
}

// patience is how long a test waits for what must happen. Nothing is measured
// by it: it only ends a test that would hang.
const patience = 30 * time.Second

// never is a limit of vgpud that no test comes to: nothing depends on how busy the
// machine is.
const never = 2 * patience

func gpuUUID(n int) string { return gputest.UUID(n) }

// settings of a daemon under test.
type settings struct {
	gpus           int
	capabilities   []string // of the GPUs, see gputest.New
	quantum, drain time.Duration
	stall          time.Duration
	absence        time.Duration
	quiet          bool
	overrun        string
	metrics        string
	// oversubscription of memory, that moves at 400 GiB a second
	oversubscription float64
	edit             func(*loop) // before anything is served
}

func (s settings) config(state string) Config {
	cfg := DefaultConfig()
	cfg.State = state
	cfg.Library.CUDA, cfg.Library.NVML, cfg.Library.OpenCL = state+".so", state+"-nvml.so", ""
	if s.quantum == 0 {
		s.quantum = 10 * time.Second // does not end by itself in a test
	}
	if s.drain == 0 {
		s.drain = time.Minute
	}
	if s.stall != 0 {
		cfg.Engine.Stall = Duration(s.stall)
	}
	if s.overrun != "" {
		cfg.Engine.Overrun = s.overrun
	}
	if s.oversubscription != 0 {
		cfg.Engine.Oversubscription, cfg.Engine.SwapRate = s.oversubscription, "400Gi"
	}
	cfg.Metrics = s.metrics
	cfg.Engine.Quantum, cfg.Engine.DrainDeadline = Duration(s.quantum), Duration(s.drain)
	return cfg
}

// newDaemon makes a daemon with libraries that look like ones.
func newDaemon(cfg Config, gpus gpu.Inventory, log *logrus.Entry) (*Daemon, error) {
	header := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT), Ehsize: 64,
	}
	if runtime.GOARCH == "arm64" {
		header.Machine = uint16(elf.EM_AARCH64)
	}
	var library bytes.Buffer
	if err := binary.Write(&library, binary.LittleEndian, header); err != nil {
		return nil, err
	}
	for _, path := range []string{cfg.Library.CUDA, cfg.Library.NVML} {
		if err := os.WriteFile(path, library.Bytes(), 0o600); err != nil {
			return nil, err
		}
	}
	state, err := OpenState(cfg.State)
	if err != nil {
		return nil, err
	}
	d, err := New(cfg, state, nil, gpus, log, Build{Version: "test"})
	if err != nil {
		return nil, err
	}
	d.loop.lookPatience = never
	return d, nil
}

// daemonMain is a vgpud that can be killed, and may do what systemd's unit lets it.
func daemonMain() {
	if os.Getenv(confined) == "" {
		panic(confine())
	}
	n, _ := strconv.Atoi(os.Getenv("VGPU_NODE_TEST_GPUS"))
	overrun := os.Getenv("VGPU_NODE_TEST_OVERRUN")
	quantum, _ := time.ParseDuration(os.Getenv("VGPU_NODE_TEST_QUANTUM"))
	drain, _ := time.ParseDuration(os.Getenv("VGPU_NODE_TEST_DRAIN"))
	stall, _ := time.ParseDuration(os.Getenv("VGPU_NODE_TEST_STALL"))
	cfg := settings{gpus: n, quantum: quantum, drain: drain, stall: stall, overrun: overrun}.config(os.Getenv("VGPU_NODE_TEST_STATE"))
	if err := cfg.Check(); err != nil {
		panic(err)
	}
	d, err := newDaemon(cfg, gputest.New(n), logrus.NewEntry(logrus.New()))
	if err != nil {
		panic(err)
	}
	d.loop.absence, _ = time.ParseDuration(os.Getenv("VGPU_NODE_TEST_ABSENCE")) // shorter than one can be configured
	late := make(chan os.Signal, 1)
	signal.Notify(late, recoveryIsLate)
	go func() {
		for range late {
			d.loop.poller.post(d.loop.waitsNoLonger)
		}
	}()
	fmt.Println("ready")
	if err := d.Serve(context.Background()); err != nil {
		panic(err)
	}
}

// node is a daemon under test and what talks to it.
type node struct {
	t        *testing.T
	settings settings
	state    string
	daemon   *Daemon // nil if it is another process
	gpus     *gputest.Inventory
	control  v1.ControlClient
	conn     *ttrpc.Client
	stop     func() // clean
	kill     func() // -9; only of a process
	pid      int    // of that process
	created  map[string]string
	quiet    bool
	log      io.Writer // instead of the test's
}

// recoveryIsLate tells a daemon that is another process to wait no longer for
// processes that did not come back.
const recoveryIsLate = syscall.SIGUSR1

// waitsNoLonger lets the time be over that processes have to come back after a restart.
func (l *loop) waitsNoLonger() {
	if l.recovery != nil {
		l.arm(&l.recovery.deadline, l.now())
	}
}

// waitsNoLonger lets the time be over that processes have to come back after a restart.
func (n *node) waitsNoLonger() {
	n.t.Helper()
	var err error
	if n.daemon == nil {
		err = syscall.Kill(n.pid, recoveryIsLate)
	} else {
		err = n.daemon.call((*loop).waitsNoLonger)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// newNode starts a daemon in this process.
func newNode(t *testing.T, s settings) *node {
	t.Helper()
	if s.gpus == 0 {
		s.gpus = 1
	}
	n := &node{t: t, settings: s, state: filepath.Join(t.TempDir(), "vgpu"), created: map[string]string{}}
	n.start()
	t.Cleanup(func() { n.stop() })
	return n
}

// newFuzzNode starts a daemon that serves all inputs of a fuzz target.
func newFuzzNode(t *testing.T, dir string) *node {
	t.Helper()
	n := &node{t: t, settings: settings{gpus: 1}, state: filepath.Join(dir, "vgpu"), created: map[string]string{}, quiet: true}
	n.start()
	n.create("a")
	return n
}

func (n *node) start() {
	n.t.Helper()
	cfg := n.settings.config(n.state)
	if err := cfg.Check(); err != nil {
		n.t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(n.t.Output())
	if n.log != nil {
		log.SetOutput(n.log)
	}
	log.SetLevel(logrus.TraceLevel)
	if n.quiet || n.settings.quiet {
		log = discard().Logger
	}
	n.gpus = gputest.New(n.settings.gpus, n.settings.capabilities...)
	d, err := newDaemon(cfg, n.gpus, logrus.NewEntry(log))
	if err != nil {
		n.t.Fatal(err)
	}
	if n.settings.edit != nil {
		n.settings.edit(d.loop)
	}
	n.daemon = d
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Serve(ctx) }()
	stopped := false
	n.stop = func() {
		if stopped {
			return
		}
		stopped = true
		n.conn.Close()
		cancel()
		if err := <-ended; err != nil {
			n.t.Errorf("vgpud ended with %v", err)
		}
	}
	n.dial(cfg.Socket)
}

// newProcessNode starts a daemon in a process of its own.
func newProcessNode(t *testing.T, s settings) *node {
	t.Helper()
	if s.gpus == 0 {
		s.gpus = 1
	}
	n := &node{t: t, settings: s, state: filepath.Join(t.TempDir(), "vgpu"), created: map[string]string{}}
	n.startProcess()
	t.Cleanup(func() { n.kill() })
	return n
}

func (n *node) startProcess() {
	n.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), role+"=vgpud", "VGPU_NODE_TEST_STATE="+n.state,
		"VGPU_NODE_TEST_GPUS="+strconv.Itoa(n.settings.gpus), "VGPU_NODE_TEST_OVERRUN="+n.settings.overrun,
		"VGPU_NODE_TEST_ABSENCE="+n.settings.absence.String(), "VGPU_NODE_TEST_STALL="+n.settings.stall.String(),
		"VGPU_NODE_TEST_QUANTUM="+n.settings.quantum.String(), "VGPU_NODE_TEST_DRAIN="+n.settings.drain.String())
	cmd.Stderr = n.t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.pid = cmd.Process.Pid
	n.kill = func() {
		n.conn.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		n.t.Fatalf("vgpud said %q (%v)", line, err)
	}
	n.dial(filepath.Join(n.state, "vgpud.sock"))
}

func (n *node) dial(socket string) {
	n.t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		n.t.Fatal(err)
	}
	n.conn = ttrpc.NewClient(conn)
	n.control = v1.NewControlClient(n.conn)
}

func (n *node) request(name string, annotations ...string) *v1.CreateRequest {
	r := &v1.CreateRequest{
		Container: &v1.Container{Containerd: "/run/containerd/containerd.sock", Namespace: "test", Id: name},
		Instance:  name + "-1", Bundle: n.t.TempDir(), DefaultCount: 1, Annotations: map[string]string{},
	}
	for _, a := range annotations {
		k, v, _ := strings.Cut(a, "=")
		r.Annotations["vgpu-shim.dev/"+k] = v
	}
	return r
}

// create makes the vGPU of a container and returns its directory.
func (n *node) create(name string, annotations ...string) string {
	n.t.Helper()
	return n.createInPod(name, nil, annotations...)
}

func (n *node) createInPod(name string, pod *v1.Pod, annotations ...string) string {
	n.t.Helper()
	r := n.request(name, annotations...)
	r.Pod = pod
	resp, err := n.control.Create(n.t.Context(), r)
	if err != nil {
		n.t.Fatal(err)
	}
	dir := resp.GetEdits().GetMounts()[0].GetSource()
	n.created[name] = dir
	return dir
}

func (n *node) delete(name string) {
	n.t.Helper()
	if _, err := n.control.Delete(n.t.Context(), &v1.DeleteRequest{Container: n.request(name).GetContainer()}); err != nil {
		n.t.Fatal(errgrpc.ToNative(err))
	}
}

// vgpu is the vGPU of a container as vgpud shows it; nil if there is none.
func (n *node) vgpu(name string) *v1.VGPU {
	n.t.Helper()
	resp, err := n.control.List(n.t.Context(), &v1.ListRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, v := range resp.GetVgpus() {
		if v.GetContainer().GetId() == name {
			return v
		}
	}
	return nil
}

func (n *node) gpu(i int) *v1.GPU {
	n.t.Helper()
	resp, err := n.control.ListGPUs(n.t.Context(), &v1.ListGPUsRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.GetGpus()[i]
}

// until waits until vgpud shows something.
func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			n.t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(time.Millisecond) // between two looks
	}
}

func (n *node) untilState(name, state string) {
	n.t.Helper()
	n.until(name+" is "+state, func() bool { return n.vgpu(name).GetState() == state })
}

// client is a fake client in its process.
type clientProcess struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	dead  bool
}

// process starts a process in the container name, without a word to vgpud.
func (n *node) process(name string) *clientProcess {
	n.t.Helper()
	return n.started(name, exec.Command("/proc/self/exe"))
}

func (n *node) started(name string, cmd *exec.Cmd) *clientProcess {
	n.t.Helper()
	c := &clientProcess{t: n.t, name: name, lines: make(chan string, 1000), cmd: cmd}
	c.cmd.Env = append(os.Environ(), role+"=client")
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		n.t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	go func() {
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	n.t.Cleanup(c.kill)
	c.expect("ready")
	return c
}

// client starts a process that said HELLO and is bound.
func (n *node) client(name string) *clientProcess {
	n.t.Helper()
	c := n.process(name)
	c.ask("start "+n.created[name], "start: ")
	c.ask("bind", "bind: GPU-")
	return c
}

func (c *clientProcess) tell(cmd string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, cmd+"\n"); err != nil {
		c.t.Fatalf("%s: %v", c.name, err)
	}
}

// expect waits for the line that begins with prefix and returns the rest.
func (c *clientProcess) expect(prefix string) string {
	c.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				c.t.Fatalf("%s: ended, expected %q", c.name, prefix)
			}
			if strings.Contains(line, "error:") && !strings.Contains(prefix, "error:") {
				c.t.Fatalf("%s: %s, expected %q", c.name, line, prefix)
			}
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				return rest
			}
		case <-timeout:
			c.t.Fatalf("%s: nothing came, expected %q", c.name, prefix)
		}
	}
}

func (c *clientProcess) ask(cmd, prefix string) string {
	c.t.Helper()
	c.tell(cmd)
	return c.expect(prefix)
}

// passed says whether the client's work passed the gate without being waited
// for.
func (c *clientProcess) passed() bool {
	c.t.Helper()
	for {
		select {
		case line := <-c.lines:
			if line == "work: passed" {
				return true
			}
		default:
			return false
		}
	}
}

func (c *clientProcess) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// pause stops the process: it does nothing any more when this returns.
func (c *clientProcess) pause() {
	c.t.Helper()
	pause(c.t, c.cmd.Process.Pid)
}

// pause stops a child. A signal alone lets its threads go on for a while.
func pause(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || !status.Stopped() {
			t.Fatalf("process %d did not stop: %v, %#x", pid, err, status)
		}
		return
	}
}

func (c *clientProcess) kill() {
	if c.dead {
		return
	}
	c.dead = true
	_ = c.cmd.Process.Kill()
	var exit *exec.ExitError
	if err := c.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		c.t.Error(err)
	}
}
