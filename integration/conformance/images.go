// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// busybox is what all images are made of.
const busybox = "/usr/bin/busybox"

// layer is one layer of an image, uncompressed.
type layer struct {
	buffer bytes.Buffer
	tar    *tar.Writer
	err    error // the first one
}

func newLayer() *layer {
	l := &layer{}
	l.tar = tar.NewWriter(&l.buffer)
	return l
}

func (l *layer) add(h tar.Header, content string) {
	if l.err != nil {
		return
	}
	h.Size, h.Format = int64(len(content)), tar.FormatPAX
	if l.err = l.tar.WriteHeader(&h); l.err == nil {
		_, l.err = l.tar.Write([]byte(content))
	}
}

func (l *layer) dir(name string, mode int64) {
	l.add(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}, "")
}

func (l *layer) file(name string, mode int64, content string) {
	l.add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, content)
}

// link makes a hard link: a test that hides one program must not hide all.
func (l *layer) link(name, target string) {
	l.add(tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o755}, "")
}

func (l *layer) bytes() ([]byte, error) {
	if l.err != nil {
		return nil, l.err
	}
	err := l.tar.Close()
	return l.buffer.Bytes(), err
}

// The users of the busybox image that the suites expect; defaultUser is added in
// one of the images.
const (
	passwd = "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\nsys:x:3:3:sys:/dev:/bin/false\n" +
		"www-data:x:33:33:www-data:/var/www:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\n"
	group       = "root:x:0:\ndaemon:x:1:\nsys:x:3:\nwww-data:x:33:\nusers:x:100:\nnogroup:x:65534:\n"
	defaultUser = "default-user:x:1000:1000::/home:/bin/sh\n"
	moreGroups  = "default-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n"
)

// netcat is nc for images. As the first process of a container it must end on
// SIGTERM, and Debian's busybox has one that takes no notice.
const netcat = `#!/bin/sh
trap 'kill $!; exit 143' TERM
busybox nc "$@" <&0 &
wait $!
`

// What Debian's busybox lacks: ipcs, which is asked for shared memory alone, and
// pgrep, which is asked for a program's name.
const (
	ipcs  = "#!/bin/sh\ncat /proc/sysvipc/shm\n"
	pgrep = "#!/bin/sh\npidof \"$1\"\n"
)

// base is the layer that all images begin with.
func base() (*layer, error) {
	program, err := os.ReadFile(busybox)
	if err != nil {
		return nil, err
	}
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("busybox --list: %w", err)
	}
	l := newLayer()
	for _, dir := range []string{"bin", "dev", "etc", "home", "proc", "run", "sys", "usr", "usr/bin", "usr/sbin", "var", "var/run", "var/www"} {
		l.dir(dir, 0o755)
	}
	l.dir("root", 0o700)
	l.dir("tmp", 0o1777)
	l.file("etc/passwd", 0o644, passwd)
	l.file("etc/group", 0o644, group)
	l.file("bin/busybox", 0o755, string(program))
	l.file("bin/nc", 0o755, netcat)
	l.file("bin/ipcs", 0o755, ipcs)
	l.file("bin/pgrep", 0o755, pgrep)
	for name := range strings.FieldsSeq(string(applets)) {
		if name != "busybox" && name != "nc" {
			l.link("bin/"+name, "bin/busybox")
		}
	}
	return l, l.err
}

// nginx is a shell script in its place: a process by its name that serves a page,
// and says what it is in its log and, by an argument, in its command line.
const (
	nginxRole = "master process"
	nginx     = `#!/bin/sh
echo serving with httpd
trap 'exit 0' TERM QUIT
echo $$ >/var/run/nginx.pid
httpd -f -p %d -h /var/www &
wait
`
)

// effectiveUID is the command of this program that serves in the image nonewprivs.
const effectiveUID = "effective-uid"

