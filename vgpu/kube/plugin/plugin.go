// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/claim"
	"github.com/vgpu-shim/vgpu/vgpu/kube"
)

// Plugin is a running device plugin.
type Plugin struct {
	cfg     Config
	metrics metrics

	mu      sync.Mutex
	now     state
	changed chan struct{} // closed when now changes, and made anew
	news    chan struct{} // there is something to look at

	// Of the one goroutine that looks.
	serving    *serving    // nil: kubelet does not know the plugin
	file       os.FileInfo // of the checkpoint that was read last; nil: there was none
	checkpoint *checkpoint // nil: none was read
	told       told
	said       string // what went wrong last

	ctx context.Context // of what runs beside it
	wg  sync.WaitGroup
}

// told is of what vgpud was told last.
type told struct {
	checkpoint *checkpoint
	live       map[string]bool
	state      state
}

// state is what vgpud said last.
type state struct {
	gpus   []*v1.GPU         // nil: nothing yet. Never changed in place
	found  int               // how often a vgpud was found
	there  bool              // vgpud answers
	absent bool              // it has not for long
	rivals map[string]string // who else offers a GPU, by UUID, as the API server says; nil: it was not asked yet
}

type metrics struct {
	containers    prometheus.Gauge
	registrations prometheus.Counter
}

func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "vgpu_kubelet_containers", Help: "Containers on this node that were given GPUs by their limits."}),
		prometheus.NewCounter(prometheus.CounterOpts{Name: "vgpu_kubelet_registrations_total", Help: "How often kubelet was told of the device plugin: once, and once for each later kubelet."}),
	}
	if r != nil {
		r.MustRegister(m.containers, m.registrations)
	}
	return m
}

const (
	// lookInterval is how often it is looked for what nobody tells of, as a directory
	// that was made anew.
	lookInterval = 2 * time.Second
	// redialInterval is the pause between two tries to reach vgpud.
	redialInterval = 250 * time.Millisecond
	// rivalTimeout is for the API server's answer.
	rivalTimeout = 10 * time.Second
)

// Run runs the plugin until ctx ends. cfg was checked.
func Run(ctx context.Context, cfg Config) error {
	p := &Plugin{cfg: cfg, metrics: newMetrics(cfg.Metrics), changed: make(chan struct{}), news: make(chan struct{}, 1)}
	var stop context.CancelFunc
	p.ctx, stop = context.WithCancel(ctx)
	defer func() {
		if p.serving != nil {
			p.serving.stop()
		}
		stop()
		p.wg.Wait()
	}()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("failed to watch kubelet: %w", err)
	}
	defer watcher.Close()
	for flag, dir := range map[string]string{"device-plugins-dir": cfg.Dir, "pods-dir": cfg.PodsDir} {
		if err := watcher.Add(dir); err != nil {
			return fmt.Errorf("failed to watch %s, which kubelet makes: %w; if it is elsewhere, name it with --%s", dir, err, flag)
		}
	}
	p.sweep()
	if cfg.Client != nil && !cfg.AllowContested {
		p.wg.Go(p.watchRivals)
	} else {
		p.now.rivals = map[string]string{}
	}
	p.wg.Go(p.watchVgpud)
	again := time.NewTicker(lookInterval)
	defer again.Stop()
	for {
		select {
		case <-watcher.Events:
		case err := <-watcher.Errors:
			cfg.Log.WithError(err).Debug("lost what happened in kubelet's directories: look")
		case <-p.news:
		case <-again.C:
			// Nothing changes if they are watched already. If they are not there,
			// kubelet is not.
			_, _ = watcher.Add(cfg.Dir), watcher.Add(cfg.PodsDir)
		case <-ctx.Done():
			return nil
		}
		if err := p.look(); err != nil {
			return err
		}
	}
}

// look does what is to be done. An error is final.
func (p *Plugin) look() error {
	now, _ := p.state()
	if now.gpus == nil || now.rivals == nil {
		return nil
	}
	if len(now.rivals) > 0 {
		uuid := slices.Sorted(maps.Keys(now.rivals))[0]
		return &refused{contested(now.rivals[uuid], uuid)}
	}
	if err := p.lookAtPods(now); err != nil {
		if _, final := errors.AsType[*refused](err); final {
			return err
		}
		p.failed(err)
		return nil
	}
	if err := p.lookAtKubelet(); err != nil {
		p.failed(err)
		return nil
	}
	p.said = ""
	return nil
}

// failed logs what will be tried again, once.
func (p *Plugin) failed(err error) {
	if text := err.Error(); text != p.said && p.ctx.Err() == nil {
		p.said = text
		p.cfg.Log.WithError(err).Warn("tried again soon")
	}
}

// refused is why this node can not be served.
type refused struct{ error }

// contested says that somebody else offers a GPU, under the name that he has there.
func contested(who, name string) error {
	return fmt.Errorf("%s is offered to Kubernetes by %s as well: each GPU of this node would be given away twice. Keep %s away from this node, "+
		"or the device plugin, or start it with --allow-contested; kubelet forgets a device plugin five minutes after its end, a driver after 30 seconds", name, who, who)
}

