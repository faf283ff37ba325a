"""Who is remembered, and what is taken of whom."""

import asyncio

from extproc.router.share.courier import _MOST_SENDERS, Receiver
from extproc.router.share.messages import Letter
from extproc.router.share.names import name_of
from extproc.router.share.sealed import Seal
from tests.router.share.gateways import SECRET, Gateway, meshed


def test_who_is_heard_is_not_forgotten_for_others() -> None:
    """Somebody plays letters of more senders than are remembered: none of them pushes another one out."""
    gateway = Gateway(1, meshed(1, []))
    sent = [
        Seal("llm", SECRET, me).close(Letter(me, name_of("llama"), 1)) for me in range(2, _MOST_SENDERS + 7)
    ]
    for data in sent:
        gateway.courier.take(data)

    assert (gateway.counts["heard"], gateway.counts["flood"]) == (_MOST_SENDERS, 5)

    gateway.courier.take(sent[0])

    assert gateway.counts["repeated"] == 1
    assert gateway.neighbours.active == 0


async def test_what_is_told_at_once_does_not_wait_for_more() -> None:
    """A pick that would lie there for some milliseconds is under way when somebody needs it to be."""
    sent: list[bytes] = []
    gateway = Gateway(1, lambda _: Noting(sent))
    async with gateway.running():
        await asyncio.sleep(0)
        gateway.pick()
        assert not sent
        gateway.courier.post()
        assert len(sent) == 1
        gateway.courier.post()
        assert len(sent) == 1


class Noting:
    """A carrier that has nobody to carry to."""

    def __init__(self, sent: list[bytes]) -> None:
        self._sent = sent

    async def open(self) -> None: ...

    async def run(self, receiver: Receiver) -> None:
        assert receiver is not None
        await asyncio.Event().wait()

    def send(self, data: bytes) -> None:
        self._sent.append(data)

    async def close(self) -> None: ...
