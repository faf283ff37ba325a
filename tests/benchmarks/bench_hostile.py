"""What others get beside bodies made to be slow: p99 through Envoy, and the longest turn in full duplex.

Three senders of lower priority, each a body of 30 MB a second at most, beside one request at a
time; and the same with a server that does nothing in the service's place. Reference: the same
requests alone.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import grpc.aio
import uvloop

from extproc.grpc_server.budget import Budget
from extproc.router.service.process import prepare_for_long_bodies
from extproc.router.service.transport import bind_transport
from extproc.router.settings.server_settings import ServerSettings
from extproc.router.stream.events import Event, RequestBody
from extproc.router.stream.ext_proc_pb2 import ProcessingResponse
from extproc.router.stream.names import PROCESS
from tests.benchmarks.bench_gateway import (
    DEFAULT,
    IDLE_NATIVE,
    Arm,
    beside,
    measure_gateway,
    run_arms,
)
from tests.benchmarks.report import Row, report
from tests.hostile import HONEST, HOSTILE, Body
from tests.router.service.live_service import serving_live
from tests.router.stream.conversations import DUPLEX, headers, part
from tests.router.stream.wire import write_request
from tests.stack.service import pool

MB, PIECE_BYTES = 1_000_000, 65_536
ALONE = "alone"
KINDS = ("text", "open brackets", "white space before the body")
POOL = pool(["127.0.0.1:1", "127.0.0.1:2"], {"name": "prefix_cache"}, probe=False)


def attack(url: str, body: Body) -> None:
    os.nice(19)

    def send(_: object) -> None:
        for _ in range(60):
            due_s = time.monotonic() + 1
            headers = {"content-type": body.content_type}
            urlopen(Request(url + body.path, body.data, headers), timeout=60).close()
            time.sleep(max(0.0, due_s - time.monotonic()))

    with ThreadPoolExecutor(3) as senders:
        list(senders.map(send, range(3)))


def send_in_duplex(port: int, size: int) -> None:
    async def send() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.stream_stream(PROCESS, None, None)(None)
            data = HONEST["text"](size).data
            pieces = [
                part(data[start : start + PIECE_BYTES])
                for start in range(0, len(data), PIECE_BYTES)
            ]
            events: list[Event] = [headers(DUPLEX), *pieces, RequestBody(b"")]
            for event in events:
                await call.write(write_request(event))
            answer = ProcessingResponse()
            while not answer.request_body.response.body_mutation.streamed_response.end_of_stream:
                answer = ProcessingResponse.FromString(await call.read())

    asyncio.run(send())


def measure_beside_flood(arms: Sequence[Arm], rounds: int, requests: int) -> list[Row]:
    """The others' p99 alone, and how many times as long it is beside each kind of body, in the same round."""
    found = defaultdict[tuple[str, str], list[float]](list)
    for _, arm in product(range(rounds), arms):
        found[arm.name, ALONE].append(alone_ms := measure_gateway(arm, requests, 1).p99_ms)
        for kind in KINDS:
            body = {**HONEST, **HOSTILE}[kind](30 * MB)
            with beside(attack, arm.gateway.url, body) as sender:
                time.sleep(2)  # until it has begun
                found[arm.name, kind].append(measure_gateway(arm, requests, 1).p99_ms / alone_ms)
                assert sender.is_alive(), f"{arm.name}, {kind}: the sender ended"
    unit = {ALONE: "ms, p99"}.get
    return [Row(f"{name}, {kind}", each, unit(kind, "x")) for (name, kind), each in found.items()]


async def longest_turn_ms(directory: Path, size: int) -> float:
    """CPU of the longest turn of the loop that serves, while a body of this size comes and goes back."""
    longest_s = 0.0
    async with serving_live(directory, [POOL]) as live:
        settings = ServerSettings.model_validate({"listen": "127.0.0.1:0"})
        server = await bind_transport(
            settings, live.app.processor.routes(), Budget(settings.budget)
        )
        await server.start()
        with beside(send_in_duplex, server.port, size) as sender:
            began_s = time.thread_time()
            while sender.is_alive():
                await asyncio.sleep(0)
                now_s = time.thread_time()
                longest_s, began_s = max(longest_s, now_s - began_s), now_s
        await server.stop()
    assert sender.exitcode == 0
    return 1_000 * longest_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=3_000, help="per arm, kind and round")
    options, _ = parser.parse_known_args()
    prepare_for_long_bodies()
    turns: dict[int, list[float]] = {2_000: [], 31 * MB: []}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(options.rounds):
            for size, longest in turns.items():
                longest.append(uvloop.run(longest_turn_ms(Path(directory), size)))
        with run_arms(Path(directory), [DEFAULT, IDLE_NATIVE]) as [_, *arms]:
            rows = measure_beside_flood(arms, options.rounds, options.requests)
    rows += [
        Row(f"a turn, {size:,} bytes in full duplex", each, "ms of CPU")
        for size, each in turns.items()
    ]
    report("beside hostile bodies", rows, reference=f"{DEFAULT}, {ALONE}")


if __name__ == "__main__":
    main()
