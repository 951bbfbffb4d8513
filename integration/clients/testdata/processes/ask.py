# SPDX-License-Identifier: Apache-2.0
"""Asks the server of app.py over HTTP. Prints the pids of the workers that have
answered, as JSON; ends with status 1 if a request fails.

    ask.py meet TOKEN N     N requests that are there at once
    ask.py reload TOKEN N   the same; then has the server's master
                            reload while requests run, until all workers are
                            others, and the same again
"""

import concurrent.futures
import json
import os
import signal
import sys
import urllib.request


def ask(path):
    with urllib.request.urlopen("http://127.0.0.1:8000" + path, timeout=30) as answer:
        return int(answer.read())


def meet(token, n):
    with concurrent.futures.ThreadPoolExecutor(n) as threads:
        return sorted(set(threads.map(ask, [f"/meet/{token}/{n}"] * n)))


def gone(pids):
    return not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def main(what, token, n):
    pids = meet(token, n)
    if what == "meet":
        return {"before": pids}

    def busy(_):
        asked = 0
        while not gone(pids):
            ask("/add")
            asked += 1
            if asked == 2:
                begun.append(asked)
        return asked

    begun = []
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(busy, i) for i in range(8)]
        while len(begun) < 8:
            concurrent.futures.wait(asked, 0.01)
        os.kill(int(open("/dev/shm/gunicorn.pid").read()), signal.SIGHUP)
        asked = sum(one.result() for one in asked)
    return {"before": pids, "asked": asked, "after": meet(token + "-again", n)}


print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
