"""Other implementations of gRPC and other proxies in front of us, the real ones.

nginx and HAProxy as proxies (one connection a call; h2c upstream), etcdctl for grpc-go, temporalio's client
for tonic and hyper. Each frames, pings and opens windows in its own way.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import GrpcCompression

from extproc.router.wire.calls import Call
from tests.router.wire.serving import ECHO, Echo, serving
from tests.slow.clients.programs import GRPC, run
from tests.stack.ports import free_ports
from tests.stack.process import Process
from tests.waiting import until

KV_RANGE = "/etcdserverpb.KV/Range"
SYSTEM_INFO = "/temporal.api.workflowservice.v1.WorkflowService/GetSystemInfo"

PROXIES = {"nginx": ("/usr/sbin/nginx", "-c"), "haproxy": ("/usr/sbin/haproxy", "-f")}


@asynccontextmanager
async def in_front(name: str, folder: Path, upstream: int) -> AsyncIterator[int]:
    """Runs a proxy before the listener; yields its port."""
    [port] = free_ports(1)
    text, config = Path(__file__).with_name(f"{name}.conf").read_text(), folder / f"{name}.conf"
    config.write_text(text.format(folder=folder, port=port, upstream=upstream))
    with Process(name, [*PROXIES[name], str(config)], folder) as process:
        await until(lambda: accepts(port, process))
        yield port


async def accepts(port: int, process: Process) -> bool:
    assert process.is_running, process.tail()
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        return True
    return False


@pytest.mark.parametrize("name", PROXIES)
async def test_calls_through_a_proxy_are_answered(name: str, tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_bytes(b"\0" + (100_000).to_bytes(4, "big") + bytes(100_000))
    async with serving() as served, in_front(name, tmp_path, served.port) as port:
        output = await run(
            *("h2load", "-n", "200", "-c", "4", "-m", "8", "-d", str(message)),
            *GRPC,
            f"http://127.0.0.1:{port}{ECHO}",
        )

        assert "200 succeeded, 0 failed, 0 errored" in output
        assert served.opened == 200


@asynccontextmanager
async def answering(path: str) -> AsyncIterator[tuple[str, list[Call]]]:
    """Serves an empty answer at `path`; yields where, and the calls that were answered."""
    answered: list[Call] = []

    class Empty(Echo):
        def on_message(self, message: bytes | bytearray) -> None:
            answered.append(self.call)
            self.call.send(b"")

    async with serving() as served:
        served.listener.routes = {path: lambda call: Empty(call, served.ends)}
        yield served.target, answered


async def test_grpc_go_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCDCTL_API", "3")
    async with answering(KV_RANGE) as (target, answered):
        output = await run("etcdctl", f"--endpoints={target}", "--command-timeout=10s", "get", "key")

    assert (output, len(answered)) == ("", 1)
    assert answered[0].metadata["user-agent"].startswith("grpc-go/")


async def test_tonic_is_served() -> None:
    async with answering(SYSTEM_INFO) as (target, answered):
        client = await Client.connect(target, grpc_compression=GrpcCompression.NONE)
        for _ in range(20):
            await client.workflow_service.get_system_info(GetSystemInfoRequest())

    assert len(answered) == 21
    assert "tonic" in answered[0].metadata["user-agent"]
