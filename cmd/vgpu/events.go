// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

func (a *app) eventsCommand() *cobra.Command {
	var (
		from   v1.WatchRequest
		output string
	)
	cmd := &cobra.Command{
		Use: "events", Short: "Tell what happens, as it happens", Args: none,
		Long: "Tell what happens to vGPUs and GPUs, as it happens, one line for each event, until\n" +
			"Ctrl-C. Turns are not told: there are thousands a second; see vgpu ps.\n\n" +
			"Events have numbers. With --after N it begins behind number N, 0 for all that\n" +
			"vgpud still has: it keeps the newest 4096. Where events before the next one are\n" +
			"not there any more, the type of a line is RESYNC: look again with vgpu ps and\n" +
			"vgpu gpus. Numbers start again with each vgpud; --epoch says which one's N is.\n\n" +
			"When vgpud is restarted, it is waited for, and told on.",
		Example: "  vgpu events\n  vgpu events --after 0 --output json | jq 'select(.type == \"OVERRUN\")'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return usage{fmt.Errorf("--output=%s: must be text or json", output)}
			}
			after := cmd.Flags().Changed("after")
			if from.Epoch != "" && !after {
				return usage{fmt.Errorf("--epoch without --after; see vgpu events --help")}
			}
			return a.events(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &from, !after, output == "json")
		},
	}
	f := cmd.Flags()
	f.Uint64Var(&from.After, "after", 0, "begin behind event `N`; without it, with what happens from now on")
	f.StringVar(&from.Epoch, "epoch", "", "the vgpud whose event N is, as its events say; without it, the one that runs")
	f.StringVarP(&output, "output", "o", "text", "text or json; json is one object a line")
	return cmd
}

// events follows vgpud's events from one on, or from now on.
func (a *app) events(ctx context.Context, w, stderr io.Writer, from *v1.WatchRequest, now, asJSON bool) error {
	return a.follow(untilClosed(ctx, w), stderr, "follow the events", func(ctx context.Context, c v1.ControlClient, info *v1.InfoResponse) error {
		if now {
			from.After, from.Epoch, now = info.GetSequence(), info.GetEpoch(), false
		}
		s, err := c.Watch(ctx, from)
		for err == nil {
			var ev *v1.Event
			if ev, err = s.Recv(); err != nil {
				break
			}
			if asJSON {
				err = writeLine(w, asEvent(ev))
			} else if _, werr := fmt.Fprintln(w, eventText(ev)); werr != nil {
				err = ownError{fmt.Errorf("failed to write an event: %w", werr)}
			}
			from.After, from.Epoch = ev.GetSequence(), ev.GetEpoch()
		}
		return err
	})
}

type eventJSON struct {
	Sequence  uint64            `json:"sequence"`
	Epoch     string            `json:"epoch"`
	At        string            `json:"at"`
	Type      string            `json:"type"`
	VGPU      string            `json:"vgpu"`
	Container containerJSON     `json:"container"`
	GPUs      []string          `json:"gpus"`
	Reason    string            `json:"reason"`
	Changes   map[string]string `json:"changes"`
	Policy    *policyJSON       `json:"policy"` // null but for POLICY
}

func asEvent(ev *v1.Event) eventJSON {
	out := eventJSON{
		Sequence: ev.GetSequence(), Epoch: ev.GetEpoch(), At: ev.GetAt().AsTime().Format(time.RFC3339Nano), Type: ev.GetType(),
		VGPU: ev.GetVgpu(), Container: asContainer(ev.GetContainer()), GPUs: append([]string{}, ev.GetGpus()...),
		Reason: ev.GetReason(), Changes: map[string]string{},
	}
	maps.Copy(out.Changes, ev.GetChanges())
	if ev.GetPolicy() != nil {
		p := asPolicy(ev.GetPolicy())
		out.Policy = &p
	}
	return out
}

// eventText is an event for people.
func eventText(ev *v1.Event) string {
	words := []string{ev.GetAt().AsTime().Format("2006-01-02T15:04:05.000Z"), fmt.Sprint(ev.GetSequence()), ev.GetType()}
	if c := ev.GetContainer(); ev.GetVgpu() != "" {
		words = append(words, ev.GetVgpu(), c.GetNamespace()+"/"+c.GetId())
	}
	words = append(words, ev.GetGpus()...)
	for _, key := range slices.Sorted(maps.Keys(ev.GetChanges())) {
		words = append(words, key+"="+ev.GetChanges()[key])
	}
	if ev.GetPolicy() != nil {
		words = append(words, policyText(ev.GetPolicy()))
	}
	text := strings.Join(words, "  ")
	switch {
	case ev.GetReason() != "":
		text += "  " + ev.GetReason()
	case ev.GetType() == "RESYNC":
		text += "  events before the next one are not kept, or were another vgpud's"
	}
	return text
}
