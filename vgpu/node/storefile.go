// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
)

// bbolt maps its file and trusts it. In one that is damaged it panics, reads
// outside of the mapping (a fault, which kills a Go program: etcd-io/bbolt#105,
// #1225), or follows a branch page that leads back to itself until memory is
// used up; its own Check does the same, on a goroutine of its own, where nobody
// can catch it. So a file is looked at here, without a mapping, before bbolt
// opens it.
//
// The format is version 2 of go.etcd.io/bbolt, internal/common: two meta pages,
// written in turn, each with a checksum; a tree of branch and leaf pages for the
// root bucket, whose values are the buckets; a list of the free pages. Only what
// bbolt writes is taken: a page in use is used once, what is not in use is in the
// list, the elements of a page lie one behind the other, keys are in order.
// Numbers have the machine's byte order.

// Of a page.
const (
	pageHeader  = 16 // id 8, flags 2, count 2, overflow 4
	pageElement = 16 // branch: pos 4, ksize 4, page 8; leaf: flags 4, pos 4, ksize 4, vsize 4

	branchPage   = 0x01
	leafPage     = 0x02
	metaPage     = 0x04
	freelistPage = 0x10

	bucketElement = 0x01 // flag of a leaf's element whose value is a bucket
	bucketHeader  = 16   // root page 8, sequence 8; the page follows if that is 0
)

type meta struct {
	pageSize       uint64
	root, freelist uint64
	pages, txid    uint64
}

var native = binary.NativeEndian

// readMeta reads the meta page of number id.
func readMeta(page []byte, id uint64) (m meta, _ error) {
	const magic, version, size = 0xED0CDAED, 2, 64
	if len(page) < pageHeader+size {
		return m, errors.New("it is cut off")
	}
	b := page[pageHeader:]
	if native.Uint32(b) != magic {
		return m, errors.New("it is no bbolt database")
	}
	if v := native.Uint32(b[4:]); v != version {
		return m, fmt.Errorf("it is a bbolt database of version %d, this vgpud knows %d", v, version)
	}
	sum := fnv.New64a()
	sum.Write(b[:size-8])
	if sum.Sum64() != native.Uint64(b[size-8:]) || native.Uint64(page) != id || native.Uint16(page[8:]) != metaPage {
		return m, fmt.Errorf("meta page %d is damaged", id)
	}
	m = meta{
		pageSize: uint64(native.Uint32(b[8:])),
		root:     native.Uint64(b[16:]), freelist: native.Uint64(b[32:]),
		pages: native.Uint64(b[40:]), txid: native.Uint64(b[48:]),
	}
	if m.txid%2 != id {
		return m, fmt.Errorf("meta page %d is of transaction %d", id, m.txid)
	}
	return m, nil
}

// newestMeta is the meta page of the last transaction.
//
// bbolt would go on with one meta page, and so one transaction back, where the other
// is damaged. That transaction may have been a page that was handed out.
func newestMeta(data []byte) (m meta, _ error) {
	m, err := readMeta(data, 0)
	if err != nil {
		return m, err
	}
	if s := m.pageSize; s < 1024 || s > 1<<16 || s&(s-1) != 0 || uint64(len(data)) < 2*s {
		return m, fmt.Errorf("%d bytes in pages of %d", len(data), s)
	}
	other, err := readMeta(data[m.pageSize:], 1)
	if err != nil {
		return m, err
	}
	switch {
	case other.pageSize == m.pageSize && other.txid == m.txid+1:
		return other, nil
	case other.pageSize == m.pageSize && m.txid == other.txid+1:
		return m, nil
	}
	return m, fmt.Errorf("transactions %d and %d do not follow each other", m.txid, other.txid)
}

// checkFile says why data can not be given to bbolt, nil if it can.
func checkFile(data []byte) error {
	m, err := newestMeta(data)
	if err != nil {
		return err
	}
	if m.pages < 4 || m.pages > uint64(len(data))/m.pageSize {
		return fmt.Errorf("%d bytes for %d pages", len(data), m.pages)
	}
	c := fileCheck{meta: m, data: data, used: make([]bool, m.pages)}
	c.used[0], c.used[1] = true, true
	if err := c.tree(m.root, true, nil, nil); err != nil {
		return err
	}
	if err := c.free(); err != nil {
		return err
	}
	for id, used := range c.used {
		if !used {
			return fmt.Errorf("page %d is neither used nor free", id)
		}
	}
	return nil
}

type fileCheck struct {
	meta
	data []byte
	used []bool // by page
}

// page is a page that is in use.
type page struct {
	id           uint64
	flags, count uint16
	body         []byte
}

