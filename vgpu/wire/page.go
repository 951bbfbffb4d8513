// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The page's constants.
const (
	PageSize    = 4096
	PageMagic   = 0x55504756
	PageVersion = 1
	GapBuckets  = 32
	QueueUS     = 50000 // what 0 means in QueueUS
	DrainUS     = 2000  // and in DrainUS
)

// seals are on every page: a client that shrank it would kill vgpud by SIGBUS.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// layout is struct vgpu_page.
type layout struct {
	Magic     uint32
	Version   uint32
	Client    uint64
	_         [6]uint64
	Word      uint64
	_         [7]uint64
	Wanted    uint32
	Absence   uint32
	Queue     uint32
	Drain     uint32
	Over      uint32
	_         uint32
	Expected  uint64
	_         [8]uint32
	Waiting   uint32
	_         uint32
	Completed uint64
	Idle      uint64
	Submitted uint64
	Progress  uint64
	Gap       uint64
	Seen      uint64
	_         uint64
	Gaps      [GapBuckets]uint32
	Memory    [MaxUUIDs]PageMemory
	Overhead  [MaxUUIDs]uint64
	_         [PageSize - 768]byte
}

// PageMemory is what a process may allocate on one bound GPU, in bytes. What it
// uses is Leased less Credit. vgpud leases by raising Leased, then Credit, and
// takes back what is not used by exchanging Credit with 0, then lowering Leased;
// the client allocates by lowering Credit and frees by raising it. The client
// changes Leased only while vgpud is away and the policy is to go on without it.
type PageMemory struct {
	Leased, Credit atomic.Uint64
}

// Page is the memory that vgpud shares with one client. Its methods may be
// called by several goroutines; none after Close.
type Page struct {
	mem []byte
	l   *layout
}

// NewPage makes the page of a client, closed, with its seals set. The caller
// owns the descriptor, which is close-on-exec.
func NewPage(client uint64) (*Page, int, error) {
	fd, err := unix.MemfdCreate("vgpu-page", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, fmt.Errorf("failed to create a page: %w", err)
	}
	p, err := func() (*Page, error) {
		if err := unix.Ftruncate(fd, PageSize); err != nil {
			return nil, fmt.Errorf("failed to size a page: %w", err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			return nil, fmt.Errorf("failed to seal a page: %w", err)
		}
		return mapFD(fd)
	}()
	if err != nil {
		unix.Close(fd)
		return nil, -1, err
	}
	p.l.Magic, p.l.Version, p.l.Client = PageMagic, PageVersion, client
	return p, fd, nil
}

// ErrPage is wrapped by every error of MapPage that is the client's doing.
var ErrPage = errors.New("unusable page")

// MapPage maps a page that a client brought back. It trusts nothing: the
// descriptor must be a memfd of the right size that can not change it.
func MapPage(fd int) (*Page, error) {
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: not a memfd: %w", ErrPage, err)
	}
	if got&seals != seals || got&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0 {
		return nil, fmt.Errorf("%w: seals %#x, want %#x", ErrPage, got, seals)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("failed to stat a page: %w", err)
	}
	if st.Size != PageSize {
		return nil, fmt.Errorf("%w: %d bytes, want %d", ErrPage, st.Size, PageSize)
	}
	p, err := mapFD(fd)
	if err != nil {
		return nil, err
	}
	if p.l.Magic != PageMagic || p.l.Version < 1 || p.l.Version > PageVersion {
		defer p.Close()
		return nil, fmt.Errorf("%w: magic %#x version %d", ErrPage, p.l.Magic, p.l.Version)
	}
	return p, nil
}

func mapFD(fd int) (*Page, error) {
	mem, err := unix.Mmap(fd, 0, PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("failed to map a page: %w", err)
	}
	return &Page{mem: mem, l: (*layout)(unsafe.Pointer(&mem[0]))}, nil
}

// Close unmaps the page.
func (p *Page) Close() error {
	mem := p.mem
	p.mem, p.l = nil, nil
	return unix.Munmap(mem)
}

