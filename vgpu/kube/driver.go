// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// Driver is a running DRA driver.
type Driver struct {
	cfg        Config
	checkpoint *checkpoint
	helper     *kubeletplugin.Helper
	metrics    *metrics
	seed       uint64
	shuffles   atomic.Uint64 // claims that came or went

	locks [64]sync.Mutex // by claim: calls for one never overlap

	mu      sync.Mutex
	now     snapshot
	changed chan struct{}                    // closed when now changes, and made anew
	claimed map[types.UID]map[string]uint64  // bytes of each device, of the claims that are prepared
	rivals  map[string]string                // who else offers a GPU, by UUID; nil: not known yet
	sharers map[types.UID]context.CancelFunc // watches of claims that more pods may come to share
	untold  map[types.UID]bool               // claims of which vgpud could not be told, and whether that was logged

	publishing sync.Mutex
	published  *resourceslice.Pool // nil: nothing yet
	guests     guests
	again      *time.Timer // when to publish without any sign

	ctx   context.Context // of what runs beside the calls
	wg    sync.WaitGroup
	step  func(string) // for tests: called at each step of Prepare and Unprepare
	fatal context.CancelCauseFunc
}

// snapshot is what vgpud said last.
type snapshot struct {
	gpus   []*v1.GPU // nil: nothing yet. Never changed in place
	driver string    // version
	there  bool      // vgpud answers
	absent bool      // it has not for long
	at     time.Time // of the last word
}

var _ kubeletplugin.DRAPlugin = (*Driver)(nil)

// Run runs the driver until ctx ends. cfg was checked.
func Run(ctx context.Context, cfg Config) error {
	d, err := start(ctx, cfg, nil)
	if err != nil {
		return err
	}
	<-d.ctx.Done()
	d.stop()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(d.ctx)
}

func start(ctx context.Context, cfg Config, step func(string)) (_ *Driver, retErr error) {
	if step == nil {
		step = func(string) {}
	}
	d := &Driver{
		cfg: cfg, seed: rand.Uint64(), changed: make(chan struct{}), step: step, //nolint:gosec // G404: of an order, and no secret
		claimed: map[types.UID]map[string]uint64{}, sharers: map[types.UID]context.CancelFunc{}, untold: map[types.UID]bool{},
		metrics: newMetrics(cfg.Metrics), again: time.NewTimer(0),
	}
	for _, dir := range []string{cfg.PluginDir, cfg.CDIDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // G301: as kubelet and containerd make them
			return nil, fmt.Errorf("failed to make a directory: %w", err)
		}
	}
	var err error
	if d.checkpoint, err = openCheckpoint(filepath.Join(cfg.PluginDir, "claims")); err != nil {
		return nil, err
	}
	sweep(d.checkpoint.dir, "")
	sweep(cfg.CDIDir, cdiPrefix)
	d.ctx, d.fatal = context.WithCancelCause(ctx)
	defer func() {
		if retErr != nil {
			d.stop()
		}
	}()
	d.restore()
	// vgpud is looked for first: kubelet has claims as soon as it sees the driver.
	d.wg.Go(d.watchVgpud)
	d.wg.Go(d.tellUntold)
	helper, err := kubeletplugin.Start(d.ctx, d,
		kubeletplugin.DriverName(DriverName),
		kubeletplugin.KubeClient(cfg.Client),
		kubeletplugin.NodeName(cfg.NodeName),
		kubeletplugin.PluginDataDirectoryPath(cfg.PluginDir),
		kubeletplugin.RegistrarDirectoryPath(cfg.RegistryDir),
		kubeletplugin.Serialize(false), // see locks
	)
	// It calls before it has returned.
	d.publishing.Lock()
	d.helper = helper
	d.publishing.Unlock()
	if err != nil {
		return nil, fmt.Errorf("failed to serve kubelet: %w", err)
	}
	d.publish()
	d.wg.Go(d.publishAgain)
	d.wg.Go(d.tellPods)
	if !cfg.AllowContested {
		d.wg.Go(d.watchRivals)
	}
	if cfg.StatusInterval > 0 {
		d.wg.Go(d.tellStatus)
	}
	return d, nil
}

