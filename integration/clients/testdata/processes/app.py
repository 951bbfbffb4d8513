# SPDX-License-Identifier: Apache-2.0
"""A web application that adds vectors on the GPU at each request.

/meet/TOKEN/N waits until N processes are in such a request at once, so that N
requests are answered by as many.
"""

import os
import time

import driver  # loads the driver's library, in the master too with --preload

adder = None


def begin():
    global adder
    adder = driver.Adder()
    adder.add()
    driver.leave_word()


def meet(token, n):
    place = f"/tmp/meet-{token}"
    os.makedirs(place, exist_ok=True)
    open(f"{place}/{os.getpid()}", "w").close()
    while len(os.listdir(place)) < n:
        time.sleep(0.01)


def application(environ, start_response):
    words = environ["PATH_INFO"].split("/")
    if words[1] == "meet":
        meet(words[2], int(words[3]))
    for _ in range(5):
        adder.add()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
