// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Turn is one that the daemon has accounted. Times are of CLOCK_MONOTONIC, the
// clock of the simulated GPU's log.
type Turn struct {
	VGPU    string
	Granted time.Duration
	Ended   time.Duration
	// Drain is how long it took from the revoke until vgpud saw that all was over;
	// 0 for a turn that was not revoked, or overran.
	Drain time.Duration
}

// Turns reads from the daemon's log the turns that have ended.
func (d *Daemon) Turns() ([]Turn, error) {
	f, err := os.Open(filepath.Join(d.Dir, "vgpud.log"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var turns []Turn
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var line struct {
			Msg     string
			VGPU    string
			Granted *int64 `json:"granted_ns"`
			Ended   *int64 `json:"ended_ns"`
			Drain   int64  `json:"drain_ns"`
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil || line.Msg != "turn ended" {
			continue // other things are written there, too
		}
		if line.Granted == nil || line.Ended == nil {
			return nil, fmt.Errorf("a turn without its times is in vgpud's log: %s", lines.Text())
		}
		turns = append(turns, Turn{line.VGPU, time.Duration(*line.Granted), time.Duration(*line.Ended), time.Duration(line.Drain)})
	}
	return turns, lines.Err()
}

// Within tells whether an instant lies in a turn of the vGPU.
func Within(turns []Turn, vgpu string, at time.Duration) bool {
	for _, t := range turns {
		if t.VGPU == vgpu && t.Granted <= at && at <= t.Ended {
			return true
		}
	}
	return false
}