// publish builds the images of the suites and gives them their names.
func publish(r *registry) error {
	b, err := base()
	if err != nil {
		return err
	}
	data, err := b.bytes()
	if err != nil {
		return err
	}
	shell := ocispec.ImageConfig{Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"sh"}}
	with := func(change func(*ocispec.ImageConfig)) ocispec.ImageConfig {
		c := shell
		change(&c)
		return c
	}
	user := func(name string) ocispec.ImageConfig {
		return with(func(c *ocispec.ImageConfig) { c.User = name })
	}
	var failed error
	add := func(name string, config ocispec.ImageConfig, layers ...*layer) {
		if failed == nil {
			failed = r.publish(name, config, data, layers)
		}
	}

	add("containerd/busybox:1.36", shell)
	add("e2e-test-images/busybox:1.29-2", shell, marked("e2e"))
	add("containerd/alpine:3.14.0", shell, marked("alpine"))
	pause := with(func(c *ocispec.ImageConfig) { c.Entrypoint, c.Cmd = []string{"/bin/sleep", "2147483647"}, nil })
	for _, tag := range []string{"3.6", "3.9", "3.10", "3.10.1", "3.10.2"} {
		add("pause:"+tag, pause, marked("pause "+tag))
	}
	copyUp := newLayer()
	copyUp.dir("test_dir", 0o755)
	copyUp.file("test_dir/test_file", 0o644, "test_content\n")
	add("containerd/volume-copy-up:2.2", shell, copyUp, marked("volume-copy-up"))
	ownership := newLayer()
	ownership.add(tar.Header{Typeflag: tar.TypeDir, Name: "test_dir/", Mode: 0o755, Uid: 65534, Gid: 65534}, "")
	ownership.file("usr/bin/passwd", 0o4755, "")
	ownership.file("bin/bash", 0o755, "#!/bin/sh\nexec sh \"$@\"\n")
	add("containerd/volume-ownership:2.1", shell, ownership)

	const cri = "k8s-staging-cri-tools/"
	for _, name := range []string{
		"test-image-latest:latest", "test-image-tag:test", "test-image-tag:all",
		"test-image-1:latest", "test-image-2:latest", "test-image-3:latest",
	} {
		add(cri+name, shell, marked(name))
	}
	for _, tag := range []string{"1", "2", "3"} {
		add(cri+"test-image-tags:"+tag, shell, marked("tags"))
	}
	add(cri+"test-image-user-uid:latest", user("1002"))
	add(cri+"test-image-user-username:latest", user("www-data"))
	add(cri+"test-image-user-uid-group:latest", user("1003:users"))
	add(cri+"test-image-user-username-group:latest", user("www-data:100"))
	predefined := newLayer()
	predefined.file("etc/passwd", 0o644, passwd+defaultUser)
	predefined.file("etc/group", 0o644, group+moreGroups)
	add(cri+"test-image-predefined-group:latest", user("1000"), predefined)

	web := func(port int) *layer {
		l := newLayer()
		l.file("usr/sbin/nginx", 0o755, fmt.Sprintf(nginx, port))
		l.file("var/www/index.html", 0o644, "It works!\n")
		return l
	}
	serving := with(func(c *ocispec.ImageConfig) { c.Cmd = []string{"nginx", nginxRole} })
	add("e2e-test-images/nginx:1.14-2", serving, web(80))
	add("e2e-test-images/httpd:2.4.39-4", serving, web(80), marked("httpd"))
	add(cri+"hostnet-nginx-"+runtime.GOARCH+":latest", serving, web(12003))

	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	privileged := newLayer()
	privileged.file("nnp", 0o4755, string(self))
	add("e2e-test-images/nonewprivs:1.3", with(func(c *ocispec.ImageConfig) { c.Entrypoint, c.Cmd = []string{"/nnp", effectiveUID}, nil }), privileged)
	return failed
}

// marked is a layer that makes an image differ from others.
func marked(text string) *layer {
	l := newLayer()
	l.file("etc/"+digest.FromString(text).Encoded(), 0o644, text+"\n")
	return l
}

// publish gives an image made of layers over base the name repository:tag. It is
// there for several platforms, as those that it stands for are; all hold this
// machine's programs, and a file that makes their layers differ.
func (r *registry) publish(name string, config ocispec.ImageConfig, base []byte, layers []*layer) error {
	all := [][]byte{base}
	for _, l := range layers {
		data, err := l.bytes()
		if err != nil {
			return fmt.Errorf("image %s: %w", path.Base(name), err)
		}
		all = append(all, data)
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, platform := range []ocispec.Platform{
		{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64", Variant: "v8"}, {OS: "linux", Architecture: "s390x"},
	} {
		own, err := marked(platform.Architecture).bytes()
		if err != nil {
			return err
		}
		d, err := r.manifest(platform, config, append(slices.Clip(all), own))
		if err != nil {
			return err
		}
		d.Platform = &platform
		index.Manifests = append(index.Manifests, d)
	}
	d, err := r.putJSON(ocispec.MediaTypeImageIndex, index)
	r.tags[name] = d.Digest
	return err
}

func (r *registry) manifest(platform ocispec.Platform, config ocispec.ImageConfig, layers [][]byte) (ocispec.Descriptor, error) {
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	i := ocispec.Image{Platform: platform, Config: config, RootFS: ocispec.RootFS{Type: "layers"}}
	for _, data := range layers {
		compressed, err := r.compress(data)
		if err != nil {
			return ocispec.Descriptor{}, err
		}
		m.Layers = append(m.Layers, compressed)
		i.RootFS.DiffIDs = append(i.RootFS.DiffIDs, digest.FromBytes(data))
	}
	var err error
	if m.Config, err = r.putJSON(ocispec.MediaTypeImageConfig, i); err != nil {
		return ocispec.Descriptor{}, err
	}
	return r.putJSON(ocispec.MediaTypeImageManifest, m)
}

// compress keeps a layer as registries do; a layer that is there already is not
// compressed again.
func (r *registry) compress(data []byte) (ocispec.Descriptor, error) {
	d := digest.FromBytes(data)
	if known, ok := r.compressed[d]; ok {
		return known, nil
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(data); err != nil {
		return ocispec.Descriptor{}, err
	}
	if err := z.Close(); err != nil {
		return ocispec.Descriptor{}, err
	}
	r.compressed[d] = r.put(ocispec.MediaTypeImageLayerGzip, b.Bytes())
	return r.compressed[d], nil
}
