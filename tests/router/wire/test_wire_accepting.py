"""An address, while descriptors are scarce."""

import asyncio
import resource
import socket

import pytest

from extproc.router.wire.accepting import Acceptor, bind
from tests.waiting import until


async def test_who_has_ended_while_no_descriptor_was_free_accepts_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """1. A connection finds no descriptor: later, then. 2. It is over before that. 3. Nothing comes of it."""
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    [listening] = await bind("127.0.0.1:0")
    acceptor = Acceptor([listening], socket.socket.close)
    acceptor.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(listening.getsockname()):
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            await until(lambda: "no connection can be accepted" in caplog.text, 40.0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        acceptor.close()
        await asyncio.sleep(0.3)

    assert faults == []
