# SPDX-License-Identifier: Apache-2.0
"""Two processes meet: neither goes on before both are there.

MEETING names a directory that both see, MEETING_AS this process, MEETING_OF all
of them with commas between. Without MEETING there is nobody to wait for. A
process meets as often as the others do: each time is a file NUMBER.NAME, so that
programs in other languages can take part.
"""

import itertools
import os
import time

_numbers = itertools.count(1)


def meet():
    where = os.environ.get("MEETING")
    if not where:
        return
    number = next(_numbers)
    path = lambda name: os.path.join(where, f"{number}.{name}")
    open(path(os.environ["MEETING_AS"]), "x").close()
    while not all(os.path.exists(path(n)) for n in os.environ["MEETING_OF"].split(",")):
        time.sleep(0.002)
