"""The admin port: what it shows, how long it waits, how many it lets in."""

import asyncio
import sys
import threading
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_text

from extproc.router.routing.picker import Found, Picker, Query, RequestPlan
from extproc.router.service.connection_limit import ConnectionLimit
from extproc.router.service.process import (
    Shares,
    prepare_for_long_bodies,
    raise_limit,
    share,
)
from tests.router.service.live_service import Live, serving_live
from tests.tables import table
from tests.waiting import until

PLAIN = {"accept-encoding": "identity"}
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
HEALTHZ = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
EXPLAIN = b"POST /explain HTTP/1.1\r\nhost: a\r\ncontent-length: 15\r\n\r\n" + b'{"prompt": "y"}'
POST = b"POST /explain HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"


async def connect_from(
    live: Live, ip: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(live.url.rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(ip, 0))


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What comes before a connection is closed."""
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""


async def test_metrics_come_in_the_format_that_is_asked_for(tmp_path: Path) -> None:
    async with serving_live(tmp_path) as live:
        async with live.session.get("/metrics", headers=PLAIN) as plain:
            text = await plain.text()
        async with live.session.get("/metrics", headers=PLAIN | {"accept": OPENMETRICS}) as asked:
            openmetrics = await asked.text()
        async with live.session.get("/metrics/llm-d", headers=PLAIN) as theirs:
            llmd = await theirs.text()
        async with live.session.get("/metrics", headers={"accept-encoding": "br, gzip"}) as zipped:
            unzipped = await zipped.text()

    assert [answer.content_type for answer in (plain, asked)] == [
        "text/plain",
        "application/openmetrics-text",
    ]
    assert openmetrics.endswith("# EOF\n")
    assert [line for line in llmd.splitlines() if line.startswith("llm_d_epp_ready_endpoints{")]
    assert "extproc" not in llmd
    families = openmetrics_parser.text_string_to_metric_families(openmetrics)  # type: ignore[no-untyped-call]
    names = {family.name for family in families}
    # An Info is `extproc` in the one, `extproc_info` in the other.
    assert {family.name for family in parse_text(text)} >= names - {"extproc"}
    assert [answer.headers.get("content-encoding") for answer in (plain, zipped)] == [None, "gzip"]
    assert "extproc_info" in unzipped


@pytest.mark.parametrize(
    ("sent", "limit", "received"),
    [
        (b"", {"head_s": 0.2}, b""),
        (HEALTHZ[:-2] + b"x: ", {"head_s": 0.2}, b""),
        (HEALTHZ + HEALTHZ[:-2] + b"x: ", {"idle_s": 0.2}, b"HTTP/1.1 200 OK\r\n"),
        (POST, {"answer_s": 0.2}, b"HTTP/1.1 408 Request Timeout\r\n"),
    ],
    ids=["nothing", "half a head", "half a second head", "half a body"],
)
async def test_who_does_not_end_is_not_waited_for(
    tmp_path: Path, sent: bytes, limit: dict[str, float], received: bytes
) -> None:
    patient: dict[str, Any] = {"head_s": 600, "idle_s": 600, "answer_s": 600} | limit
    async with serving_live(tmp_path, limit=ConnectionLimit(8, **patient)) as live:
        reader, writer = await connect_from(live)
        writer.write(sent)

        assert (await until_closed(reader)).startswith(received)
        writer.close()


class Watched:
    """`Picker.find`, which goes on when it is let, and how it was called."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.running = self.most = 0
        self.threads: list[int] = []
        real = Picker.find

        def find(picker: Picker, ask: Query, plan: RequestPlan | None = None) -> Found:
            self.threads.append(threading.get_ident())
            self.running += 1
            self.most = max(self.most, self.running)
            self.go_on.wait(60)
            self.running -= 1
            return real(picker, ask, plan)

        patch.setattr(Picker, "find", find)


async def test_idle_guests_make_room_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Another address fills the port: its first has a request open, the others asked once.

    2. A scraper comes: it is answered. 3. So is the open request.
    """
    find = Watched(monkeypatch)
    async with serving_live(tmp_path, limit=ConnectionLimit(8, answer_s=60)) as live:
        explained, asking = await connect_from(live, "127.0.0.2")
        asking.write(EXPLAIN)
        await until(lambda: find.running)
        guests = [asking]
        for _ in range(16):
            reader, writer = await connect_from(live, "127.0.0.2")
            writer.write(HEALTHZ)
            assert b" 200 " in await reader.readline()
            guests.append(writer)
        async with aiohttp.request("GET", f"{live.url}/metrics") as answer:
            status = answer.status
        connections = len(live.limit.connections)
        find.go_on.set()
        explanation = await explained.readline()
        for writer in guests:
            writer.close()

    assert (status, explanation) == (200, b"HTTP/1.1 200 OK\r\n")
    assert connections <= 8


async def test_connections_beyond_the_limit_are_closed_and_others_are_served(
    tmp_path: Path,
) -> None:
    async with serving_live(tmp_path, limit=ConnectionLimit(3)) as live:
        async with live.session.get("/healthz") as answer:
            await answer.read()
        flood = [await connect_from(live) for _ in range(20)]
        closed = [asyncio.create_task(until_closed(reader)) for reader, _ in flood]
        await asyncio.wait(closed, timeout=1)

        assert [task.done() for task in closed] == [True] * 17 + [False] * 3
        async with live.session.get("/healthz") as answer:
            assert answer.status == 200

        for task in closed:
            task.cancel()
        for _, writer in flood:
            writer.close()
        await until(lambda: len(live.limit.connections) <= 1)
        async with aiohttp.request("GET", f"{live.url}/healthz") as answer:
            assert answer.status == 200


async def test_a_body_that_explains_too_much_is_refused(tmp_path: Path) -> None:
    async with serving_live(tmp_path) as live:
        async with live.session.post("/explain", data=BytesIO(b" " * 1_048_577)) as answer:
            assert answer.status == 413
        async with live.session.post("/explain", json={"model": "x", "prompt": "y"}) as answer:
            assert (await answer.json())["pool"] == "vllm"


async def test_one_request_is_explained_at_a_time_off_the_loop_and_few_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The first is in its thread, eight wait for it, three are sent away. 2. It ends: all are answered."""
    find = Watched(monkeypatch)
    async with serving_live(tmp_path, limit=ConnectionLimit(32, answer_s=60)) as live:

        async def explain() -> int:
            async with live.session.post("/explain", json={"prompt": "y"}) as answer:
                return answer.status

        asked = [asyncio.create_task(explain()) for _ in range(12)]
        await until(lambda: sum(task.done() for task in asked) == 3)
        refused = [task.result() for task in asked if task.done()]
        find.go_on.set()
        statuses = await asyncio.gather(*asked)

    assert refused == [503] * 3
    assert sorted(statuses) == [200] * 9 + [503] * 3
    assert find.most == 1
    assert threading.get_ident() not in find.threads


# As Prometheus, the kubelet, port-forward, Compose and people send it; the last ones as a browser
# that was led here by a public name.
HOSTS = {
    **dict.fromkeys(
        ["10.0.0.7:9090", "127.0.0.1", "[::1]:9090", "[fd00::1]", "localhost:9090"], 200
    ),
    **dict.fromkeys(["extproc:9090", "extproc.llm.svc:9090", "extproc.llm.svc.cluster.local"], 200),
    **dict.fromkeys(["LAPTOP.local:9090", "app.localhost", "pod-7.example.com:9090"], 200),
    **dict.fromkeys(
        ["evil.example:9090", "127.0.0.1.evil.example", "x.svc.evil.example", "svc.evil"], 421
    ),
    **dict.fromkeys(["extproc.llm.svc.evil.example:80", "[::1].evil.example", "a.b:c"], 421),
}


async def test_a_public_name_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "pod-7.example.com")
    async with serving_live(tmp_path) as live:
        for host, status in HOSTS.items():
            for path in ("/config", "/pools", "/", "/live/none"):
                async with live.session.get(path, headers={"host": host}) as answer:
                    found = 200 if answer.status == 404 else answer.status
                    assert (host, found) == (host, status)
        reader, writer = await connect_from(live)
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        old = await reader.readline()
        writer.close()

    assert old.split()[1] == b"200"


