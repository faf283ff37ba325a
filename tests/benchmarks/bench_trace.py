"""The two faces of the simulator: one trace in virtual time, and again over HTTP, ten times real time.

What else this machine does makes answers late, and ten milliseconds count as a hundred here, so there are
several rounds. `python -m tests.benchmarks.bench_trace [--json PATH]`.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

import uvloop
import yaml

from extproc.simulator.engine.profiles import Profile, find_profile
from extproc.simulator.fleet.fleet import Setup, simulate_fleet
from extproc.simulator.fleet.gateway import Routing
from extproc.simulator.fleet.traffic import Traffic
from extproc.simulator.fleet.workloads import Demand, draw_sessions
from tests.benchmarks.report import Row, report
from tests.benchmarks.trace import Outcome, replay, sum_up

ENDPOINTS = 2
REQUESTS = 250
RATE = 12  # more than the endpoints can take: queues form
SPEED = 10
ROUNDS = 5


@contextmanager
def serving(profile: Profile) -> Iterator[dict[str, str]]:
    """Serves simulated endpoints; yields their URLs by name."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({profile.name: asdict(profile)}, file)
        file.flush()
        command = [
            sys.executable,
            "-m",
            "extproc",
            "simulate_fleet",
            "vllm",
            "--name",
            "endpoint",
            "--ports",
            "18950-18951",
        ]
        options = ["--profile", file.name, "--speed", str(SPEED)]
        with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            try:
                yield dict(process.stdout.readline().strip().split(": ", 1) for _ in range(ENDPOINTS))
            finally:
                process.terminate()


def measure() -> tuple[Outcome, Sequence[Outcome]]:
    # Few sequences at a time keep the chunks per second far below what the server can send.
    profile = replace(find_profile("l4-llama8b-fp8"), max_num_seqs=16)
    sessions = draw_sessions("distinct", Demand(REQUESTS), seed=7)
    setup = Setup([profile], ENDPOINTS, Routing("prefix_hash"), Traffic(rate=RATE))
    flights = simulate_fleet(setup, sessions).flights
    rounds = []
    for _ in range(ROUNDS):
        with serving(profile) as urls:
            rounds.append(uvloop.run(replay(flights, urls, SPEED, profile.block_size)))
    return sum_up(flights), rounds


def main() -> None:
    virtual, rounds = measure()
    for one, name in ((virtual, "virtual"), *((one, "HTTP   ") for one in rounds)):
        print(f"{name} {one}")
    rows = [
        Row("virtual: TTFT mean", [virtual.ttft_s], "s"),
        Row("HTTP: TTFT mean", [one.ttft_s for one in rounds], "s"),
    ]
    report(f"One trace, two faces: {REQUESTS} requests at speed {SPEED}", rows, reference=rows[0].name)
    ratios = sorted(one.tokens_per_s / virtual.tokens_per_s for one in rounds)
    print(f"tokens per second, HTTP to virtual: {ratios[0]:.3f} to {ratios[-1]:.3f}")


if __name__ == "__main__":
    main()
