// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/request"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// DefaultConfigFile is read if it is there and no other is named.
const DefaultConfigFile = "/etc/vgpu/vgpud.toml"

// Config is vgpud's configuration, as in its TOML file.
type Config struct {
	Version   int             `toml:"version"` // of the format: 1
	GPUs      string          `toml:"gpus"`    // auto, nvml or sim:N
	State     string          `toml:"state"`   // state directory
	Socket    string          `toml:"socket"`  // control API; empty: vgpud.sock in State
	Metrics   string          `toml:"metrics"` // address or path where metrics are served; empty: nowhere
	Library   LibraryConfig   `toml:"library"`
	Simulated SimulatedConfig `toml:"simulated"`
	Engine    EngineConfig    `toml:"engine"`
	Log       LogConfig       `toml:"log"`
}

// LibraryConfig says what goes into containers.
type LibraryConfig struct {
	CUDA   string   `toml:"cuda"`   // libvgpu-cuda.so on this machine
	NVML   string   `toml:"nvml"`   // libvgpu-nvml.so, likewise
	OpenCL string   `toml:"opencl"` // libvgpu-opencl.so, likewise; empty: none
	Musl   string   `toml:"musl"`   // directory of the first two for musl; empty: none
	Dirs   []string `toml:"dirs"`   // library directories of the containers
}

// SimulatedConfig is for gpus = "sim:N".
type SimulatedConfig struct {
	Root    string `toml:"root"`    // of the simulated driver: bin/simgpu, lib/
	Machine string `toml:"machine"` // directory of the machine; empty: sim in State
	// OpenCLCPU: an OpenCL device that is a CPU stands for a vGPU's first GPU.
	OpenCLCPU bool `toml:"opencl_cpu"`
}

// EngineConfig is the node's policy.
type EngineConfig struct {
	Quantum       Duration `toml:"quantum"`
	DrainDeadline Duration `toml:"drain_deadline"`
	QueueBound    Duration `toml:"queue_bound"`
	DrainBudget   Duration `toml:"drain_budget"`
	MinTurn       Duration `toml:"min_turn"`
	Ageing        Duration `toml:"ageing"`
	Window        Duration `toml:"window"`
	Stall         Duration `toml:"stall"`
	Overrun       string   `toml:"overrun"`
	Linger        string   `toml:"linger"`
	SwitchCost    Duration `toml:"switch_cost"`
	// More memory may be reserved than a GPU has by Oversubscription; what does not
	// fit moves at SwapRate bytes a second (a quantity).
	Oversubscription float64  `toml:"oversubscription"`
	SwapRate         string   `toml:"swap_rate"`
	SwapShare        float64  `toml:"swap_share"`
	LongestQuantum   Duration `toml:"longest_quantum"`

	Policy       string   `toml:"policy"`
	Slots        int      `toml:"slots"`
	Absence      string   `toml:"absence"`
	AbsenceAfter Duration `toml:"absence_after"`
	Binding      string   `toml:"binding"`
	Seed         uint64   `toml:"seed"` // of the random binding
}

// arbiter is the engine's form of a configuration that was checked.
func (c EngineConfig) arbiter() arbiter.Config {
	binding, _ := arbiter.ParseBinding(c.Binding)
	overrun, _ := request.ParseOverrun(c.Overrun)
	linger, _ := arbiter.ParseLinger(c.Linger)
	policy, _ := request.ParsePreset(c.Policy)
	return arbiter.Config{
		Quantum: time.Duration(c.Quantum), DrainDeadline: time.Duration(c.DrainDeadline),
		MinTurn: time.Duration(c.MinTurn), Ageing: time.Duration(c.Ageing), Window: time.Duration(c.Window),
		Stall: time.Duration(c.Stall), Overrun: overrun, Linger: linger, SwitchCost: time.Duration(c.SwitchCost),
		Oversubscription: c.Oversubscription, SwapShare: c.SwapShare, LongestQuantum: time.Duration(c.LongestQuantum),
		Policy:  arbiter.Policy{Preset: policy, Slots: c.Slots},
		Binding: binding, Seed: c.Seed,
	}
}

// swaps is how many bytes a second move where memory is oversubscribed; 0: it is not.
func (c EngineConfig) swaps() float64 {
	if c.Oversubscription <= 1 {
		return 0
	}
	rate, _ := request.ParseBytes(c.SwapRate)
	return float64(rate)
}

// What clients do while vgpud is away for long.
const (
	absenceWait = "wait"
	absenceOpen = "open"
)

// absence is after how long clients go on without vgpud; 0: never.
func (c EngineConfig) absence() time.Duration {
	if c.Absence == absenceOpen {
		return time.Duration(c.AbsenceAfter)
	}
	return 0
}