@table(
    ("descriptors", "shares"),
    [
        *(
            (64, Shares(grpc=24, admin=8)),
            (256, Shares(grpc=144, admin=48)),
            (16, Shares(grpc=2, admin=2)),
        ),
        *((1_024, Shares(grpc=704, admin=64)), (65_536, Shares(grpc=1_024, admin=64))),
    ],
)
def test_descriptors_are_shared_out_and_some_stay_ours(descriptors: int, shares: Shares) -> None:
    assert share(descriptors) == shares


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    assert raise_limit() >= 1_024


def test_the_interpreter_is_asked_to_change_threads_every_tenth_of_a_millisecond() -> None:
    """So that the loop goes on soon beside a thread that reads a body.

    How soon is for the machine to say: beside other work a clock cannot tell this interval from
    Python's own.
    """
    before_s = sys.getswitchinterval()
    try:
        prepare_for_long_bodies()

        assert sys.getswitchinterval() == pytest.approx(0.0001)
        assert sys.getswitchinterval() < before_s
    finally:
        sys.setswitchinterval(before_s)


async def test_a_pool_that_cannot_be_shown_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = [
        {
            "name": name,
            "models": [name],
            "endpoints": {"static": ["127.0.0.1:8001"]},
            "probe": False,
        }
        for name in ("odd", "sound")
    ]
    async with serving_live(tmp_path, pools) as live:
        odd = live.app.pools["odd"].pool
        monkeypatch.setattr(odd, "describe_engines", lambda: {"tokens": object()})
        async with live.session.get("/pools") as answer:
            shown, status = await answer.json(), answer.status

    assert status == 200
    assert [(each["name"], "endpoints" in each) for each in shown] == [
        ("odd", False),
        ("sound", True),
    ]
    assert "cannot be shown" in shown[0]["fault"]
