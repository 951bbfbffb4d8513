// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/vgpu/node"
)

// parse reads a command line as main does, without serving.
func parse(t *testing.T, args ...string) (node.Config, error) {
	t.Helper()
	cmd := command()
	var flags node.Config
	var file string
	if err := cmd.ParseFlags(args); err != nil {
		return node.Config{}, err
	}
	for name, to := range map[string]*string{
		"config": &file, "gpus": &flags.GPUs, "state": &flags.State, "socket": &flags.Socket, "metrics": &flags.Metrics,
		"log-level": &flags.Log.Level, "log-format": &flags.Log.Format,
	} {
		value, err := cmd.Flags().GetString(name)
		if err != nil {
			t.Fatal(err)
		}
		*to = value
	}
	return configure(cmd, file, flags, "")
}

func TestFlagsWinOverTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "vgpud.toml")
	if err := os.WriteFile(file, []byte("gpus = 'sim:3'\nstate = '/from/file'\n[log]\nlevel = 'debug'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := parse(t, "--config", file, "--gpus=sim:1", "--log-format=json")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.GPUs != "sim:1" || cfg.State != "/from/file" || cfg.Log.Level != "debug" || cfg.Log.Format != "json" {
		t.Errorf("%+v", cfg)
	}
	if cfg.Socket != "/from/file/vgpud.sock" || cfg.Simulated.Machine != "/from/file/sim" {
		t.Errorf("what follows from the state directory: %+v", cfg)
	}
}

func TestMistakesAreMistakesOfUse(t *testing.T) {
	for _, tc := range []struct {
		args []string
		says string
	}{
		{[]string{"serve"}, "serve"},
		{[]string{"--gpu=nvml"}, "--help"},
		{[]string{"--config=/does/not/exist"}, "/does/not/exist"},
		{[]string{"--state=relative"}, "state"},
		{[]string{"--log-level=loud"}, "log.level"},
		{[]string{"--gpus=sim:17"}, "sim:N with N from 1 to 16"},
	} {
		cmd := command()
		cmd.SetArgs(tc.args)
		err := cmd.Execute()
		var u usage
		if !errors.As(err, &u) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%v: %v", tc.args, err)
		}
	}
}
