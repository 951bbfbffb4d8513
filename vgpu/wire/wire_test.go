// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The C header and this package describe one layout.
func TestHeaderAndPackageAgree(t *testing.T) {
	var l layout
	var m Msg
	want := map[string]uint64{
		"sizeof(struct vgpu_page)":                  uint64(unsafe.Sizeof(l)),
		"offsetof(struct vgpu_page, magic)":         uint64(unsafe.Offsetof(l.Magic)),
		"offsetof(struct vgpu_page, version)":       uint64(unsafe.Offsetof(l.Version)),
		"offsetof(struct vgpu_page, client)":        uint64(unsafe.Offsetof(l.Client)),
		"offsetof(struct vgpu_page, word)":          uint64(unsafe.Offsetof(l.Word)),
		"offsetof(struct vgpu_page, wanted)":        uint64(unsafe.Offsetof(l.Wanted)),
		"offsetof(struct vgpu_page, absence_ms)":    uint64(unsafe.Offsetof(l.Absence)),
		"offsetof(struct vgpu_page, queue_us)":      uint64(unsafe.Offsetof(l.Queue)),
		"offsetof(struct vgpu_page, drain_us)":      uint64(unsafe.Offsetof(l.Drain)),
		"offsetof(struct vgpu_page, over)":          uint64(unsafe.Offsetof(l.Over)),
		"offsetof(struct vgpu_page, expected_ns)":   uint64(unsafe.Offsetof(l.Expected)),
		"offsetof(struct vgpu_page, waiting)":       uint64(unsafe.Offsetof(l.Waiting)),
		"offsetof(struct vgpu_page, completed_ns)":  uint64(unsafe.Offsetof(l.Completed)),
		"offsetof(struct vgpu_page, idle_ns)":       uint64(unsafe.Offsetof(l.Idle)),
		"offsetof(struct vgpu_page, submitted)":     uint64(unsafe.Offsetof(l.Submitted)),
		"offsetof(struct vgpu_page, progress)":      uint64(unsafe.Offsetof(l.Progress)),
		"offsetof(struct vgpu_page, gap_ns)":        uint64(unsafe.Offsetof(l.Gap)),
		"offsetof(struct vgpu_page, completions)":   uint64(unsafe.Offsetof(l.Seen)),
		"offsetof(struct vgpu_page, gaps)":          uint64(unsafe.Offsetof(l.Gaps)),
		"sizeof(((struct vgpu_page *)0)->gaps)":     uint64(unsafe.Sizeof(l.Gaps)),
		"offsetof(struct vgpu_page, memory)":        uint64(unsafe.Offsetof(l.Memory)),
		"sizeof(struct vgpu_page_memory)":           uint64(unsafe.Sizeof(l.Memory[0])),
		"offsetof(struct vgpu_page_memory, leased)": uint64(unsafe.Offsetof(l.Memory[0].Leased)),
		"offsetof(struct vgpu_page_memory, credit)": uint64(unsafe.Offsetof(l.Memory[0].Credit)),
		"offsetof(struct vgpu_page, overhead)":      uint64(unsafe.Offsetof(l.Overhead)),
		"VGPU_GAPS":                                 GapBuckets,
		"VGPU_QUEUE_US":                             QueueUS,
		"VGPU_DRAIN_US":                             DrainUS,
		"sizeof(struct vgpu_msg)":                   uint64(unsafe.Sizeof(m)),
		"offsetof(struct vgpu_msg, type)":           uint64(unsafe.Offsetof(m.Type)),
		"offsetof(struct vgpu_msg, protocol)":       uint64(unsafe.Offsetof(m.Protocol)),
		"offsetof(struct vgpu_msg, size)":           uint64(unsafe.Offsetof(m.Size)),
		"offsetof(struct vgpu_msg, code)":           uint64(unsafe.Offsetof(m.Code)),
		"offsetof(struct vgpu_msg, count)":          uint64(unsafe.Offsetof(m.Count)),
		"offsetof(struct vgpu_msg, a)":              uint64(unsafe.Offsetof(m.A)),
		"offsetof(struct vgpu_msg, uuid)":           uint64(unsafe.Offsetof(m.UUID)),
		"offsetof(struct vgpu_msg, text)":           uint64(unsafe.Offsetof(m.Text)),
		"offsetof(struct vgpu_msg, others)":         uint64(unsafe.Offsetof(m.Others)),
		"VGPU_PROTOCOL":                             Protocol,
		"VGPU_PAGE_MAGIC":                           PageMagic,
		"VGPU_PAGE_VERSION":                         PageVersion,
		"VGPU_PAGE_SIZE":                            PageSize,
		"VGPU_MSG_SIZE":                             MsgSize,
		"VGPU_UUIDS":                                MaxUUIDs,
		"VGPU_TEXT":                                 TextSize,
		"VGPU_CLOSED":                               uint64(Closed),
		"VGPU_OPEN":                                 uint64(Open),
		"VGPU_CLOSING":                              uint64(Closing),
		"VGPU_IDLE":                                 uint64(Idle),
		"VGPU_DRAINING":                             uint64(Draining),
		"VGPU_WORD(VGPU_IDLE, 77)":                  MakeWord(Idle, 77),
		"VGPU_STATE(VGPU_WORD(VGPU_IDLE, 77))":      uint64(State(MakeWord(Idle, 77))),
		"VGPU_EPOCH(VGPU_WORD(VGPU_IDLE, 77))":      Epoch(MakeWord(Idle, 77)),
		"VGPU_HELLO":                                uint64(Hello),
		"VGPU_BIND":                                 uint64(Bind),
		"VGPU_PENDING":                              uint64(Pending),
		"VGPU_IDLE_MSG":                             uint64(IdleMsg),
		"VGPU_DRAINED":                              uint64(Drained),
		"VGPU_MEMORY":                               uint64(Memory),
		"VGPU_IDENTITY":                             uint64(Identity),
		"VGPU_STATS":                                uint64(Stats),
		"VGPU_USAGE":                                uint64(Usage),
		"VGPU_MEMORY_IS":                            uint64(MemoryIs),
		"VGPU_IDENTITY_IS":                          uint64(IdentityIs),
		"VGPU_USAGE_IS":                             uint64(UsageIs),
		"VGPU_PROCESSES":                            uint64(Processes),
		"VGPU_MEMORY_DRIVER":                        uint64(MemoryDriver),
		"sizeof(struct vgpu_process)":               uint64(unsafe.Sizeof(Process{})),
		"offsetof(struct vgpu_process, pid)":        uint64(unsafe.Offsetof(Process{}.PID)),
		"offsetof(struct vgpu_process, bytes)":      uint64(unsafe.Offsetof(Process{}.Bytes)),
		"VGPU_WELCOME":                              uint64(Welcome),
		"VGPU_REFUSED":                              uint64(Refused),
		"VGPU_BOUND":                                uint64(Bound),
		"VGPU_NUDGE":                                uint64(Nudge),
		"VGPU_WAIT":                                 uint64(Wait),
		"VGPU_OK":                                   uint64(OK),
		"VGPU_ERR_PROTOCOL":                         uint64(ErrProtocol),
		"VGPU_ERR_NO_GPU":                           uint64(ErrNoGPU),
		"VGPU_ERR_REMOVED":                          uint64(ErrRemoved),
		"VGPU_ERR_PAGE":                             uint64(ErrBadPage),
		"VGPU_ERR_INTERNAL":                         uint64(ErrInternal),
		"VGPU_ERR_MEMORY":                           uint64(ErrMemory),
	}
	var src strings.Builder
	src.WriteString("#include <stdio.h>\n#include \"wire.h\"\nint main(void) {\n")
	for expr := range want {
		fmt.Fprintf(&src, "\tprintf(\"%%s=%%llu\\n\", %q, (unsigned long long)(%s));\n", expr, expr)
	}
	src.WriteString("\treturn 0;\n}\n")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "t.c"), []byte(src.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "t")
	cc := exec.Command("gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I../../hooks/gate", "-o", bin, filepath.Join(dir, "t.c"))
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		expr, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if fmt.Sprint(want[expr]) != value {
			t.Errorf("%s is %s in C and %d in Go", expr, value, want[expr])
		}
		seen++
	}
	if seen != len(want) {
		t.Errorf("compared %d of %d", seen, len(want))
	}
}