// Client is the id that the page was made for. The client may have changed it.
func (p *Page) Client() uint64 { return atomic.LoadUint64(&p.l.Client) }

// Word is the grant word.
func (p *Page) Word() *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&p.l.Word)) }

// Wanted says to the client that somebody else waits; vgpud writes it.
func (p *Page) Wanted() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&p.l.Wanted)) }

// AbsenceMS is for how long vgpud must be away, in milliseconds, before the gate
// opens for threads that wait; 0 is for ever. vgpud writes it.
func (p *Page) AbsenceMS() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&p.l.Absence)) }

// QueueUS is how much work may be in flight, in microseconds of it; 0 stands for
// the constant of that name. vgpud writes it.
func (p *Page) QueueUS() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&p.l.Queue)) }

// DrainUS is the same while somebody else waits, or is expected to. vgpud writes it.
func (p *Page) DrainUS() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&p.l.Drain)) }

// ExpectedNS is until when whoever waited for the GPU is expected to do so again, of
// CLOCK_MONOTONIC in nanoseconds; 0 is never. vgpud writes it.
func (p *Page) ExpectedNS() *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&p.l.Expected)) }

// Over says to the client on which GPUs more is in use than may be: bit i stands
// for the GPU of Memory's number i. There it takes no credit without asking;
// vgpud writes it.
func (p *Page) Over() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&p.l.Over)) }

// Memory is the ledger of the process, in the order of the Bound message.
func (p *Page) Memory() *[MaxUUIDs]PageMemory { return &p.l.Memory }

// Overhead is how much of Memory's Leased vgpud charged for what the driver uses
// by itself, in the same order. Only vgpud reads and writes it.
func (p *Page) Overhead() *[MaxUUIDs]atomic.Uint64 {
	return (*[MaxUUIDs]atomic.Uint64)(unsafe.Pointer(&p.l.Overhead))
}

// Waiting is the number of threads at the closed gate; the client writes it.
func (p *Page) Waiting() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&p.l.Waiting)) }

// CompletedNS is when the client last saw its work complete (CLOCK_MONOTONIC,
// nanoseconds); the client writes it.
func (p *Page) CompletedNS() *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&p.l.Completed))
}

// IdleNS is how long the client's word was IDLE, in closed intervals; the
// client writes it, and never resets it.
func (p *Page) IdleNS() *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&p.l.Idle)) }

// Submitted counts gated submissions; the client writes it when it becomes idle
// or drained, when it is nudged, and at exit.
func (p *Page) Submitted() *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&p.l.Submitted))
}

// Progress rises when the client's own thread, while it drains, finds more work
// complete than it did at its look before; the client writes it. In a drain
// whose work never ends it stands still. It also does while one piece of work, or
// one stream's whole queue, is under way: what is complete is known by streams.
func (p *Page) Progress() *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&p.l.Progress)) }

// Completions rises with the work of the client that was seen complete, as of the
// last look of its own thread at a drain; the client writes it. A drain that was
// resumed and shows more than before was resumed to some purpose.
func (p *Page) Completions() *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&p.l.Seen)) }

// GapNS is how long the newest gap was, in nanoseconds: the time from IDLE to the
// reclaim that made the word OPEN again. A gap that ended in any other way is
// not counted. The client writes it, before the work that ended the gap is
// submitted.
func (p *Page) GapNS() *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&p.l.Gap)) }

// Gaps are the numbers of such gaps so far by their length: bucket i counts those
// of at least 2^i ns and less than 2^(i+1), the first also those of 0, the last all
// longer ones. The client writes them.
func (p *Page) Gaps() *[GapBuckets]atomic.Uint32 {
	return (*[GapBuckets]atomic.Uint32)(unsafe.Pointer(&p.l.Gaps))
}

// Wake wakes every thread that sleeps on the grant word.
func (p *Page) Wake() {
	const futexWake = 1
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&p.l.Word)), futexWake, 1<<30, 0, 0, 0)
}
