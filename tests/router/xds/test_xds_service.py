"""The discovery service over real gRPC, read with envoy-data-plane's messages."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from envoy_data_plane.envoy.service.discovery.v3 import DiscoveryRequest, DiscoveryResponse
from envoy_data_plane.google.rpc import Status

from extproc.grpc_server.grpcio import add_routes
from extproc.router.routing.endpoint import Endpoint
from extproc.router.stream.names import DISCOVER
from extproc.router.xds.resources import ASSIGNMENTS, CLUSTERS
from extproc.router.xds.service import Xds
from tests.waiting import until


class DiscoveryProxy:
    """An Envoy as far as the discovery service can see."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = channel.stream_stream(DISCOVER)()  # type: ignore[call-arg]  # optional at run time

    async def ask(self, type_url: str, *names: str) -> None:
        await self.call.write(
            bytes(DiscoveryRequest(type_url=type_url, resource_names=list(names)))
        )

    async def hear(self, timeout_s: float = 5.0) -> DiscoveryResponse:
        data = await asyncio.wait_for(self.call.read(), timeout_s)
        assert isinstance(data, bytes), "the stream has ended"
        return DiscoveryResponse.parse(data)

    async def answer(self, response: DiscoveryResponse, *names: str, fault: str = "") -> None:
        detail = Status(code=3, message=fault) if fault else None
        request = DiscoveryRequest(
            type_url=response.type_url,
            resource_names=list(names),
            version_info="" if fault else response.version_info,
            response_nonce=response.nonce,
            error_detail=detail,
        )
        await self.call.write(bytes(request))


@asynccontextmanager
async def serving_xds(xds: Xds) -> AsyncGenerator[str]:
    server = grpc.aio.server()
    add_routes(server, xds.routes())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def endpoint(number: int, *, is_ready: bool = True) -> Endpoint:
    return Endpoint(
        f"n{number}", f"10.0.{number // 250}.{number % 250 + 1}:8000", is_ready=is_ready
    )


@pytest.fixture
def xds() -> Xds:
    xds = Xds(["llama"], on_rejection=lambda _: None)
    xds.publish("llama", [endpoint(1)])
    return xds


async def test_a_refusal_is_counted_and_logged_without_line_breaks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rejections: list[str] = []
    async with (
        serving_xds(Xds(["llama"], on_rejection=rejections.append)) as target,
        grpc.aio.insecure_channel(target) as channel,
    ):
        proxy = DiscoveryProxy(channel)
        await proxy.ask(CLUSTERS)
        await proxy.answer(
            await proxy.hear(), fault="bad cluster\nlevel=ERROR forged" + "x" * 5_000
        )
        await until(lambda: bool(rejections))
    assert rejections == ["Cluster"]
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "bad cluster\\nlevel=ERROR forged" in line
    assert len(line) < 700


async def test_an_envoy_that_does_not_read_gets_the_newest_in_the_end(xds: Xds) -> None:
    """Hundreds of changes while one Envoy reads nothing: it finds one old message and the last one."""
    pool = [endpoint(number) for number in range(100)]
    async with serving_xds(xds) as target, grpc.aio.insecure_channel(target) as channel:
        slow = DiscoveryProxy(channel)
        await slow.ask(ASSIGNMENTS, "llama")
        for number in range(300):
            pool[number % 100] = endpoint(number % 100, is_ready=number >= 100)
            xds.publish("llama", pool[: number + 2])
            await asyncio.sleep(0)
        first = await slow.hear()
        await slow.answer(first, "llama")
        last = await slow.hear()
        await slow.answer(last, "llama")
        with pytest.raises(TimeoutError):
            await slow.hear(timeout_s=0.2)

    assert len(last.resources[0].value) > 2_000


async def test_a_stream_of_nonsense_is_ended_and_the_others_go_on(
    xds: Xds, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving_xds(xds) as target, grpc.aio.insecure_channel(target) as channel:
        good, bad = DiscoveryProxy(channel), DiscoveryProxy(channel)
        await good.ask(CLUSTERS)
        await good.answer(await good.hear())
        await bad.call.write(b"\xff" * 40)
        assert await bad.call.code() is grpc.StatusCode.INVALID_ARGUMENT

        xds.publish("qwen", [endpoint(3)])

        assert len((await good.hear()).resources) == 2
    assert "not a DiscoveryRequest" in caplog.text


async def test_a_stream_that_is_gone_is_forgotten(xds: Xds) -> None:
    async with serving_xds(xds) as target:
        async with grpc.aio.insecure_channel(target) as channel:
            proxy = DiscoveryProxy(channel)
            await proxy.ask(CLUSTERS)
            await proxy.hear()
            assert xds.streams_open == 1
        await until(lambda: xds.streams_open == 0)


async def test_a_client_that_says_goodbye_ends_its_stream(xds: Xds) -> None:
    async with serving_xds(xds) as target, grpc.aio.insecure_channel(target) as channel:
        proxy = DiscoveryProxy(channel)
        await proxy.ask(CLUSTERS)
        await proxy.hear()

        await proxy.call.done_writing()

        assert await proxy.call.read() is grpc.aio.EOF  # type: ignore[attr-defined]  # not in the stubs
        assert await proxy.call.code() is grpc.StatusCode.OK
