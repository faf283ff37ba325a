"""Gateways that share over a real NATS server; and over one that is not there."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from extproc.share.courier import Tally
from extproc.share.nats import Nats, NatsAccess
from tests.integration.mesh import until
from tests.integration.ports import free_ports
from tests.share.broker import Broker
from tests.share.gateways import Build, Gateway

LONG_S = 40.0


def over(broker: Broker, *, password: str = "password") -> Build:
    access = NatsAccess([f"nats://127.0.0.1:{broker.port}"], user="gateway", password=password)

    def build(tally: Tally) -> Nats:
        return Nats(access, "llm", tally)

    return build


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path, free_ports(1)[0])


@pytest.fixture
async def three(broker: Broker) -> AsyncGenerator[list[Gateway]]:
    gateways = [Gateway(me, over(broker)) for me in (1, 2, 3)]
    async with AsyncExitStack() as stack:
        for gateway in gateways:
            await stack.enter_async_context(gateway.running())
        yield gateways


async def test_picks_count_everywhere_whenever_the_server_comes_and_goes(
    broker: Broker, three: list[Gateway]
) -> None:
    """Nobody waits for the server.

    1. It is not there: picks are picks. 2. It comes: a pick counts everywhere. 3. It dies: picks go on, and
    the others' counts are gone. 4. It is back: all is as before.
    """
    one, two, _ = three
    one.pick("before").release()
    with broker:
        await until(lambda: all(gateway.neighbours.prompt == 2 for gateway in three), LONG_S)
        pick = one.pick()
        await until(lambda: all(gateway.pool.book.total == 1 for gateway in three), LONG_S)
        broker.kill()
        await until(lambda: two.pool.book.total == 0 and two.neighbours.lost == 2, LONG_S)
        two.pick("meanwhile").release()
        broker.start()
        await until(lambda: all(gateway.pool.book.total == 1 for gateway in three), LONG_S)
        pick.release()
        await until(lambda: not any(gateway.pool.book.total for gateway in three), LONG_S)


async def test_a_wrong_password_and_another_cluster_are_not_heard(
    broker: Broker, three: list[Gateway]
) -> None:
    async with AsyncExitStack() as stack:
        stack.enter_context(broker)
        await until(lambda: all(gateway.neighbours.prompt == 2 for gateway in three), LONG_S)
        shut = Gateway(4, over(broker, password="wrong"))
        other = Gateway(5, over(broker), cluster="another")
        await stack.enter_async_context(shut.running())
        await stack.enter_async_context(other.running())
        await until(lambda: shut.counts["unsent"] > 1 and three[0].counts["foreign"] > 1, LONG_S)

        assert shut.counts["sent"] == 0
        assert {2} == {gateway.neighbours.heard for gateway in three}
        assert other.neighbours.heard == 0


async def test_who_ends_says_farewell(broker: Broker, three: list[Gateway]) -> None:
    with broker:
        fourth = Gateway(4, over(broker))
        async with fourth.running():
            await until(lambda: all(gateway.neighbours.heard == 3 for gateway in three), LONG_S)
        await until(lambda: all(gateway.neighbours.heard == 2 for gateway in three), LONG_S)

        assert [0, 0, 0] == [gateway.neighbours.lost for gateway in three]
