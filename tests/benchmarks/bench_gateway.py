"""CPU of the service per request at saturation through a real Envoy, beside a handler that does nothing.

Envoys run envoy/standalone.yaml, one per arm: nobody asked, the idle processor, the service, and the service
where it needs no bodies (round_robin). A further Envoy is the four endpoints and answers at once. A closed
loop drives one arm after the other, in rounds; a round yields one ratio. CPU is user + system time of the
server process, from /proc.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TypeVar

import orjson

from tests.integration.gateway import Gateway, Tree, edited, find, load
from tests.integration.ports import free_ports
from tests.integration.process import Process
from tests.integration.service import Service, pool
from tests.integration.stack import SHIPPED_PORTS

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
    """What one arm did in one round; CPU in microseconds per request, 0 without a server."""

    arm: str
    requests_per_s: float
    server_us: float
    envoy_us: float


def cpu_s(pid: int) -> float:
    """Returns user + system time of a process so far (proc(5), fields 14 and 15 of stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def build_requests() -> list[bytes]:
    """Returns whole HTTP/1.1 requests, each a conversation of its own."""
    return [
        _request(f"prompt {number}: " + "lorem ipsum " * (PROMPT_CHARS // 12)) for number in range(PROMPTS)
    ]


def _request(prompt: str) -> bytes:
    message = {"role": "user", "content": prompt}
    body = orjson.dumps({"model": "m", "messages": [message], "stream": True, "max_tokens": 100})
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


async def _client(port: int, requests: Sequence[bytes], turns: Iterator[int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for turn in turns:
        writer.write(requests[turn % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
    writer.close()
    await writer.wait_closed()


async def _drive(port: int, total: int, clients: int) -> None:
    requests, turns = build_requests(), iter(range(total))
    await asyncio.gather(*(_client(port, requests, turns) for _ in range(clients)))


def measure(arm: Arm, total: int, clients: int) -> Round:
    port = int(arm.gateway.url.rpartition(":")[2])
    pids = [arm.server.pid if arm.server else None, arm.gateway.pid]
    before = [cpu_s(pid) if pid else 0.0 for pid in pids]
    began = time.perf_counter()
    asyncio.run(_drive(port, total, clients))
    took_s = time.perf_counter() - began
    used = [(cpu_s(pid) if pid else 0.0) - was for pid, was in zip(pids, before, strict=True)]
    server_us, envoy_us = (s * 1e6 / total for s in used)
    return Round(arm.name, total / took_s, server_us, envoy_us)


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
def run_arms(directory: Path) -> Iterator[list[Arm]]:
    """Starts everything; yields the arms in the order of the table."""
    ports = iter(free_ports(24))
    endpoints = list(islice(ports, 4))
    addresses = [f"127.0.0.1:{port}" for port in endpoints]

    def start(part: P) -> P:
        running.enter_context(part)
        part.wait_ready()
        return part

    def add_arm(name: str, server: Process | None, port: int) -> Arm:
        below = _under(directory, f"envoy-{name}")
        return Arm(name, start(_gateway(below, next(ports), next(ports), port, endpoints)), server)

    with ExitStack() as running:
        start(_endpoints(_under(directory, "endpoints"), next(ports), next(ports), endpoints))
        arms = [add_arm(ALONE, None, 0)]
        for name, build in SERVERS.items():
            port = next(ports)
            server = start(build(_under(directory, name), port, next(ports), addresses))
            arms.append(add_arm(name, server, port))
        yield arms


def _idle(directory: Path, port: int, _: int, addresses: list[str]) -> Process:
    module = [sys.executable, "-m", "tests.benchmarks.idle_processor"]
    return Process("idle", [*module, "--port", str(port), "--address", addresses[0]], directory)


def _prefix_hash(directory: Path, port: int, admin_port: int, addresses: list[str]) -> Process:
    service = Service(directory, port=port, admin_port=admin_port)
    service.configure([pool(addresses)])
    return service


def _round_robin(directory: Path, port: int, admin_port: int, addresses: list[str]) -> Process:
    service = Service(directory, port=port, admin_port=admin_port)
    service.configure([pool(addresses, {"name": "round_robin"})])
    return service


ALONE, IDLE, EXTPROC, BODILESS = "Envoy alone", "do nothing", "extproc", "extproc, no bodies"
SERVERS = {IDLE: _idle, EXTPROC: _prefix_hash, BODILESS: _round_robin}


def _gateway(directory: Path, port: int, admin_port: int, ext_proc: int, endpoints: Sequence[int]) -> Gateway:
    """Returns an Envoy that asks at port `ext_proc`, or nobody if it is 0."""
    moved = dict(zip(SHIPPED_PORTS, (port, admin_port, ext_proc, 9090, *endpoints), strict=True))
    edits = [drop_access_log, drop_health_checks] if ext_proc else [drop_access_log, drop_ext_proc]
    tree = edited(load("standalone.yaml"), moved, edits)
    return Gateway(directory, tree, port=port, admin_port=admin_port)


def _endpoints(directory: Path, port: int, admin_port: int, endpoints: Sequence[int]) -> Gateway:
    tree = edited(load("standalone.yaml"), {9901: admin_port}, [drop_ext_proc])
    return Gateway(directory, answer_at_once(tree, endpoints), port=port, admin_port=admin_port)


def _under(directory: Path, name: str) -> Path:
    below = directory / name
    below.mkdir()
    return below


def summarise(rounds: Sequence[Round]) -> list[tuple[str, list[float], str]]:
    """Returns rows of figure, values over the rounds, and unit."""
    by_arm = {
        name: [one for one in rounds if one.arm == name] for name in dict.fromkeys(r.arm for r in rounds)
    }
    rows = []
    for name, ones in by_arm.items():
        rows.append((f"{name}: rate", [one.requests_per_s for one in ones], "req/s"))
        rows.append((f"{name}: Envoy CPU", [one.envoy_us for one in ones], "us/req"))
        if name != ALONE:
            rows.append((f"{name}: server CPU", [one.server_us for one in ones], "us/req"))
    for name, aim in ((EXTPROC, " (aim <= 1.2)"), (BODILESS, "")):
        pairs = zip(by_arm[name], by_arm[IDLE], strict=True)
        ratios = [one.server_us / idle.server_us for one, idle in pairs]
        rows.append((f"server CPU, {name} / {IDLE}{aim}", ratios, ""))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=4_000, help="per arm and round")
    parser.add_argument(
        "--clients", type=int, default=64, help="connections, each with one request at a time"
    )
    arguments = parser.parse_args()
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory() as directory, run_arms(Path(directory)) as arms:
        for arm in arms:
            measure(arm, arguments.requests // 4, arguments.clients)  # warm-up
        for number in range(arguments.rounds):
            for arm in arms if number % 2 == 0 else reversed(arms):
                rounds.append(measure(arm, arguments.requests, arguments.clients))  # noqa: PERF401
    rows = summarise(rounds)
    print(f"{'':<50}{'min':>10}{'median':>10}{'max':>10}")
    for name, values, unit in rows:
        print(f"{name:<50}{min(values):>10.2f}{median(values):>10.2f}{max(values):>10.2f} {unit}")
    if arguments.json:
        figures = {
            name: {"min": min(v), "median": median(v), "max": max(v), "unit": u} for name, v, u in rows
        }
        report = {"benchmark": "gateway", "figures": figures, "rounds": [asdict(one) for one in rounds]}
        arguments.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
