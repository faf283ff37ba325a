"""The fleet in virtual time: CPU seconds for KubeAI's 8,000 requests, and for 1,000 endpoints.

Reference in the same run: the steps of one busy engine. `python -m tests.benchmarks.bench_fleet`.
"""

from collections.abc import Callable
from time import process_time

from extproc.simulator.engine.engine import Engine
from extproc.simulator.engine.profiles import find_profile
from extproc.simulator.fleet.fleet import Setup, simulate_fleet
from extproc.simulator.fleet.gateway import Routing
from extproc.simulator.fleet.traffic import Traffic
from extproc.simulator.fleet.workloads import Demand, draw_sessions
from tests.benchmarks.report import Row, report

PROFILE = find_profile("l4-llama8b-fp8-fitted")


def cpu_s(once: Callable[[], object], rounds: int) -> list[float]:
    samples = []
    for _ in range(rounds):
        start_s = process_time()
        once()
        samples.append(process_time() - start_s)
    return samples


def run_engine() -> None:
    """20,000 steps of 64 requests, one by one."""
    engine = Engine(PROFILE)
    for step in range(20_000):
        if engine.counters.running + engine.counters.waiting < 64:
            engine.add_hashed(str(step), 800, range(step << 8, (step << 8) + 55), 76, now=0.0)
        engine.step(0.0)


def run_seed(strategy: str) -> None:
    sessions = draw_sessions("replay", Demand(8_000), 0)
    traffic = Traffic(rate=800, cap=8_000, ceiling=83)
    simulate_fleet(Setup([PROFILE], 8, Routing(strategy), traffic), sessions)


def run_large() -> None:
    sessions = draw_sessions("sessions", Demand(100_000), 0)
    simulate_fleet(Setup([PROFILE], 1_000, Routing(), Traffic(rate=5_000)), sessions)


if __name__ == "__main__":
    report(
        "Fleet in virtual time, CPU seconds",
        [
            Row("one engine, 20,000 steps", cpu_s(run_engine, 3), "s"),
            Row("8 endpoints, 8,000 requests, random", cpu_s(lambda: run_seed("random"), 3), "s"),
            Row("8 endpoints, 8,000 requests, prefix_hash", cpu_s(lambda: run_seed("prefix_hash"), 3), "s"),
            Row("1,000 endpoints, 100,000 requests, prefix_hash", cpu_s(run_large, 1), "s"),
        ],
        reference="one engine, 20,000 steps",
    )
