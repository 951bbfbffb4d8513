// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"testing"
	"time"
)

func TestTheLoopIsAskedAgainWhenItsTimeHasCome(t *testing.T) {
	for _, coarse := range []bool{false, true} { // with and without epoll_pwait2
		t.Run(fmt.Sprintf("coarse=%t", coarse), func(t *testing.T) {
			p, err := newPoller()
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()
			p.coarse = coarse
			asked := 0
			p.idle = func() time.Duration {
				if asked++; asked == 3 {
					p.quit()
				}
				return 100 * time.Microsecond
			}
			ended := make(chan error, 1)
			go func() { ended <- p.run() }()
			select {
			case err := <-ended:
				if err != nil || asked < 3 || p.coarse != coarse {
					t.Errorf("asked %d times, coarse %t: %v", asked, p.coarse, err)
				}
			case <-time.After(patience):
				p.quit()
				t.Error("it waits for ever, though nothing came")
			}
		})
	}
}
