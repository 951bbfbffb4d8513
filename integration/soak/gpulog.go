// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// The simulated GPUs' log as a file: see integration/simgpu/LOG.md.
const (
	gpuLogMagic  = 0x474f4c4d4953
	gpuLogHead   = 4096
	gpuLogRecord = 128
	classWork    = 0
	classSetup   = 2
)

// operation is a piece of work that a GPU was given. Times are of
// CLOCK_MONOTONIC.
type operation struct {
	GPU    uint32
	Tenant harness.Tenant
	PID    uint32 // of its process, in the container
	Proc   uint32 // of its process, never used again
	Name   string
	Submit time.Duration
	End    time.Duration // 0: in flight, or its process died

	at int64 // of its record in the file
}

// gpuLog reads a log while it is written, each record once, and again those of
// what was in flight.
type gpuLog struct {
	f      *os.File
	read   uint64   // records that were looked at
	absent []uint64 // of them, those that were claimed and not there yet
	lost   uint64   // records that did not fit
	deaths map[uint32]time.Duration
}

func openGPULog(machine string) (*gpuLog, error) {
	f, err := os.Open(filepath.Join(machine, "log"))
	if err != nil {
		return nil, err
	}
	return &gpuLog{f: f, deaths: map[uint32]time.Duration{}}, nil
}

func (l *gpuLog) close() { l.f.Close() }

// next returns the work that was submitted since the last call.
func (l *gpuLog) next() ([]*operation, error) {
	head := make([]byte, 40)
	if _, err := l.f.ReadAt(head, 0); err != nil {
		return nil, fmt.Errorf("failed to read the simulated GPUs' log: %w", err)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(head[i:]) }
	if word(0) != gpuLogMagic || binary.LittleEndian.Uint32(head[8:]) != 1 || binary.LittleEndian.Uint32(head[12:]) != gpuLogRecord {
		return nil, errors.New("the simulated GPUs' log has another format than integration/simgpu/LOG.md says")
	}
	end := min(word(24), word(16))
	l.lost = word(32)

	var all []*operation
	looked := l.absent
	l.absent = nil
	for _, i := range looked {
		b, err := l.records(i, 1)
		if err != nil {
			return nil, err
		}
		all = l.take(all, i, b)
	}
	b, err := l.records(l.read, end-l.read)
	if err != nil {
		return nil, err
	}
	for i := range end - l.read {
		all = l.take(all, l.read+i, b[i*gpuLogRecord:])
	}
	l.read = end
	return all, nil
}

// records reads n records twice: seq is written last, so what was there in the
// first reading is whole in the second.
func (l *gpuLog) records(from, n uint64) ([]byte, error) {
	first, second := make([]byte, n*gpuLogRecord), make([]byte, n*gpuLogRecord)
	for _, b := range [][]byte{first, second} {
		if _, err := l.f.ReadAt(b, gpuLogHead+int64(from)*gpuLogRecord); err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("failed to read the simulated GPUs' log: %w", err)
		}
	}
	for i := uint64(0); i < n; i++ {
		copy(second[i*gpuLogRecord:], first[i*gpuLogRecord:i*gpuLogRecord+8])
	}
	return second, nil
}

func (l *gpuLog) take(all []*operation, i uint64, b []byte) []*operation {
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	half := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	if word(0) == 0 {
		l.absent = append(l.absent, i)
		return all
	}
	name, _, _ := bytes.Cut(b[72:128], []byte{0})
	submit := time.Duration(word(48))
	switch half(12) {
	case classWork:
		return append(all, &operation{
			GPU: half(8), PID: half(16), Proc: half(20), Tenant: harness.Tenant(word(24)),
			Submit: submit, End: time.Duration(word(64)), Name: string(name),
			at: gpuLogHead + int64(i)*gpuLogRecord + 64,
		})
	case classSetup:
		if _, known := l.deaths[half(20)]; string(name) == "process-death" && !known {
			l.deaths[half(20)] = submit
		}
	}
	return all
}

// look reads again when an operation ended, if it was in flight.
func (l *gpuLog) look(op *operation) error {
	if op.End != 0 {
		return nil
	}
	var b [8]byte
	if _, err := l.f.ReadAt(b[:], op.at); err != nil {
		return fmt.Errorf("failed to read the simulated GPUs' log: %w", err)
	}
	op.End = time.Duration(binary.LittleEndian.Uint64(b[:]))
	return nil
}
