# SPDX-License-Identifier: Apache-2.0
# The settings under which app.py is served; with --preload it is loaded before
# the workers are forked.
bind = "127.0.0.1:8000"
workers = 32
# Beside what others have of the same root file system.
control_socket = "/dev/shm/gunicorn.ctl"
pidfile = "/dev/shm/gunicorn.pid"
wsgi_app = "app:application"
# Nothing else tells which worker runs; a request is answered by one at a time.
worker_class = "sync"
# A worker that does not answer is killed, but not one that waits for a CPU among so many.
timeout = graceful_timeout = 60


def post_worker_init(worker):
    """In each worker: CUDA is initialised after the fork."""
    import app
    app.begin()
