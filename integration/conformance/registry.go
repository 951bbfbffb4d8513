// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// registry serves images to those who pull them, by the OCI distribution
// specification. In a box it stands in for every registry that the suites know.
type registry struct {
	blobs map[digest.Digest]blob
	tags  map[string]digest.Digest // by repository:tag

	compressed map[digest.Digest]ocispec.Descriptor // of layers, by their own digest
}

type blob struct {
	mediaType string
	data      []byte
}

func newRegistry() *registry {
	return &registry{
		blobs:      map[digest.Digest]blob{},
		tags:       map[string]digest.Digest{},
		compressed: map[digest.Digest]ocispec.Descriptor{},
	}
}

// put keeps a blob and describes it.
func (r *registry) put(mediaType string, data []byte) ocispec.Descriptor {
	d := digest.FromBytes(data)
	r.blobs[d] = blob{mediaType, data}
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
}

func (r *registry) putJSON(mediaType string, value any) (ocispec.Descriptor, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return r.put(mediaType, data), nil
}

func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	path, ok := strings.CutPrefix(q.URL.Path, "/v2/")
	if !ok || q.Method != http.MethodGet && q.Method != http.MethodHead {
		http.NotFound(w, q)
		return
	}
	if path == "" {
		return
	}
	var d digest.Digest
	if repository, reference, ok := strings.Cut(path, "/manifests/"); ok {
		if d, ok = r.tags[repository+":"+reference]; !ok {
			d = digest.Digest(reference)
		}
	} else if _, reference, ok := strings.Cut(path, "/blobs/"); ok {
		d = digest.Digest(reference)
	}
	b, ok := r.blobs[d]
	if !ok {
		http.NotFound(w, q)
		return
	}
	w.Header().Set("Content-Type", b.mediaType)
	w.Header().Set("Docker-Content-Digest", d.String())
	http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(b.data))
}

// serve serves the registry under the names of hosts, on their port 443, for as
// long as this process lives. Who trusts the certificates in the file authority
// and resolves names by /etc/hosts gets there.
func (r *registry) serve(hosts []string, authority string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	certificate := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		DNSNames:              hosts,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, certificate, certificate, &key.PublicKey, key)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(authority, text, 0o644); err != nil {
		return err
	}
	names := "127.0.0.1 localhost " + strings.Join(hosts, " ") + "\n"
	if err := os.WriteFile("/etc/hosts", []byte(names), 0o644); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:443")
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           r,
		ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{
			MinVersion:   tls.VersionTLS12,
			Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		},
	}
	go func() { _ = server.ServeTLS(l, "", "") }() // whoever pulls tells of an error
	return nil
}
