"""What a request costs through a real Envoy: CPU of the service and of Envoy, rate, latency.

Arms, each an Envoy that runs envoy/standalone.yaml: nobody asked, handlers that do nothing on two
transports, the service with its default strategy, by prefix_hash, and without bodies (round_robin).
A further Envoy is the four endpoints and answers at once. A closed loop drives one arm after the
other, in rounds; then one request at a time. CPU is user + system time of a process, from /proc.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TypeVar

import numpy as np
import uvloop

from tests.benchmarks.report import Row, report
from tests.stack.client import chat_body
from tests.stack.gateway import Edit, Gateway, Tree, edited, find, load, set_addresses
from tests.stack.ports import free_ports, is_taken
from tests.stack.process import Process, cpu_s
from tests.stack.service import Service, pool
from tests.stack.stack import SHIPPED_PORTS

PROMPT_CHARS = 2_000
PROMPTS = 200

P = TypeVar("P", bound=Process)


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve: through `gateway`, with `server` asked (or nobody)."""

    name: str
    gateway: Gateway
    server: Process | None


@dataclass(frozen=True, slots=True)
class Round:
    """What one arm did in one round; CPU in microseconds per request, 0 without a server; latencies in ms."""

    arm: str
    requests_per_s: float
    server_us: float
    envoy_us: float
    mean_ms: float
    p50_ms: float
    p99_ms: float


