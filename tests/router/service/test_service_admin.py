"""The admin port: what it shows, how long it waits, how many it lets in."""

import asyncio
import gzip
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from time import perf_counter

import aiohttp
import pytest
import yaml
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_text

from extproc.router.app import Application, Start
from extproc.router.routing.picker import Found, Picker, Query, RequestPlan
from extproc.router.service.admin import build_admin
from extproc.router.service.connection_limit import ConnectionLimit, serve_admin
from extproc.router.service.process import Shares, raise_limit, share
from tests.stack.ports import free_ports
from tests.stack.service import pool
from tests.tables import table
from tests.waiting import until

PLAIN = {"accept-encoding": "identity"}
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@dataclass(frozen=True, slots=True)
class Served:
    port: int
    limit: ConnectionLimit
    session: aiohttp.ClientSession


@asynccontextmanager
async def serving(directory: Path, limit: ConnectionLimit) -> AsyncGenerator[Served]:
    path = directory / "extproc.yaml"
    path.write_text(yaml.safe_dump({"pools": [pool(["127.0.0.1:8001", "127.0.0.1:8002"])]}))
    [port] = free_ports(1)
    app = Application(Start.of_file(path))
    app.start()
    admin = build_admin(app, app.metrics.registry, limit)
    try:
        async with (
            serve_admin(admin, f"127.0.0.1:{port}", limit),
            aiohttp.ClientSession(
                f"http://127.0.0.1:{port}", auto_decompress=False, headers=PLAIN
            ) as session,
        ):
            yield Served(port, limit, session)
    finally:
        await app.pools.stop()


async def closed_after_s(reader: asyncio.StreamReader) -> float:
    start_s = perf_counter()
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            await reader.read()
    return perf_counter() - start_s


async def test_metrics_come_in_the_format_that_is_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path, ConnectionLimit(8)) as served:
        async with served.session.get("/metrics") as plain:
            text = (await plain.read()).decode()
        async with served.session.get("/metrics", headers={"accept": OPENMETRICS}) as asked:
            openmetrics = (await asked.read()).decode()

    assert plain.content_type == "text/plain"
    assert asked.content_type == "application/openmetrics-text"
    assert openmetrics.endswith("# EOF\n")
    families = openmetrics_parser.text_string_to_metric_families(openmetrics)  # type: ignore[no-untyped-call]
    names = {family.name for family in families}
    # An Info is `extproc` in the one, `extproc_info` in the other.
    assert {family.name for family in parse_text(text)} >= names - {"extproc"}


async def test_metrics_are_zipped_where_that_is_taken(tmp_path: Path) -> None:
    async with serving(tmp_path, ConnectionLimit(8)) as served:
        async with served.session.get("/metrics", headers={"accept-encoding": "br, gzip"}) as answer:
            zipped = await answer.read()
        async with served.session.get("/metrics") as answer:
            assert "content-encoding" not in answer.headers

    assert b"extproc_info" in gzip.decompress(zipped)


