"""The process that forks workers, with a parent of its own: a pytest run has threads."""

import subprocess
import sys

# A worker ends at once, which the parent does not read before it ends itself.
PARENT = """
import os, select, socket
from extproc.workers.forkserver import start_fork_server

requests = start_fork_server(lambda *_: 0)
ends = [*socket.socketpair(), *socket.socketpair()]
socket.send_fds(requests, [b"1"], [ends[0].fileno(), ends[2].fileno()])
assert select.select([requests], [], [], 60)[0]
requests.close()
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_parent_that_is_killed_before_it_has_heard_of_an_end_is_no_fault() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT], capture_output=True, text=True, check=False, timeout=120
    )

    assert (done.stdout, done.stderr) == ("0\n", "")