func parsePage(b []byte) page {
	return page{id: native.Uint64(b), flags: native.Uint16(b[8:]), count: native.Uint16(b[10:]), body: b[pageHeader:]}
}

// take takes the page of number id, with those behind it that it runs over into.
func (c *fileCheck) take(id uint64) (p page, _ error) {
	if id >= c.pages {
		return p, fmt.Errorf("page %d of %d", id, c.pages)
	}
	b := c.data[id*c.pageSize:]
	run := uint64(native.Uint32(b[12:])) + 1
	if run > c.pages-id {
		return p, fmt.Errorf("page %d runs over the end", id)
	}
	for i := id; i < id+run; i++ {
		if c.used[i] {
			return p, fmt.Errorf("page %d is used twice", i)
		}
		c.used[i] = true
	}
	p = parsePage(b[:run*c.pageSize])
	if p.id != id {
		return p, fmt.Errorf("page %d says that it is %d", id, p.id)
	}
	return p, nil
}

// element is one of a page.
type element struct {
	flags      uint32
	child      uint64 // of a branch
	key, value []byte
}

// elements are those of a page, in order, and within low and, if given, high.
func (p page) elements(low, high []byte) ([]element, error) {
	bad := fmt.Errorf("page %d is damaged", p.id)
	at := int(p.count) * pageElement
	if at > len(p.body) {
		return nil, bad
	}
	all := make([]element, p.count)
	for i := range all {
		b := p.body[i*pageElement:]
		var e element
		var pos, ksize, vsize uint32
		if p.flags == branchPage {
			pos, ksize, e.child = native.Uint32(b), native.Uint32(b[4:]), native.Uint64(b[8:])
		} else {
			e.flags, pos, ksize, vsize = native.Uint32(b), native.Uint32(b[4:]), native.Uint32(b[8:]), native.Uint32(b[12:])
		}
		left := uint64(len(p.body) - at)
		if i*pageElement+int(pos) != at || ksize == 0 || uint64(ksize)+uint64(vsize) > left {
			return nil, bad
		}
		e.key = p.body[at : at+int(ksize)]
		at += int(ksize)
		e.value = p.body[at : at+int(vsize)]
		at += int(vsize)
		if bytes.Compare(e.key, low) < 0 || (i > 0 && bytes.Equal(e.key, low)) || (high != nil && bytes.Compare(e.key, high) >= 0) {
			return nil, fmt.Errorf("the keys of page %d are not in order", p.id)
		}
		low = e.key
		all[i] = e
	}
	return all, nil
}

// tree looks at the pages from page id on. Those of the root hold buckets, those
// of a bucket hold none: vgpud makes no others.
func (c *fileCheck) tree(id uint64, root bool, low, high []byte) error {
	p, err := c.take(id)
	if err != nil {
		return err
	}
	if p.flags != branchPage {
		return c.leaf(p, root, low, high)
	}
	all, err := p.elements(low, high)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("branch page %d is empty", id)
	}
	for i, e := range all {
		next := high
		if i+1 < len(all) {
			next = all[i+1].key
		}
		if err := c.tree(e.child, root, e.key, next); err != nil {
			return err
		}
	}
	return nil
}

func (c *fileCheck) leaf(p page, root bool, low, high []byte) error {
	if p.flags != leafPage {
		return fmt.Errorf("page %d has flags %#x", p.id, p.flags)
	}
	all, err := p.elements(low, high)
	if err != nil {
		return err
	}
	for _, e := range all {
		switch {
		case !root && e.flags == 0:
			continue
		case !root || e.flags != bucketElement || len(e.value) < bucketHeader:
			return fmt.Errorf("page %d is damaged", p.id)
		}
		if child := native.Uint64(e.value); child != 0 {
			err = c.tree(child, false, nil, nil)
		} else if inline := e.value[bucketHeader:]; len(inline) < pageHeader {
			err = fmt.Errorf("page %d is damaged", p.id)
		} else {
			err = c.leaf(parsePage(inline), false, nil, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// free looks at the list of free pages.
func (c *fileCheck) free() error {
	p, err := c.take(c.freelist)
	if err != nil {
		return err
	}
	if p.flags != freelistPage {
		return fmt.Errorf("page %d is no list of free pages", p.id)
	}
	count, ids := uint64(p.count), p.body
	if p.count == 0xffff { // does not fit, and stands in front
		count, ids = native.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids))/8 {
		return fmt.Errorf("page %d is damaged", p.id)
	}
	for i := range count {
		id := native.Uint64(ids[8*i:])
		if id >= c.pages || c.used[id] {
			return fmt.Errorf("page %d is free and used, or free twice", id)
		}
		c.used[id] = true
	}
	return nil
}