@pytest.mark.parametrize("start", [b"", b"GET /metrics HTTP/1.1\r\nhost: x\r\nx: "])
async def test_a_head_that_does_not_end_is_not_waited_for(tmp_path: Path, start: bytes) -> None:
    async with serving(tmp_path, ConnectionLimit(8, head_s=0.2)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(start)

        assert await closed_after_s(reader) < 5
        writer.close()


async def test_a_second_head_that_does_not_end_is_not_waited_for_either(tmp_path: Path) -> None:
    async with serving(tmp_path, ConnectionLimit(8, idle_s=0.2)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: ")

        assert await closed_after_s(reader) < 5
        writer.close()


async def test_a_body_that_does_not_end_is_not_waited_for(tmp_path: Path) -> None:
    async with serving(tmp_path, ConnectionLimit(8, answer_s=0.2)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"POST /explain HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")

        async with asyncio.timeout(10):
            assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()


async def test_idle_guests_make_room_and_who_waits_for_an_answer_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Another address fills the port with 8 that asked once; one of a third has a request open.

    2. A scraper comes: it is answered. 3. So is the open request.
    """
    go_on, real = threading.Event(), Picker.find

    def find(picker: Picker, ask: Query, plan: RequestPlan | None = None) -> Found:
        go_on.wait(60)
        return real(picker, ask, plan)

    monkeypatch.setattr(Picker, "find", find)
    async with serving(tmp_path, ConnectionLimit(8, answer_s=60)) as served:
        explained = asyncio.create_task(served.session.post("/explain", json={"prompt": "y"}))
        await until(lambda: served.limit.connections)
        guests = []
        for _ in range(16):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", served.port, local_addr=("127.0.0.2", 0)
            )
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b" 200 " in await reader.readline()
            guests.append(writer)
        async with aiohttp.request("GET", f"http://127.0.0.1:{served.port}/metrics") as answer:
            status = answer.status
        connections = len(served.limit.connections)
        go_on.set()
        explanation = await explained
        for writer in guests:
            writer.close()

    assert (status, explanation.status) == (200, 200)
    assert connections <= 8


async def test_connections_beyond_the_limit_are_closed_and_others_are_served(tmp_path: Path) -> None:
    async with serving(tmp_path, ConnectionLimit(3)) as served:
        async with served.session.get("/healthz") as answer:
            await answer.read()
        flood = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(20)]
        closed = [asyncio.create_task(closed_after_s(reader)) for reader, _ in flood]
        await asyncio.wait(closed, timeout=1)

        assert [task.done() for task in closed] == [True] * 17 + [False] * 3
        async with served.session.get("/healthz") as answer:
            assert answer.status == 200

        for task in closed:
            task.cancel()
        for _, writer in flood:
            writer.close()
        await until(lambda: len(served.limit.connections) <= 1)
        async with aiohttp.request("GET", f"http://127.0.0.1:{served.port}/healthz") as answer:
            assert answer.status == 200


async def test_a_body_that_explains_too_much_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, ConnectionLimit(8)) as served:
        async with served.session.post("/explain", data=BytesIO(b" " * 1_048_577)) as answer:
            assert answer.status == 413
        async with served.session.post("/explain", json={"model": "x", "prompt": "y"}) as answer:
            assert (await answer.json())["pool"] == "vllm"


async def test_a_body_is_read_off_the_loop_to_be_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def find(picker: Picker, ask: Query, plan: RequestPlan | None = None) -> Found:
        threads.append(threading.get_ident())
        return real(picker, ask, plan)

    real = Picker.find
    monkeypatch.setattr(Picker, "find", find)
    async with (
        serving(tmp_path, ConnectionLimit(8)) as served,
        served.session.post("/explain", json={"prompt": "y"}) as answer,
    ):
        assert answer.status == 200

    assert threads
    assert threading.get_ident() not in threads


async def test_one_request_is_explained_at_a_time_and_few_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The first is in its thread, eight wait for it, three are sent away. 2. It ends: all are answered."""
    running, most, go_on = 0, 0, threading.Event()

    def find(picker: Picker, ask: Query, plan: RequestPlan | None = None) -> Found:
        nonlocal running, most
        running += 1
        most = max(most, running)
        go_on.wait(60)
        running -= 1
        return real(picker, ask, plan)

    real = Picker.find
    monkeypatch.setattr(Picker, "find", find)
    async with serving(tmp_path, ConnectionLimit(32, answer_s=60)) as served:

        async def explain() -> int:
            async with served.session.post("/explain", json={"prompt": "y"}) as answer:
                return answer.status

        asked = [asyncio.create_task(explain()) for _ in range(12)]
        await until(lambda: sum(task.done() for task in asked) == 3)
        refused = [task.result() for task in asked if task.done()]
        go_on.set()
        statuses = await asyncio.gather(*asked)

    assert refused == [503] * 3
    assert sorted(statuses) == [200] * 9 + [503] * 3
    assert most == 1


# As Prometheus, the kubelet, port-forward, Compose and people send it; the last ones as a browser that was
# led here by a public name.
HOSTS = {
    **dict.fromkeys(["10.0.0.7:9090", "127.0.0.1", "[::1]:9090", "[fd00::1]", "localhost:9090"], 200),
    **dict.fromkeys(["extproc:9090", "extproc.llm.svc:9090", "extproc.llm.svc.cluster.local"], 200),
    **dict.fromkeys(["LAPTOP.local:9090", "app.localhost", "pod-7.example.com:9090"], 200),
    **dict.fromkeys(["evil.example:9090", "127.0.0.1.evil.example", "x.svc.evil.example", "svc.evil"], 421),
    **dict.fromkeys(["extproc.llm.svc.evil.example:80", "[::1].evil.example", "a.b:c"], 421),
}


async def test_a_public_name_is_not_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "pod-7.example.com")
    async with serving(tmp_path, ConnectionLimit(8)) as served:
        for host, status in HOSTS.items():
            for path in ("/config", "/pools", "/", "/live/none"):
                async with served.session.get(path, headers={"host": host}) as answer:
                    found = 200 if answer.status == 404 else answer.status
                    assert (host, found) == (host, status)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        old = await reader.readline()
        writer.close()

    assert old.split()[1] == b"200"


@table(
    ("descriptors", "shares"),
    [
        (64, Shares(grpc=24, admin=8)),
        (256, Shares(grpc=144, admin=48)),
        (1_024, Shares(grpc=704, admin=64)),
        (65_536, Shares(grpc=1_024, admin=64)),
        (16, Shares(grpc=2, admin=2)),
    ],
)
def test_descriptors_are_shared_out_and_some_stay_ours(descriptors: int, shares: Shares) -> None:
    assert share(descriptors) == shares


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    assert raise_limit() >= 1_024
