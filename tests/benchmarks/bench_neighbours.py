"""What a normal request sees of a hostile one beside it, and what the service's memory does meanwhile.

Three processes: the service, a client of 100 requests a second, and one that sends bodies of 31 MiB, three a
second or twelve at once. Straight at the service over gRPC, and through a real Envoy; beside them what the
same bodies do to others in an Envoy that asks a service that does nothing, or nobody.
`python -m tests.benchmarks.bench_neighbours`.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import orjson

from tests.benchmarks.gateway_arms import ALONE, IDLE_NATIVE, NATIVE, run_arms
from tests.benchmarks.neighbours import PER_S
from tests.benchmarks.report import Row, report
from tests.hostile import HONEST, HOSTILE
from tests.stack.process import Process
from tests.stack.service import Service

ROUNDS = 3
SECONDS = 3
AT_ONCE = 12
MODULE = (sys.executable, "-m", "tests.benchmarks.neighbours")
# Through Envoy, which every byte costs more: those that cost the service most, and honest ones.
WORST = ("open brackets", "white space everywhere", "members of a message", "arrays 480 deep")


def ask_steadily(protocol: str, port: int) -> list[float]:
    command = [*MODULE, "normal", protocol, "--port", str(port), "--seconds", str(SECONDS)]
    done = subprocess.run(command, check=True, capture_output=True)
    took_ms: list[float] = orjson.loads(done.stdout)
    return took_ms


@contextmanager
def attack(directory: Path, protocol: str, port: int, kind: str, at_once: int) -> Iterator[None]:
    command = [*MODULE, "attack", protocol, "--port", str(port), "--kind", kind]
    with Process("attacker", [*command, "--at-once", str(at_once)], directory) as attacker:
        yield
        assert attacker.is_running, attacker.tail()


def peak_mb(process: Process) -> float:
    """The most memory that it ever had; asked for, it starts anew (proc(5), clear_refs)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1_024 / 1e6


def rows_of(name: str, rounds: list[list[float]]) -> list[Row]:
    refused = Row(f"{name}: not answered", [SECONDS * PER_S - len(took_ms) for took_ms in rounds], "")
    return [
        Row(f"{name}: p{percent}", [float(np.percentile(took_ms, percent)) for took_ms in rounds], "ms")
        for percent in (50, 99)
    ] + [refused] * any(refused.samples)


def beside(directory: Path, name: str, where: tuple[str, int, Process | None], kinds: list[str]) -> list[Row]:
    """A normal client alone, then beside each kind of body."""
    protocol, port, service = where
    rows = rows_of(f"{name}, alone", [ask_steadily(protocol, port) for _ in range(ROUNDS)])
    if service is not None:
        peak_mb(service)
    for kind in kinds:
        at_once = AT_ONCE if kind in HONEST else 0
        with attack(directory, protocol, port, kind, at_once):
            rounds = [ask_steadily(protocol, port) for _ in range(ROUNDS)]
        rows += rows_of(f"{name}, {kind}", rounds)
        if service is not None:
            rows.append(Row(f"{name}, {kind}: memory", [peak_mb(service)], "MB"))
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, run_arms(Path(folder), [NATIVE, IDLE_NATIVE]) as arms:
        by_name = {arm.name: arm for arm in arms}
        with_service = by_name[NATIVE]
        service = with_service.server
        assert isinstance(service, Service)
        straight = ("grpc", service.port, service)
        rows = beside(Path(folder), "straight", straight, ["text", *HOSTILE])
        for name, arm in (
            ("through Envoy", with_service),
            (IDLE_NATIVE, by_name[IDLE_NATIVE]),
            (ALONE, by_name[ALONE]),
        ):
            port = int(arm.gateway.url.rpartition(":")[2])
            rows += beside(Path(folder), name, ("http", port, arm.server), ["text", "an image", *WORST])
    report("neighbours: normal requests beside hostile ones", rows, reference="straight, alone: p99")


if __name__ == "__main__":
    main()