// LogConfig says how vgpud logs.
type LogConfig struct {
	Level  string `toml:"level"`
	Format string `toml:"format"` // text or json
}

// Duration is a time.Duration that is written as "20ms".
type Duration time.Duration

// UnmarshalText reads a Go duration.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// MarshalText writes a Go duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// DefaultConfig is the configuration of a vgpud without a file.
func DefaultConfig() Config {
	return Config{
		Version:   1,
		GPUs:      "auto",
		State:     "/run/vgpu",
		Library:   LibraryConfig{CUDA: "/usr/lib/vgpu/libvgpu-cuda.so", NVML: "/usr/lib/vgpu/libvgpu-nvml.so", OpenCL: "/usr/lib/vgpu/libvgpu-opencl.so", Musl: "/usr/lib/vgpu/musl", Dirs: gpu.LibraryDirs(runtime.GOARCH)},
		Simulated: SimulatedConfig{Root: "/usr/lib/vgpu/simgpu"},
		Engine: EngineConfig{
			Quantum: Duration(arbiter.DefaultQuantum), DrainDeadline: Duration(arbiter.DefaultDrainDeadline),
			QueueBound: Duration(wire.QueueUS * time.Microsecond), DrainBudget: Duration(wire.DrainUS * time.Microsecond),
			MinTurn: Duration(arbiter.DefaultMinTurn), Ageing: Duration(arbiter.DefaultAgeing),
			Window: Duration(arbiter.DefaultWindow), Stall: Duration(arbiter.DefaultStall),
			Overrun: request.Corun.String(), Linger: arbiter.LearnedLinger.String(), SwitchCost: Duration(arbiter.DefaultSwitchCost),
			Oversubscription: 1, SwapRate: "10G", SwapShare: arbiter.DefaultSwapShare, LongestQuantum: Duration(arbiter.DefaultLongest),
			Policy: request.Default.String(), Slots: arbiter.DefaultSlots,
			Absence: absenceWait, AbsenceAfter: Duration(time.Minute),
			Binding: arbiter.LeastWait.String(),
		},
		Log: LogConfig{Level: "info", Format: "text"},
	}
}

// LoadConfig reads a TOML file over the defaults. A key that it does not know
// is an error that names the line. Call Check once flags were applied.
func LoadConfig(path string) (Config, error) {
	c := DefaultConfig()
	data, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("failed to read the configuration: %w", err)
	}
	d := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		var strict *toml.StrictMissingError
		var syntax *toml.DecodeError
		switch {
		case errors.As(err, &strict):
			return c, fmt.Errorf("unknown key in %s:\n%s", path, strict.String())
		case errors.As(err, &syntax):
			return c, fmt.Errorf("wrong value in %s:\n%s", path, syntax.String())
		}
		return c, fmt.Errorf("failed to read %s: %w", path, err)
	}
	return c, nil
}

// maxSocketPath is what fits into a sockaddr_un beside the NUL.
const maxSocketPath = len(unix.RawSockaddrUnix{}.Path) - 1

