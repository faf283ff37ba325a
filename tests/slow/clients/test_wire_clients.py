"""Clients that are not ours, each with its own HTTP/2, and all must be served; and proxies in front of us.

nginx and HAProxy as proxies (one connection a call; h2c upstream), etcdctl for grpc-go,
temporalio's client for tonic and hyper. Each frames, pings and opens windows in its own way.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import GrpcCompression

from extproc.grpc_server.calls import Call
from tests.grpc_server.serving import ECHO, Echo, ServedListener, serving_listener
from tests.slow.clients.programs import GRPC, run_program
from tests.stack.ports import free_ports
from tests.stack.process import Process, memory_bytes
from tests.waiting import until


@pytest.fixture
def message_file(tmp_path: Path) -> str:
    """A file that holds one gRPC message, framed."""
    path = tmp_path / "message"
    path.write_bytes(b"\0" + (2_000).to_bytes(4, "big") + bytes(2_000))
    return str(path)


async def h2load(served: ServedListener, message: str, total: int, *options: str) -> str:
    """What it prints of `total` calls."""
    url = f"http://{served.target}{ECHO}"
    return await run_program("h2load", "-n", str(total), "-d", message, *options, *GRPC, url)


async def test_h2load_opens_ten_thousand_streams_over_ten_connections(message_file: str) -> None:
    async with serving_listener() as served:
        await h2load(served, message_file, 10_000, "-c", "10", "-m", "100")
        before = memory_bytes(os.getpid())
        output = await h2load(served, message_file, 10_000, "-c", "10", "-m", "100")

        assert "10000 succeeded, 0 failed, 0 errored, 0 timeout" in output
        assert "status codes: 10000 2xx" in output
        assert served.opened == len(served.ends) == 20_000
        assert memory_bytes(os.getpid()) < before * 1.1
        assert served.listener.budget.used == 0


# `--header-table-size` is what the client decodes with, the other one what it encodes with. A
# window of one byte (-w 1) costs its client a WINDOW_UPDATE a byte, of which too many would be a
# flood.
TABLES = [
    (100, ("-c", "1", f"--header-table-size={size}", f"--encoder-header-table-size={size}"))
    for size in (0, 4_096, 65_536)
]
WINDOWS = [
    (total, ("-c", "2", "-w", bits, "-W", "16"))
    for bits, total in (("1", 4), ("8", 200), ("30", 200))
]


@pytest.mark.parametrize(("total", "options"), [*TABLES, *WINDOWS])
async def test_clients_with_any_header_table_and_window_get_their_answers(
    message_file: str, total: int, options: tuple[str, ...]
) -> None:
    async with serving_listener() as served:
        output = await h2load(served, message_file, total, "-m", "10", *options)

    assert f"{total} succeeded, 0 failed, 0 errored" in output


async def nghttp(message: str, *options: str) -> str:
    async with serving_listener() as served:
        output = await run_program(
            "nghttp", "-v", "-d", message, *options, *GRPC, f"http://{served.target}{ECHO}"
        )
    return re.sub(r"\x1b\[[0-9;]*m", "", output)


async def test_nghttp_sees_headers_messages_and_trailers(message_file: str) -> None:
    lines = await nghttp(message_file)

    assert re.search(r"recv \(stream_id=\d+\) :status: 200", lines)
    assert re.search(r"recv DATA frame <length=2005, flags=0x00", lines)
    assert re.search(r"recv \(stream_id=\d+\) grpc-status: 0", lines)
    assert "RST_STREAM" not in lines


async def test_nghttp_that_pads_is_served(message_file: str) -> None:
    lines = await nghttp(message_file, "-b", "200")

    assert "PADDED" in lines
    assert re.search(r"grpc-status: *0", lines)


async def test_curl_is_answered_over_http2(message_file: str) -> None:
    curl = ("curl", "-sS", "-i", "--http2-prior-knowledge", "--max-time", "20", "--output", "-")
    async with serving_listener() as served:
        output = await run_program(
            *curl, "--data-binary", f"@{message_file}", *GRPC, f"http://{served.target}{ECHO}"
        )

        assert output.startswith("HTTP/2 200")
        assert "grpc-status: 0" in output
        assert (await run_program(*curl, f"http://{served.target}/")).startswith("HTTP/2 405")
        wrong = ("-X", "POST", "-H", "content-type: text/plain")
        assert (await run_program(*curl, *wrong, f"http://{served.target}{ECHO}")).startswith(
            "HTTP/2 415"
        )


KV_RANGE = "/etcdserverpb.KV/Range"
SYSTEM_INFO = "/temporal.api.workflowservice.v1.WorkflowService/GetSystemInfo"

PROXIES = {"nginx": ("/usr/sbin/nginx", "-c"), "haproxy": ("/usr/sbin/haproxy", "-f")}


@asynccontextmanager
async def behind_proxy(name: str, folder: Path, upstream: int) -> AsyncIterator[int]:
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
    async with serving_listener() as served, behind_proxy(name, tmp_path, served.port) as port:
        output = await run_program(
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

    async with serving_listener() as served:
        served.listener.routes = {path: lambda call: Empty(call, served.ends)}
        yield served.target, answered


async def test_grpc_go_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCDCTL_API", "3")
    async with answering(KV_RANGE) as (target, answered):
        output = await run_program(
            "etcdctl", f"--endpoints={target}", "--command-timeout=10s", "get", "key"
        )

    assert (output, len(answered)) == ("", 1)
    assert answered[0].metadata["user-agent"].startswith("grpc-go/")


async def test_tonic_is_served() -> None:
    async with answering(SYSTEM_INFO) as (target, answered):
        client = await Client.connect(target, grpc_compression=GrpcCompression.NONE)
        for _ in range(20):
            await client.workflow_service.get_system_info(GetSystemInfoRequest())

    assert len(answered) == 21
    assert "tonic" in answered[0].metadata["user-agent"]
