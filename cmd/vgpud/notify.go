// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/vgpu-shim/vgpu/vgpu/node"
)

// What vgpud tells systemd, see sd_notify(3). None of it is sent where no systemd
// asked for it (NOTIFY_SOCKET).

// opening comes before the GPUs are opened. That takes the driver tens of seconds
// on a large machine without persistence mode, which the usual limit of a start
// (90 s) must not end. A driver that never answers still ends the start.
const opening = "EXTEND_TIMEOUT_USEC=300000000\nSTATUS=opening the GPUs"

// statusEvery is how often vgpud looks for a change to tell where no watchdog
// makes it look more often.
const statusEvery = 10 * time.Second

// beat is the time between two looks: half of what the watchdog waits, as
// sd_watchdog_enabled(3) recommends.
func beat(watchdog time.Duration) time.Duration {
	if watchdog <= 0 {
		return statusEvery
	}
	return max(watchdog/2, time.Microsecond)
}

// attend tells systemd that vgpud is ready, then at each tick how it stands if
// that has changed and, for a watchdog, that it lives, until ctx is done.
//
// That it lives is the answer of the daemon's loop, which status waits for: while
// the loop is stuck nothing is told, and systemd kills vgpud and starts it again,
// by which nothing is lost. What the loop does not wait for, such as a driver
// that hangs, is no reason.
func attend(ctx context.Context, status func() (node.Status, error), tick <-chan time.Time, watchdog bool, tell func(string)) {
	defer tell(daemon.SdNotifyStopping + "\nSTATUS=stopping; containers go on")
	told := ""
	for {
		s, err := status()
		if err != nil {
			return // the daemon has ended
		}
		var say []string
		if now := describe(s); now != told {
			if told == "" {
				say = append(say, daemon.SdNotifyReady)
			}
			told = now
			say = append(say, "STATUS="+now)
		}
		if watchdog {
			say = append(say, daemon.SdNotifyWatchdog)
		}
		if len(say) > 0 {
			tell(strings.Join(say, "\n"))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
	}
}

// describe is a status as a line for systemctl status.
func describe(s node.Status) string {
	line := fmt.Sprintf("%s on %s", count(s.VGPUs, "vGPU"), count(s.GPUs, "GPU"))
	if s.Recovering {
		line += "; waiting for processes to come back after a restart"
	}
	return line
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
