# SPDX-License-Identifier: Apache-2.0
"""Bursts of work as PyTorch submits it, stamped (../programs/bursts.c has the same
protocol):

  worker.py MODE --kernels DIR [--bursts N] [--gap-us US]

MODE is eager, graphs, compiled or small, or driver: that one needs no PyTorch and
makes bursts of stamps alone, so that this protocol is known to work where there is
none. A stamp stands at both ends of each burst, and between its steps.
"""
import argparse
import sys
import time

import stamps

STEPS = 8  # of a burst
CAPACITY = 65536


class Driver:
    def __init__(self):
        stamps.open_device()

    def stream(self):
        return 0

    def prepare(self, mark):
        self.mark = mark

    def burst(self):
        for _ in range(STEPS):
            self.mark(loops=200000)

    def wait(self):
        stamps.call("cuCtxSynchronize")


class Torch:
    """A step is some layers of a network, or many small operations."""

    def __init__(self, mode):
        import torch

        self.torch, self.mode = torch, mode
        torch.manual_seed(0)
        torch.cuda.init()
        self.x = torch.randn(64 if mode == "small" else 4096, 1024, device="cuda", dtype=torch.bfloat16)
        layers = [m for _ in range(4) for m in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
        self.net = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16).requires_grad_(False)
        torch.cuda.synchronize()  # the context is current from here on

    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream

    def step(self):
        if self.mode == "small":
            y = self.x
            for _ in range(100):
                y = y * 1.0001 + 0.0001
            return y
        return self.net(self.x)

    def all_steps(self):
        for _ in range(STEPS):
            for _ in range(1 if self.mode == "small" else 16):
                self.out = self.step()
            self.mark()

    def prepare(self, mark):
        self.mark = mark
        torch = self.torch
        if self.mode == "compiled":
            self.net = torch.compile(self.net)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                self.all_steps()
        torch.cuda.synchronize()
        if self.mode == "graphs":
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.all_steps()
        torch.cuda.synchronize()

    def burst(self):
        if self.mode == "graphs":
            self.graph.replay()
        else:
            self.all_steps()

    def wait(self):
        self.torch.cuda.synchronize()

    def check(self):
        if not bool(self.torch.isfinite(self.out.float()).all()):
            sys.exit("the result is not finite")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("mode", choices=["eager", "graphs", "compiled", "small", "driver"])
    p.add_argument("--kernels", required=True)
    p.add_argument("--bursts", type=int, default=40)
    p.add_argument("--gap-us", type=int, default=5000)
    a = p.parse_args()
    work = Driver() if a.mode == "driver" else Torch(a.mode)
    function = stamps.load(a.kernels)
    log = stamps.Stamps(function, CAPACITY)
    work.prepare(lambda loops=0: log.launch(work.stream(), loops))
    work.wait()
    before = len(log.read()[0])
    stamps.say_clock(function)
    print("ready", flush=True)
    sys.stdin.readline()
    began, first = time.monotonic_ns(), 0
    for b in range(a.bursts):
        if b:
            time.sleep(a.gap_us / 1e6)
        log.launch(work.stream())
        work.burst()
        log.launch(work.stream())
        work.wait()
        first = first or time.monotonic_ns()
    ended = time.monotonic_ns()
    print("began %d\nfirst %d\nended %d" % (began, first, ended))
    stamps.say_clock(function)
    spans, lost = log.read()
    for span in spans[before:]:
        print("span %d %d" % span)
    print("lost %d" % lost)
    if a.mode != "driver":
        work.check()
    print("done", flush=True)


main()
