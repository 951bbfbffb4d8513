// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

func TestPreferredUnits(t *testing.T) {
	all := strings.Fields("a/0 a/1 a/2 a/10 b/0 b/1 c/0")
	for _, tc := range []struct {
		description     string
		available, must []string
		size            int
		apart           bool
		want            string
	}{
		{"the GPU of which the least is left that is enough", all, nil, 2, false, "b/0 b/1"},
		{"in the order of their numbers", all, nil, 3, false, "a/0 a/1 a/2"},
		{"as few GPUs as can be", all, nil, 5, false, "a/0 a/1 a/10 a/2 c/0"},
		{"from the GPU of those that must be", all, []string{"a/1"}, 2, false, "a/0 a/1"},
		{"nothing but what must be", all, []string{"a/1", "c/0"}, 2, false, "a/1 c/0"},
		{"each from another GPU, the fullest first", all, nil, 2, true, "b/0 c/0"},
		{"not from the GPU of one that must be", all, []string{"c/0"}, 2, true, "b/0 c/0"},
		{"more than there are GPUs", all, nil, 4, true, "a/0 b/0 b/1 c/0"},
		{"all that there are", []string{"a/0"}, nil, 2, true, "a/0"},
	} {
		t.Run(tc.description, func(t *testing.T) {
			got := prefer(tc.available, tc.must, tc.size, tc.apart)
			slices.Sort(got)
			if strings.Join(got, " ") != tc.want {
				t.Errorf("got %v, want %s", got, tc.want)
			}
		})
	}
}

// kubelet takes messages of 4 MiB.
func TestUnitsFitIntoAMessage(t *testing.T) {
	p := &Plugin{cfg: DefaultConfig()}
	p.cfg.Oversubscription = 100
	var gpus []*v1.GPU
	for _, id := range "01234567" {
		gpus = append(gpus, &v1.GPU{Uuid: "GPU-00000000-0000-0000-0000-00000000000" + string(id), MemoryBytes: 288 << 30})
	}
	offers := p.offers(Memory, state{gpus: gpus})
	n := 0
	for i := range offers {
		offers[i].numa = 1
		n += offers[i].units
	}
	size := proto.Size(&pluginapi.ListAndWatchResponse{Devices: devices(offers)})
	if n < maxUnits-len(gpus) || n > maxUnits || size > 4<<20 {
		t.Errorf("%d units are offered, in %d bytes", n, size)
	}
}

func TestCheckSaysAllThatIsWrong(t *testing.T) {
	cfg := DefaultConfig()
	if err := cfg.Check(); err != nil {
		t.Errorf("the defaults are wrong: %v", err)
	}
	cfg = Config{Address: "x", Oversubscription: 0.5, DefaultShare: 101, DefaultMemory: 1, Absence: -1}
	err := cfg.Check()
	for _, flag := range []string{"oversubscription=0.5", "default-share=101", "default-memory=1", "absence=", "address=x", `device-plugins-dir=""`, "pods-dir="} {
		if err == nil || !strings.Contains(err.Error(), "--"+flag) {
			t.Errorf("--%s is not named: %v", flag, err)
		}
	}
}