func TestMessageRoundTrip(t *testing.T) {
	m := Msg{Type: Bound, Count: 2, A: [4]uint64{1, 2, 3, 4}}
	m.UUID[1][15] = 9
	m.SetText(strings.Repeat("x", 500))
	got, err := Parse(m.Marshal(make([]byte, MsgSize)))
	if err != nil {
		t.Fatal(err)
	}
	if got.Type != Bound || got.Count != 2 || got.A != m.A || got.UUID != m.UUID || got.Protocol != Protocol {
		t.Errorf("got %+v", got)
	}
	if s := got.TextString(); len(s) != TextSize-1 {
		t.Errorf("text of %d bytes, want it cut to %d", len(s), TextSize-1)
	}
}

func TestEveryTypeIsKnown(t *testing.T) {
	for _, typ := range []Type{
		Hello, Bind, Pending, IdleMsg, Drained, Memory, Identity, Stats,
		Welcome, Refused, Bound, Nudge, Wait,
	} {
		if m, err := Parse(Msg{Type: typ}.Marshal(make([]byte, MsgSize))); err != nil || m.Type != typ {
			t.Errorf("%d came back as %d: %v", typ, m.Type, err)
		}
	}
}

func TestRubbishIsMalformed(t *testing.T) {
	good := Msg{Type: Hello}.Marshal(make([]byte, MsgSize))
	edit := func(at int, v byte) []byte {
		b := bytes.Clone(good)
		b[at] = v
		return b
	}
	for name, b := range map[string][]byte{
		"empty":         nil,
		"short":         good[:MsgSize-1],
		"long":          append(bytes.Clone(good), 0),
		"wrong size":    edit(4, 1),
		"unknown type":  edit(0, 99),
		"protocol zero": edit(2, 0),
		"large count":   edit(12, 17),
	} {
		if _, err := Parse(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %v, want ErrMalformed", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Msg{Type: Hello}.Marshal(make([]byte, MsgSize)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(m.Marshal(make([]byte, MsgSize)))
		if err != nil || again != m {
			t.Fatalf("%+v came back as %+v: %v", m, again, err)
		}
	})
}

