// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/request"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// A vGPU that does not drain in time is an overrun. Nothing is inferred about
// what it has in flight: under the policy freeze its processes stand still while
// others have their turns, so that they submit nothing more and what depends on
// them ends or not, and run in turns of its own. Under kill they are killed.

// lookKilled is how often it is looked whether a frozen process was killed.
const lookKilled = 100 * time.Millisecond

// overran: others are granted although v did not drain.
func (l *loop) overran(v *vgpu, policy request.Overrun) {
	l.once(v, logrus.WarnLevel, "the turn did not drain in time; others are granted", logrus.Fields{"policy": policy.String()})
	// The turn is accounted; what comes now is beside those of others.
	v.turn = turn{granted: l.now(), late: true, wanted: v.turn.wanted}
	v.startTurn()
	switch policy {
	case request.Freeze:
		if !v.removed { // else it runs, to drain or to die
			l.freeze(v)
		}
	case request.Kill:
		for _, c := range v.clients {
			if state(c.page) == wire.Closed {
				continue // it did drain
			}
			l.tell(eventKilled, v, fmt.Sprintf("process %d", c.PID))
			if err := unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0); err != nil {
				l.log.WithFields(v.fields()).WithField("pid", c.PID).WithError(err).Error("failed to kill a process")
			}
		}
	}
}

// freeze makes the processes of v stand still. The cgroups stand in the store
// before they are frozen: a restarted vgpud thaws them.
func (l *loop) freeze(v *vgpu) {
	v.cold, v.runs, v.dying = true, false, false
	all := v.processes()
	v.freezing.add(func() {
		groups := make(map[string][]process)
		var errs error
		for _, p := range all {
			switch group, err := l.freezer.group(p); {
			case err == nil:
				groups[group] = append(groups[group], p)
			case !errors.Is(err, errGone):
				errs = errors.Join(errs, err)
			}
		}
		l.poller.post(func() {
			l.notFrozen(v, errs)
			l.freezeGroups(v, groups)
		})
	})
}

// processes are those of the clients of v.
func (v *vgpu) processes() (all []process) {
	for _, c := range v.clients {
		all = append(all, c.process)
	}
	return all
}

func (l *loop) notFrozen(v *vgpu, err error) {
	if err == nil {
		return
	}
	l.once(v, logrus.WarnLevel, "processes can not be frozen; they go on beside the turns of others", logrus.Fields{logrus.ErrorKey: err})
	v.runs = true
	l.event(arbiter.Event{Kind: arbiter.Runs, VGPU: v.key})
}

func (l *loop) freezeGroups(v *vgpu, groups map[string][]process) {
	if !v.cold {
		return // it had its turn meanwhile
	}
	for group := range groups {
		if !slices.Contains(v.frozen, group) {
			v.frozen = append(v.frozen, group)
		}
	}
	slices.Sort(v.frozen)
	if len(groups) == 0 {
		return
	}
	l.saved(v, func(err error) {
		if err != nil || !v.cold {
			return
		}
		v.freezing.add(func() {
			var errs error
			for group, all := range groups {
				errs = errors.Join(errs, l.freezer.freeze(group, all))
			}
			l.poller.post(func() {
				if errs == nil {
					l.tell(eventFrozen, v, "")
				}
				l.notFrozen(v, errs)
			})
		})
		l.arm(&v.coldTimer, l.now()+lookKilled)
	})
}

// lookCold thaws v if one of its processes was killed, so that it can die, and
// freezes the others again when it has.
func (l *loop) lookCold(v *vgpu) {
	if !v.cold && !v.dying {
		return
	}
	l.arm(&v.coldTimer, l.now()+lookKilled)
	if v.freezing.left() > 0 {
		return
	}
	all := v.processes()
	v.freezing.add(func() {
		dying := killed(all)
		l.poller.post(func() { l.lookedCold(v, dying) })
	})
}

func (l *loop) lookedCold(v *vgpu, dying bool) {
	switch {
	case v.cold && dying:
		l.thaw(v)
		v.dying = true
		l.arm(&v.coldTimer, l.now()+lookKilled)
	case v.dying && !dying:
		v.dying = false
		l.arm(&v.coldTimer, 0)
		if v.turn.late && v.phase == draining && !v.removed {
			l.freeze(v)
		}
	}
}

// thaw lets the processes of v run.
func (l *loop) thaw(v *vgpu) {
	v.cold, v.dying = false, false
	l.arm(&v.coldTimer, 0)
	if len(v.frozen) == 0 {
		return
	}
	groups := v.frozen
	l.tell(eventThawed, v, "")
	v.freezing.add(func() {
		l.thawGroups(v, groups)
		l.poller.post(func() {
			if !v.cold && !v.removed && l.vgpus[v.key] == v {
				v.frozen = nil
				l.saved(v, func(error) {})
			}
		})
	})
}

func (l *loop) thawGroups(v *vgpu, groups []string) {
	for _, group := range groups {
		if err := l.freezer.thaw(group); err != nil {
			l.log.WithFields(v.fields()).WithError(err).Error("processes can not be thawed; write it there by hand, or delete the container")
		}
	}
}
