// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// The users of the container in which people log in.
const (
	loginUID = 4711
	loginSSH = "ssh -i /root/.ssh/key -o StrictHostKeyChecking=no -o LogLevel=ERROR -p 2222 "
)

// Processes that come into a running container by a login, as another user, or
// from outside: what they had of an environment is lost on the way, and some have
// a loader that trusts none. All are of the container's vGPU, and gated.
func TestLogins(t *testing.T) {
	c := newCrowd(t)
	c.installLogins()
	logins := []login{
		{how: "/clients/linked"},
		{how: "env -i /clients/adds libcuda.so.1"},
		{how: "su person -c /clients/linked", uid: loginUID},
		{how: "su - person -c '/clients/adds libcuda.so.1'", uid: loginUID},
		{how: "sudo -u person /clients/linked", uid: loginUID},
		{how: "su person -c 'sudo /clients/adds libcuda.so.1'"},
		{how: "su person -c /usr/local/bin/linked"}, // setuid: its loader trusts no environment
		{how: loginSSH + "person@127.0.0.1 /clients/linked", uid: loginUID},
		{how: loginSSH + "root@127.0.0.1 /clients/adds libcuda.so.1"},
		{how: loginSSH + "-tt person@127.0.0.1 sudo /clients/linked"},
		{how: "nsenter"},
	}
	server := c.add(harness.Spec{
		ID: "server", Args: []string{"/bin/sh", "-c", "mkdir /run/sshd && exec /usr/sbin/sshd -D -e -p 2222"},
		Extra: []string{"--allow-new-privs"},
	}, len(logins), row{
		Client: "exec, env -i, su, sudo, setuid, ssh, nsenter", Version: "-", Does: "sums of vectors in 11 processes that came into the container",
	})
	beside := c.add(harness.Spec{ID: "beside", Args: []string{"/clients/linked"}}, 1, row{})
	c.Wait(func() error {
		if !strings.Contains(server.Output(), "Server listening") {
			return fmt.Errorf("sshd says %q", server.Output())
		}
		return nil
	})

	ended := make(chan login, len(logins))
	for _, l := range logins {
		go func() {
			if l.how == "nsenter" {
				var b []byte
				b, l.err = exec.CommandContext(c.Ctx, "nsenter", "--all", "--target", fmt.Sprint(server.PID), "/clients/linked").CombinedOutput()
				l.said = string(b)
			} else {
				l.said, l.err = server.Exec(c.Ctx, "/bin/sh", "-c", l.how)
			}
			ended <- l
		}()
	}
	c.meet()
	for range logins {
		l := <-ended
		if l.err != nil {
			t.Fatalf("%s: %v: %s; sshd says %s", l.how, l.err, l.said, server.Output())
		}
		if s := c.checked(server, l.said); s.UID != l.uid {
			t.Errorf("%s: computed as user %d, want %d", l.how, s.UID, l.uid)
		}
	}
	c.right(beside)
	c.judge()
}

// login is a process that comes into a container.
type login struct {
	how  string // for the shell
	uid  int
	said string
	err  error
}

// installLogins puts Debian's sudo and sshd into the root file system, with keys
// and a user who may log in by them.
func (c *crowd) installLogins() {
	c.T.Helper()
	root := c.rootfs
	for _, name := range []string{"sudo", "openssh-server"} {
		from := filepath.Join(c.Paths.Tools, "debian", name)
		for _, part := range []string{"usr", "etc"} {
			c.do("cp", "-a", filepath.Join(from, part)+"/.", filepath.Join(root, part))
		}
	}
	for name, line := range map[string]string{
		"passwd":  fmt.Sprintf("person:x:%d:%d::/home/person:/bin/sh\nsshd:x:4712:65534::/run/sshd:/usr/sbin/nologin\n", loginUID, loginUID),
		"group":   fmt.Sprintf("person:x:%d:\n", loginUID),
		"shadow":  "person:*:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n",
		"sudoers": "person ALL=(ALL:ALL) NOPASSWD: ALL\n",
	} {
		f, err := os.OpenFile(filepath.Join(root, "etc", name), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o440)
		if err != nil {
			c.T.Fatal(err)
		}
		if _, err := f.WriteString(line); err != nil {
			c.T.Fatal(err)
		}
		if err := f.Close(); err != nil {
			c.T.Fatal(err)
		}
	}
	keys := c.T.TempDir()
	for name, to := range map[string]string{"host": "etc/ssh/ssh_host_ed25519_key", "key": "root/.ssh/key"} {
		key := filepath.Join(keys, name)
		c.do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
		c.do("install", "-D", "-m", "0600", key, filepath.Join(root, to))
	}
	public := filepath.Join(keys, "key.pub")
	c.do("install", "-D", "-m", "0600", public, filepath.Join(root, "root/.ssh/authorized_keys"))
	home := filepath.Join(root, "home/person")
	c.do("install", "-D", "-m", "0600", public, filepath.Join(home, ".ssh/authorized_keys"))
	c.do("chown", "-R", fmt.Sprint(loginUID, ":", loginUID), home)
	c.do("install", "-m", "4755", filepath.Join(c.programs, "linked"), filepath.Join(root, "usr/local/bin"))
	c.do("install", "-m", "0644", filepath.Join(root, "usr/share/openssh/sshd_config"), filepath.Join(root, "etc/ssh"))
}
