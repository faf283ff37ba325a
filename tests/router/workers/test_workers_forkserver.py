"""The process that forks workers, with a parent of its own: a pytest run has threads."""

import subprocess
import sys

# A worker ends at once, which the parent does not read before it ends itself.
PARENT = """
import os, select, socket
from extproc.router.workers.forkserver import start_fork_server

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


# The second process that the fork server asks for is one too many, for the moment.
SCARCE = """
import errno, os, select, socket
from msgspec.msgpack import decode
from extproc.router.workers.forkserver import start_fork_server

fork, forks = os.fork, []

def scarce():
    forks.append(fork)
    if len(forks) == 2:
        raise OSError(errno.EAGAIN, "too many processes")
    return fork()

os.fork = scarce
requests = start_fork_server(lambda *_: 7)
ends = [*socket.socketpair(), *socket.socketpair()]
for order in (b"1", b"2"):
    socket.send_fds(requests, [order], [ends[0].fileno(), ends[2].fileno()])
    news = []
    while not news or news[-1][0] == 1:
        assert select.select([requests], [], [], 60)[0]
        news.append(decode(requests.recv(256)))
    print(news[-1])
"""


def test_a_process_that_cannot_be_started_is_told_of_and_the_next_one_is() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCARCE], capture_output=True, text=True, check=False, timeout=120
    )

    assert done.stdout == "[2, 1, 1]\n[2, 2, 7]\n"
    assert done.stderr == "extproc: no process can be started: too many processes\n"


# A worker that says nothing, as one that hangs before it serves.
SILENT = """
import asyncio, signal, socket
from extproc.router.workers.forkserver import ForkServer, start_fork_server

async def main():
    server = ForkServer(requests)
    server.watch()
    ends = [*socket.socketpair(), *socket.socketpair()]
    child = server.fork(ends[0], ends[2])
    while child.pid is None:
        await asyncio.sleep(0.01)
    child.kill()
    print(await child.ended)
    server.close()

requests = start_fork_server(lambda *_: signal.pause())
asyncio.run(asyncio.wait_for(main(), 60))
"""


def test_a_process_that_has_said_nothing_yet_can_be_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SILENT], capture_output=True, text=True, check=False, timeout=120
    )

    assert (done.stdout, done.stderr) == ("-9\n", "")
