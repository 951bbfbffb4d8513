// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"unsafe"
)

// Protocol is the newest protocol version that this package speaks. vgpud
// serves every version from 1 to this one.
const Protocol = 1

// Sizes of a message and of its parts.
const (
	MsgSize  = 512
	MaxUUIDs = 16
	TextSize = 192
)

// Socket is the name of a vGPU's socket in its directory.
const Socket = "sock"

// GPUs is the name of the file there that says which GPUs the vGPU may be given.
const GPUs = "gpus"

// Type is what a message says.
type Type uint16

// Messages from a client.
const (
	Hello    Type = 1 // Protocol is the newest spoken; the page comes along on reconnection
	Bind     Type = 2 // answered by Bound or Refused
	Pending  Type = 3 // doorbell: waiting went from 0 to 1
	IdleMsg  Type = 4 // doorbell: the word is IDLE, and wanted was set
	Drained  Type = 5 // doorbell: the word went from DRAINING to CLOSED
	Memory   Type = 6 // A[0] index of a bound GPU, A[1] credit needed there (0: only ask), A[2] MemoryFlag, A[3] any number; answered by MemoryIs
	Identity Type = 7 // instead of Hello, of a program that only looks: A[0] 1 to bind; answered by IdentityIs or Refused
	Stats    Type = 8 // A[0] look-ups of submitting functions that got no hook, A[1] of unknown names; so far
	Usage    Type = 9 // after an Identity: UUID[0] is a bound GPU; answered by UsageIs and Processes
)

// Messages to a client.
const (
	Welcome Type = 64 // Protocol is the one to speak, A[0] the client's id; the page goes along unless the client brought one
	Refused Type = 65 // Code and Text say why; after a Hello the connection is closed
	Bound   Type = 66 // Count and UUID
	Nudge   Type = 67 // doorbell: look at wanted and at the word
	Wait    Type = 68 // the Bind or Identity waits, its answer comes later; Text says why

	MemoryIs   Type = 69 // Code OK, ErrMemory if there is no such credit, ErrInternal if there is no such GPU; A[0] as asked, A[1] the limit, A[2] what all processes use, A[3] as asked
	IdentityIs Type = 70 // A[0] the GPUs of the vGPU; Count and UUID as in Bound, Count 0 if it is not bound
	UsageIs    Type = 71 // of UUID[0], Code ErrNoGPU if the vGPU is not there: A[0] limit and A[1] use as in MemoryIs, A[2] held of late in millionths, A[3] processes that follow
	Processes  Type = 72 // Count of them, as Process in the place of UUID; A[0] is 1 in the last message
)

// MemoryFlag is said with a Memory message.
type MemoryFlag uint64

// MemoryDriver says that the process made or ended a context or module: see
// what the driver says that it uses.
const MemoryDriver MemoryFlag = 1

// Process is a process of the vGPU, as the asker's pid namespace numbers it.
type Process struct {
	PID   uint32
	_     uint32
	Bytes uint64 // device memory that it uses
}

// Processes is the place of UUID as processes; the first Count are valid.
func (m *Msg) Processes() *[MaxUUIDs]Process {
	return (*[MaxUUIDs]Process)(unsafe.Pointer(&m.UUID))
}

// Code says why something was refused.
type Code uint32

// The codes.
const (
	OK          Code = 0
	ErrProtocol Code = 1 // the client is newer than vgpud, or spoke out of turn
	ErrNoGPU    Code = 2 // no GPU fits the request
	ErrRemoved  Code = 3 // the vGPU was removed
	ErrBadPage  Code = 4 // the page that came along can not be used
	ErrInternal Code = 5
	ErrMemory   Code = 6 // the vGPU's memory is used up
)

// Msg is one message; it fills one packet. Its layout is that of struct
// vgpu_msg.
type Msg struct {
	Type     Type
	Protocol uint16
	Size     uint32
	Code     Code
	Count    uint32
	A        [4]uint64
	UUID     [MaxUUIDs][16]byte
	Text     [TextSize]byte
	Others   uint64 // MemoryIs, UsageIs: bytes of the limit that are used by other vGPUs, which share it
	Reserved [8]byte
}

// ErrMalformed is wrapped by every error of Parse.
var ErrMalformed = errors.New("malformed message")

// Parse reads one packet. It checks length, size and type, not whether the
// message makes sense where it came.
func Parse(b []byte) (Msg, error) {
	var m Msg
	if len(b) != MsgSize {
		return m, fmt.Errorf("%w: %d bytes, want %d", ErrMalformed, len(b), MsgSize)
	}
	copy(m.bytes(), b)
	if m.Size != MsgSize {
		return m, fmt.Errorf("%w: size field says %d, want %d", ErrMalformed, m.Size, MsgSize)
	}
	if m.Protocol == 0 {
		return m, fmt.Errorf("%w: protocol 0", ErrMalformed)
	}
	if m.Count > MaxUUIDs {
		return m, fmt.Errorf("%w: count %d, at most %d", ErrMalformed, m.Count, MaxUUIDs)
	}
	switch m.Type {
	case Hello, Bind, Pending, IdleMsg, Drained, Memory, Identity, Stats, Usage,
		Welcome, Refused, Bound, Nudge, Wait, MemoryIs, IdentityIs, UsageIs, Processes:
	default:
		return m, fmt.Errorf("%w: unknown type %d", ErrMalformed, m.Type)
	}
	return m, nil
}

// Marshal writes m into b, which must hold MsgSize bytes, and returns that
// part of b. It fills in Size, and Protocol where that is 0.
func (m Msg) Marshal(b []byte) []byte {
	m.Size = MsgSize
	if m.Protocol == 0 {
		m.Protocol = Protocol
	}
	copy(b[:MsgSize], m.bytes())
	return b[:MsgSize]
}

// bytes is m as it lies in memory, which is how it goes over the socket: both
// supported architectures are little-endian, and every field lies where C puts
// it (TestHeaderAndPackageAgree).
func (m *Msg) bytes() []byte { return (*[MsgSize]byte)(unsafe.Pointer(m))[:] }

// SetText puts s into m, cut to fit and NUL-terminated.
func (m *Msg) SetText(s string) {
	m.Text = [TextSize]byte{}
	copy(m.Text[:TextSize-1], s)
}

// TextString is the text of m.
func (m *Msg) TextString() string {
	s, _, _ := bytes.Cut(m.Text[:], []byte{0})
	return string(s)
}

// ParseUUID reads a GPU's UUID as NVML prints it ("GPU-" and 36 characters).
func ParseUUID(s string) ([16]byte, error) {
	var u [16]byte
	hexes := strings.ReplaceAll(strings.TrimPrefix(s, "GPU-"), "-", "")
	if len(hexes) != 32 || !strings.HasPrefix(s, "GPU-") {
		return u, fmt.Errorf("not a GPU's UUID: %q", s)
	}
	if _, err := hex.Decode(u[:], []byte(hexes)); err != nil {
		return u, fmt.Errorf("not a GPU's UUID: %q: %w", s, err)
	}
	return u, nil
}

// FormatUUID writes a GPU's UUID as NVML prints it.
func FormatUUID(u [16]byte) string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