def build_requests() -> list[bytes]:
    """Returns whole HTTP/1.1 requests, each a conversation of its own."""
    text = "lorem ipsum " * (PROMPT_CHARS // 12)
    bodies = [
        chat_body(
            [{"role": "user", "content": f"prompt {number}: {text}"}], stream=True, max_tokens=100
        )
        for number in range(PROMPTS)
    ]
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    return [head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body for body in bodies]


async def _client(
    port: int, requests: Sequence[bytes], turns: Iterator[int], took_s: list[float]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for turn in turns:
        began = time.perf_counter()
        writer.write(requests[turn % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        took_s.append(time.perf_counter() - began)
    writer.close()
    await writer.wait_closed()


async def _drive(port: int, total: int, clients: int, requests: Sequence[bytes]) -> list[float]:
    turns = iter(range(total))
    took_s: list[float] = []
    await asyncio.gather(*(_client(port, requests, turns, took_s) for _ in range(clients)))
    return took_s


def measure_gateway(arm: Arm, total: int, clients: int) -> Round:
    """Drives `total` requests through an arm; all of them must have been routed by whom it asks."""
    port = int(arm.gateway.url.rpartition(":")[2])
    pids = [arm.server.pid if arm.server else None, arm.gateway.pid]
    passed_by = _passed_by(arm)
    before = [cpu_s(pid) if pid else 0.0 for pid in pids]
    began = time.perf_counter()
    took_s = uvloop.run(_drive(port, total, clients, build_requests()))
    all_s = time.perf_counter() - began
    server_us, envoy_us = (
        ((cpu_s(pid) if pid else 0.0) - was) * 1e6 / total
        for pid, was in zip(pids, before, strict=True)
    )
    assert passed_by == _passed_by(arm), f"{arm.name}: requests that nobody routed"
    mean_ms, p50_ms, p99_ms = (
        1_000 * float(s) for s in (np.mean(took_s), *np.percentile(took_s, [50, 99]))
    )
    return Round(arm.name, total / all_s, server_us, envoy_us, mean_ms, p50_ms, p99_ms)


def _passed_by(arm: Arm) -> int:
    return arm.gateway.ext_proc()["failure_mode_allowed"] if arm.server else 0


def answer_at_once(tree: Tree, ports: Sequence[int]) -> Tree:
    """Turns a gateway's configuration into endpoints that answer by themselves."""
    listener = tree["static_resources"]["listeners"][0]
    for manager in find(listener, "route_config"):
        match = {"prefix": "/"}
        direct = {"status": 200, "body": {"inline_string": "data: [DONE]\n\n"}}
        manager["virtual_hosts"][0]["routes"] = [{"match": match, "direct_response": direct}]
    for filters in find(listener, "http_filters"):
        del filters[:-1]
    drop_access_log(tree)
    sockets = [{"socket_address": {"address": "127.0.0.1", "port_value": port}} for port in ports]
    listener["address"], *others = sockets
    listener["additional_addresses"] = [{"address": address} for address in others]
    return tree


def drop_access_log(tree: Tree) -> None:
    for connection in find(tree, "typed_config"):
        connection.pop("access_log", None)


def drop_health_checks(tree: Tree) -> None:
    """The idle processor answers none."""
    for clusters in find(tree, "clusters"):
        for one in clusters:
            one.pop("health_checks", None)


def drop_ext_proc(tree: Tree) -> None:
    drop_health_checks(tree)
    for filters in find(tree, "http_filters"):
        filters[:] = [one for one in filters if one["name"] != "envoy.filters.http.ext_proc"]


@contextmanager
def beside(target: Callable[..., None], *arguments: object) -> Iterator[SpawnProcess]:
    """Runs it in a process of its own, which ends with the block."""
    process = get_context("spawn").Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        process.join()


@contextmanager
def run_arms(
    directory: Path, names: Sequence[str], serve: Callable[[Sequence[int]], None] | None = None
) -> Iterator[list[Arm]]:
    """Starts everything; yields Envoy alone and these arms. Endpoints `serve`, or else answer at once."""
    ports = iter(free_ports(8 + 4 * (len(names) + 1)))
    endpoints = list(islice(ports, 4))
    addresses = [f"127.0.0.1:{port}" for port in endpoints]

    def start(part: P) -> P:
        running.enter_context(part)
        part.wait_ready()
        return part

    def add_arm(name: str, server: Process | None, port: int) -> Arm:
        below = under(directory, f"envoy {name}")
        return Arm(
            name, start(build_gateway(below, next(ports), next(ports), port, endpoints)), server
        )

    with ExitStack() as running:
        if serve is None:
            start(
                build_endpoints(under(directory, "endpoints"), next(ports), next(ports), endpoints)
            )
        else:
            running.enter_context(beside(serve, endpoints))
        arms = [add_arm(ALONE, None, 0)]
        for name in names:
            port = next(ports)
            server = start(SERVERS[name](under(directory, name), port, next(ports), addresses))
            server.wait_until(partial(is_taken, port))
            arms.append(add_arm(name, server, port))
        yield arms


Build = Callable[[Path, int, int, list[str]], Process]


def _idle(transport: str, directory: Path, port: int, _: int, addresses: list[str]) -> Process:
    module = [sys.executable, "-m", "tests.benchmarks.idle_processor", "--transport", transport]
    return Process("idle", [*module, "--port", str(port), "--address", addresses[0]], directory)


def _service(
    strategy: str, directory: Path, port: int, admin_port: int, addresses: list[str]
) -> Process:
    service = Service(directory, port=port, admin_port=admin_port)
    service.configure([pool(addresses, {"name": strategy})])
    return service


ALONE = "Envoy alone"
IDLE, IDLE_NATIVE = "do nothing, grpc.aio", "do nothing, native"
DEFAULT, NATIVE, NATIVE_BODILESS = "extproc, default", "extproc, prefix_hash", "extproc, no bodies"
SERVERS: dict[str, Build] = {
    IDLE: partial(_idle, "grpcio"),
    IDLE_NATIVE: partial(_idle, "native"),
    DEFAULT: partial(_service, "prefix_cache"),
    NATIVE: partial(_service, "prefix_hash"),
    NATIVE_BODILESS: partial(_service, "round_robin"),
}


def build_gateway(
    directory: Path,
    port: int,
    admin_port: int,
    ext_proc: int,
    endpoints: Sequence[int],
    *,
    is_shipped: bool = False,
) -> Gateway:
    """Returns an Envoy that asks at port `ext_proc`, or nobody if it is 0; its file as shipped, or less."""
    moved = dict(zip(SHIPPED_PORTS[:4], (port, admin_port, ext_proc, 9090), strict=True))
    edits: list[Edit] = [lambda tree: set_addresses(tree, "vllm", endpoints)]
    edits += [] if is_shipped and ext_proc else [drop_access_log]
    edits += [] if is_shipped and ext_proc else [drop_health_checks if ext_proc else drop_ext_proc]
    return Gateway(
        directory, edited(load("standalone.yaml"), moved, edits), port=port, admin_port=admin_port
    )


def build_endpoints(
    directory: Path, port: int, admin_port: int, endpoints: Sequence[int]
) -> Gateway:
    tree = edited(load("standalone.yaml"), {9901: admin_port}, [drop_ext_proc])
    return Gateway(directory, answer_at_once(tree, endpoints), port=port, admin_port=admin_port)


def under(directory: Path, name: str) -> Path:
    below = directory / name
    below.mkdir()
    return below


LOADED = (("requests_per_s", "req/s"), ("envoy_us", "µs/req"), ("server_us", "µs/req"))
LONE = (("mean_ms", "ms"), ("p50_ms", "ms"), ("p99_ms", "ms"), ("server_us", "µs/req"))


def measure_all(arms: Sequence[Arm], rounds: int, total: int, clients: int) -> list[Round]:
    for arm in arms:
        measure_gateway(arm, total // 4, clients)  # warm-up
    return [
        measure_gateway(arm, total, clients)
        for number in range(rounds)
        for arm in (arms if number % 2 == 0 else list(reversed(arms)))
    ]


def rows_of(rounds: Sequence[Round], fields: Sequence[tuple[str, str]], how: str) -> list[Row]:
    return [
        Row(f"{arm}{how}: {field}", [getattr(one, field) for one in rounds if one.arm == arm], unit)
        for arm in dict.fromkeys(one.arm for one in rounds)
        for field, unit in fields
        if (arm, field) != (ALONE, "server_us")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4_000, help="per arm and round")
    parser.add_argument("--clients", type=int, default=64, help="each with one request at a time")
    options, _ = parser.parse_known_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        run_arms(Path(directory), list(SERVERS)) as arms,
    ):
        loaded = measure_all(arms, options.rounds, options.requests, options.clients)
        lone = measure_all(arms, options.rounds, options.requests // 8, 1)
    rows = [*rows_of(loaded, LOADED, ""), *rows_of(lone, LONE, ", one at a time")]
    report("a request through Envoy", rows, reference=f"{IDLE}: server_us")


if __name__ == "__main__":
    main()