// lookAtPods tells vgpud of pods that have come or gone.
func (p *Plugin) lookAtPods(now state) error {
	if err := p.read(); err != nil {
		return err
	}
	is := told{p.checkpoint, p.live(p.checkpoint), now}
	if is.checkpoint == p.told.checkpoint && maps.Equal(is.live, p.told.live) && now.found == p.told.state.found && slices.EqualFunc(now.gpus, p.told.state.gpus, identical) {
		return nil
	}
	if p.told.checkpoint == nil {
		if err := p.alone(); err != nil {
			return err
		}
	}
	if resource, unit := is.checkpoint.others(now.gpus); resource != "" && !p.cfg.AllowContested {
		return &refused{contested(resource, unit)}
	}
	if err := p.tell(is.checkpoint, is.live, now.gpus); err != nil {
		return err
	}
	p.told = is
	return nil
}

// read reads the checkpoint if it has changed.
func (p *Plugin) read() error {
	is, err := os.Stat(filepath.Join(p.cfg.Dir, checkpointFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("failed to look at kubelet's checkpoint: %w", err)
	}
	if p.checkpoint != nil && sameFile(is, p.file) {
		return nil
	}
	c, err := readCheckpoint(p.cfg.Dir)
	if err != nil {
		return err
	}
	// If it was replaced in between it is read once more.
	p.file, p.checkpoint = is, c
	return nil
}

// alone refuses a node on which pods have GPUs by claims.
func (p *Plugin) alone() error {
	var by string
	err := p.cfg.Address.Ask(p.ctx, func(ctx context.Context, client v1.ControlClient) error {
		list, err := client.List(ctx, &v1.ListRequest{})
		for _, v := range list.GetVgpus() {
			if slices.ContainsFunc(v.GetClaims(), func(c *v1.ClaimPointer) bool { return !claim.IsOfLimits(c.GetClaim()) }) {
				by = v.GetPod().GetNamespace() + "/" + v.GetPod().GetName()
			}
		}
		return err
	})
	if err == nil && by != "" {
		return &refused{fmt.Errorf("pods of this node have GPUs by claims, as %s has: the device plugin would give them away once more. "+
			"Stop the DRA driver (vgpu-kubelet without device-plugin) here and delete these pods first", by)}
	}
	return err
}

// identical says whether two GPUs are the same in what units are made of.
func identical(a, b *v1.GPU) bool {
	return a.GetUuid() == b.GetUuid() && a.GetMemoryBytes() == b.GetMemoryBytes() && a.GetPciBusId() == b.GetPciBusId()
}

func sameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// lookAtKubelet registers with a kubelet that does not know the plugin: it forgets all
// when it starts, and removes our sockets.
func (p *Plugin) lookAtKubelet() error {
	is, err := os.Stat(p.kubeletSocket())
	if err != nil {
		return fmt.Errorf("kubelet is not there: %w", err)
	}
	if p.serving != nil && sameFile(is, p.serving.kubelet) {
		return nil
	}
	if p.serving != nil {
		p.serving.stop()
		p.serving = nil
	}
	if p.serving, err = p.register(is); err != nil {
		p.serving = nil
		return err
	}
	p.metrics.registrations.Inc()
	p.cfg.Log.Info("kubelet knows the device plugin")
	return nil
}

// state is what vgpud said last; the channel is closed when it says more.
func (p *Plugin) state() (state, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now, p.changed
}

func (p *Plugin) update(change func(*state)) {
	p.mu.Lock()
	change(&p.now)
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// watchVgpud follows vgpud's GPUs, over its restarts.
func (p *Plugin) watchVgpud() {
	var said string
	absent := time.AfterFunc(p.cfg.Absence, func() { p.update(func(s *state) { s.absent = !s.there }) })
	defer absent.Stop()
	for p.ctx.Err() == nil {
		first := true
		err := p.cfg.Address.Follow(p.ctx, func(info *v1.InfoResponse, gpus []*v1.GPU) {
			if gpus == nil {
				gpus = []*v1.GPU{}
			}
			if first {
				absent.Stop()
				said = ""
				p.cfg.Log.WithField("vgpud", info.GetVersion()).WithField("gpus", len(gpus)).Info("found vgpud")
			}
			p.update(func(s *state) {
				found := s.found
				if first {
					found++
				}
				*s = state{gpus: gpus, found: found, there: true, rivals: s.rivals}
			})
			first = false
		})
		if p.ctx.Err() != nil {
			return
		}
		if now, _ := p.state(); now.there {
			p.update(func(s *state) { s.there = false })
			absent.Reset(p.cfg.Absence)
		}
		if text := err.Error(); text != said {
			said = text
			p.cfg.Log.WithError(err).Warn("lost vgpud, or never found it")
		}
		select {
		case <-time.After(redialInterval):
		case <-p.ctx.Done():
		}
	}
}

// watchRivals asks the API server who else offers the GPUs, which kubelet may not know.
// One that does not answer keeps nobody from his GPUs.
func (p *Plugin) watchRivals() {
	var said string
	for p.ctx.Err() == nil {
		now, changed := p.state()
		if now.gpus == nil {
			select {
			case <-changed:
			case <-p.ctx.Done():
			}
			continue
		}
		ctx, cancel := context.WithTimeout(p.ctx, rivalTimeout)
		rivals, err := kube.Rivals(ctx, p.cfg.Client, p.cfg.NodeName, now.gpus, Resources()...)
		cancel()
		if err != nil {
			if text := err.Error(); text != said && p.ctx.Err() == nil {
				said = text
				p.cfg.Log.WithError(err).Warn("it is not known who else offers the GPUs")
			}
			rivals = map[string]string{}
		}
		p.update(func(s *state) { s.rivals = rivals })
		select {
		case <-time.After(kube.RivalInterval):
		case <-p.ctx.Done():
		}
	}
}