func (d *Driver) stop() {
	d.fatal(errors.New("stopped"))
	d.helper.Stop()
	d.wg.Wait()
}

// restore takes in what an earlier driver knew.
func (d *Driver) restore() {
	uids, err := d.checkpoint.uids()
	if err != nil {
		d.cfg.Log.WithError(err).Error("the claims that were prepared are not known")
	}
	for _, uid := range uids {
		r, err := d.checkpoint.read(uid)
		if err != nil {
			// kubelet asks for it again, or for its release; both work without.
			d.cfg.Log.WithError(err).Error("a claim is not known any more")
			continue
		}
		if !r.Released {
			d.claimed[uid] = r.Memory
			d.watchSharers(r)
		}
	}
	d.metrics.prepared.Set(float64(len(d.claimed)))
}

// alone begins what is done for one claim. The returned function ends it.
func (d *Driver) alone(uid types.UID) func() {
	one := d.lock(uid)
	one.Lock()
	return one.Unlock
}

func (d *Driver) lock(uid types.UID) *sync.Mutex {
	return &d.locks[crc32.ChecksumIEEE([]byte(uid))%uint32(len(d.locks))]
}

// snapshot is what vgpud said last; the channel is closed when it says more.
func (d *Driver) snapshot() (snapshot, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now, d.changed
}

func (d *Driver) update(change func(*snapshot)) {
	d.mu.Lock()
	change(&d.now)
	close(d.changed)
	d.changed = make(chan struct{})
	d.mu.Unlock()
	d.publish()
}

// setClaimed says what a claim takes; nil: nothing any more.
func (d *Driver) setClaimed(uid types.UID, memory map[string]uint64) {
	d.mu.Lock()
	same := maps.Equal(d.claimed[uid], memory)
	if memory == nil {
		delete(d.claimed, uid)
	} else {
		d.claimed[uid] = memory
	}
	n := len(d.claimed)
	d.mu.Unlock()
	d.metrics.prepared.Set(float64(n))
	if !same {
		d.shuffles.Add(1)
		d.publish()
	}
}

// publish tells the API server of the devices, if there is anything new.
func (d *Driver) publish() {
	d.publishing.Lock()
	defer d.publishing.Unlock()
	if d.helper == nil {
		return // start does it
	}
	now, _ := d.snapshot()
	if now.gpus == nil {
		return // what an earlier driver published stays, until vgpud says what there is
	}
	claimed := map[string]uint64{}
	d.mu.Lock()
	rivals := d.rivals
	for _, memory := range d.claimed {
		for device, bytes := range memory {
			claimed[device] += bytes
		}
	}
	d.mu.Unlock()
	if rivals == nil && !d.cfg.AllowContested {
		return // watchRivals does it
	}
	if again := d.guests.see(now.gpus, time.Now()); again > 0 {
		d.again.Reset(again)
	}
	pool := d.pool(now, claimed, rivals, d.guests.told)
	if d.published != nil && equality.Semantic.DeepEqual(*d.published, pool) {
		return
	}
	if err := d.helper.PublishResources(d.ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.cfg.NodeName: pool}}); err != nil {
		d.cfg.Log.WithError(err).Error("failed to publish the GPUs")
		return
	}
	d.published = pool.DeepCopy()
}

// publishAgain publishes when it is time to, until the driver ends.
func (d *Driver) publishAgain() {
	for {
		select {
		case <-d.again.C:
			d.publish()
		case <-d.ctx.Done():
			return
		}
	}
}

// HandleError takes what fails beside the calls.
func (d *Driver) HandleError(_ context.Context, err error, msg string) {
	log := d.cfg.Log.WithError(err)
	if dropped, ok := errors.AsType[*resourceslice.DroppedFieldsError](err); ok {
		log.Errorf("this cluster can not share GPUs by claims, or not tell of their health: switch the feature gates %v on in "+
			"kube-apiserver, kube-scheduler, kube-controller-manager and kubelet; by default they are from Kubernetes 1.36 on", dropped.DisabledFeatures())
		return
	}
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		log.Warn(msg)
		return
	}
	log.Error(msg)
	d.fatal(fmt.Errorf("%s: %w", msg, err))
}