func TestUUID(t *testing.T) {
	const s = "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"
	u, err := ParseUUID(s)
	if err != nil || u[0] != 1 || u[15] != 16 || FormatUUID(u) != s {
		t.Errorf("%v %v %s", u, err, FormatUUID(u))
	}
	for _, bad := range []string{"", "0", "MIG-01020304-0506-0708-090a-0b0c0d0e0f10", s + "0", "GPU-zz020304-0506-0708-090a-0b0c0d0e0f10"} {
		if _, err := ParseUUID(bad); err == nil {
			t.Errorf("%q was taken for a UUID", bad)
		}
	}
}

func TestPageIsSharedAndSealed(t *testing.T) {
	p, fd, err := NewPage(42)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 0); err == nil {
		t.Error("a page could be truncated: its reader would die of SIGBUS")
	}
	q, err := MapPage(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	p.Word().Store(MakeWord(Open, 7))
	if w := q.Word().Load(); State(w) != Open || Epoch(w) != 7 || q.Client() != 42 {
		t.Errorf("word %#x client %d", w, q.Client())
	}
}

func TestPageShowsEachField(t *testing.T) {
	p, fd, err := NewPage(1)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	defer unix.Close(fd)
	l := p.l
	l.Word, l.Wanted, l.Absence, l.Waiting = 2, 3, 4, 5
	l.Completed, l.Idle, l.Submitted, l.Progress, l.Gap = 6, 7, 8, 9, 10
	l.Gaps[0], l.Gaps[GapBuckets-1] = 11, 12
	got := []uint64{
		p.Client(), p.Word().Load(), uint64(p.Wanted().Load()), uint64(p.AbsenceMS().Load()), uint64(p.Waiting().Load()),
		p.CompletedNS().Load(), p.IdleNS().Load(), p.Submitted().Load(), p.Progress().Load(), p.GapNS().Load(),
		uint64(p.Gaps()[0].Load()), uint64(p.Gaps()[GapBuckets-1].Load()),
	}
	for i, v := range got {
		if v != uint64(i+1) {
			t.Errorf("field %d of the page is %d, want %d", i, v, i+1)
		}
	}
}

func TestBroughtPageIsChecked(t *testing.T) {
	memfd := func(size int64, seal int) int {
		fd, err := unix.MemfdCreate("t", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for name, fd := range map[string]int{
		"a file":          int(file.Fd()),
		"unsealed":        memfd(PageSize, 0),
		"can be shrunk":   memfd(PageSize, unix.F_SEAL_GROW|unix.F_SEAL_SEAL),
		"too small":       memfd(100, seals),
		"write-sealed":    memfd(PageSize, seals|unix.F_SEAL_WRITE),
		"without a magic": memfd(PageSize, seals),
	} {
		if _, err := MapPage(fd); !errors.Is(err, ErrPage) {
			t.Errorf("%s: got %v, want ErrPage", name, err)
		}
	}
}