// Check fills in what follows from other fields and returns all that is wrong.
func (c *Config) Check() error {
	var errs []error
	bad := func(key string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("%s = %q: must be %s", key, fmt.Sprint(value), allowed))
	}
	if c.Version != 1 {
		bad("version", c.Version, "1")
	}
	if c.Socket == "" {
		c.Socket = filepath.Join(c.State, "vgpud.sock")
	}
	if c.Simulated.Machine == "" {
		c.Simulated.Machine = filepath.Join(c.State, "sim")
	}
	if _, _, err := gpu.ParseSource(c.GPUs); err != nil {
		errs = append(errs, err)
	}
	for _, p := range []struct {
		key   string
		value *string
	}{
		{"state", &c.State},
		{"socket", &c.Socket},
		{"library.cuda", &c.Library.CUDA},
		{"library.nvml", &c.Library.NVML},
		{"simulated.root", &c.Simulated.Root},
		{"simulated.machine", &c.Simulated.Machine},
	} {
		if !filepath.IsAbs(*p.value) {
			bad(p.key, *p.value, "an absolute path")
		}
		*p.value = filepath.Clean(*p.value)
	}
	if len(c.Socket) > maxSocketPath {
		bad("socket", c.Socket, fmt.Sprintf("at most %d bytes long, as Linux takes no more: choose a shorter --state or --socket", maxSocketPath))
	}
	if allowed := checkMetrics(c.Metrics); allowed != "" {
		bad("metrics", c.Metrics, allowed)
	}
	for _, p := range []struct {
		key   string
		value *string
	}{{"library.musl", &c.Library.Musl}, {"library.opencl", &c.Library.OpenCL}} {
		if *p.value == "" {
			continue
		}
		if !filepath.IsAbs(*p.value) {
			bad(p.key, *p.value, "an absolute path, or empty")
		}
		*p.value = filepath.Clean(*p.value)
	}
	if len(c.Library.Dirs) == 0 {
		bad("library.dirs", "", "a list of absolute paths, not empty")
	}
	dirs := make([]string, 0, len(c.Library.Dirs))
	for _, d := range c.Library.Dirs {
		if !filepath.IsAbs(d) {
			bad("library.dirs", d, "an absolute path")
		}
		dirs = append(dirs, filepath.Clean(d))
	}
	c.Library.Dirs = dirs
	if q := time.Duration(c.Engine.Quantum); q < request.MinQuantum || q > request.MaxQuantum {
		bad("engine.quantum", q, fmt.Sprintf("from %s to %s", request.MinQuantum, request.MaxQuantum))
	}
	for _, d := range []struct {
		key        string
		value      Duration
		least, top time.Duration
	}{
		{"engine.drain_deadline", c.Engine.DrainDeadline, 10 * time.Millisecond, 5 * time.Minute},
		{"engine.queue_bound", c.Engine.QueueBound, time.Millisecond, 10 * time.Second},
		{"engine.drain_budget", c.Engine.DrainBudget, 100 * time.Microsecond, time.Duration(c.Engine.QueueBound)},
		{"engine.min_turn", c.Engine.MinTurn, 100 * time.Microsecond, time.Second},
		{"engine.ageing", c.Engine.Ageing, 10 * time.Millisecond, time.Hour},
		{"engine.window", c.Engine.Window, 10 * time.Millisecond, time.Hour},
		{"engine.stall", c.Engine.Stall, time.Millisecond, time.Minute},
		{"engine.switch_cost", c.Engine.SwitchCost, time.Microsecond, 100 * time.Millisecond},
		{"engine.longest_quantum", c.Engine.LongestQuantum, time.Duration(c.Engine.Quantum), 10 * time.Minute},
		{"engine.absence_after", c.Engine.AbsenceAfter, time.Second, 24 * time.Hour},
	} {
		if v := time.Duration(d.value); v < d.least || v > d.top {
			bad(d.key, v, fmt.Sprintf("from %s to %s", d.least, d.top))
		}
	}
	if o := c.Engine.Oversubscription; !(o >= 1 && o <= 100) { // also not a number
		bad("engine.oversubscription", o, "from 1 to 100")
	}
	if rate, ok := request.ParseBytes(c.Engine.SwapRate); !ok || rate < 1<<20 {
		bad("engine.swap_rate", c.Engine.SwapRate, "a quantity of bytes a second, such as 10G, and 1Mi at least")
	}
	if s := c.Engine.SwapShare; !(s >= .001 && s <= .5) {
		bad("engine.swap_share", s, "from 0.001 to 0.5")
	}
	if _, err := arbiter.ParseBinding(c.Engine.Binding); err != nil {
		bad("engine.binding", c.Engine.Binding, "one of "+strings.Join(arbiter.Bindings(), ", "))
	}
	if _, err := request.ParseOverrun(c.Engine.Overrun); err != nil {
		bad("engine.overrun", c.Engine.Overrun, "one of "+strings.Join(request.Overruns(), ", "))
	}
	if l, err := arbiter.ParseLinger(c.Engine.Linger); err != nil || l > arbiter.Linger(time.Second) {
		bad("engine.linger", c.Engine.Linger, `"learned", "never" or a duration up to 1s`)
	}
	if _, err := request.ParsePreset(c.Engine.Policy); err != nil {
		bad("engine.policy", c.Engine.Policy, "one of "+strings.Join(request.Presets(), ", "))
	}
	if n := c.Engine.Slots; n < 1 || n > arbiter.MaxSlots {
		bad("engine.slots", n, fmt.Sprintf("from 1 to %d", arbiter.MaxSlots))
	}
	if a := c.Engine.Absence; a != absenceWait && a != absenceOpen {
		bad("engine.absence", a, absenceWait+" or "+absenceOpen)
	}
	if c.Log.Format != "text" && c.Log.Format != "json" {
		bad("log.format", c.Log.Format, "text or json")
	}
	switch strings.ToLower(c.Log.Level) {
	case "trace", "debug", "info", "warn", "error":
	default:
		bad("log.level", c.Log.Level, "trace, debug, info, warn or error")
	}
	return errors.Join(errs...)
}
