"""What it costs to be looked at: a state of 1,000 endpoints, one viewer, the recording of a decision.

Shares of a core are CPU time of the process that serves, the viewer being another one; beside them the same
process with nobody looking. `python -m tests.benchmarks.bench_live`.
"""

import asyncio
import gc
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic, process_time

from msgspec.json import encode

from extproc.router.feedback.outcome import Verdict
from extproc.router.routing.signals import EndpointSignals
from extproc.router.service.live.build_state import StateBuilder
from extproc.router.service.live.recorder import Recorder, Recording
from extproc.router.telemetry import Metrics
from tests.benchmarks.bench_pick import picks
from tests.benchmarks.report import Row, report, time_us
from tests.router.service.live_service import Live, finish, looking
from tests.stack.service import pool
from tests.waiting import until

ENDPOINTS = 1_000
ROUNDS = 9
ROUND_S = 2.0
PICTURE = f"  one state of {ENDPOINTS:,} endpoints: drawn, as JSON"


async def fill(live: Live) -> None:
    """Something to tell in every column of every row."""
    [desk] = [each.feedback for each in live.app.pools]
    for number, endpoint in enumerate(desk.pool.snapshot.ready.values()):
        live.outcome(desk.pool.name, endpoint.address, Verdict.ANSWERED, 0.1)
        desk.apply_signals(endpoint, EndpointSignals(queried_tokens=1_000.0 + number, hit_tokens=500.0))
        live.request(f"question {number} " * 40)
        await asyncio.sleep(0)


def cpu_ms(once: Callable[[], object]) -> list[float]:
    """Of each of some calls."""
    samples = []
    for _ in range(30):
        start_s = process_time()
        once()
        samples.append(1_000 * (process_time() - start_s))
    return samples[5:]


def longest_ms(builder: StateBuilder, live: Live) -> float:
    """CPU time of the longest of a state's steps: the loop serves nobody else meanwhile."""
    longest_s, start_s = 0.0, process_time()
    for _ in builder.build(live.app, monotonic()):
        longest_s = max(longest_s, process_time() - start_s)
        start_s = process_time()
    return 1_000 * max(longest_s, process_time() - start_s)


async def shares(rounds: int) -> list[float]:
    """Per cent of a core that this process takes, over rounds of some seconds."""
    samples = []
    for _ in range(rounds):
        start_s, start_cpu_s = monotonic(), process_time()
        await asyncio.sleep(ROUND_S)
        samples.append(100 * (process_time() - start_cpu_s) / (monotonic() - start_s))
    return samples


@asynccontextmanager
async def viewers(live: Live, count: int) -> AsyncGenerator[None]:
    """So many processes that look, and read what they get."""
    command = ("curl", "--silent", "--no-buffer", "--output", "/dev/null", f"{live.url}/live")
    running = [await asyncio.create_subprocess_exec(*command) for _ in range(count)]
    try:
        await asyncio.sleep(1)
        yield
    finally:
        for process in running:
            process.terminate()
            await process.wait()
        await until(lambda: live.app.processor.observer is live.app.metrics)


async def looked_at() -> Sequence[Row]:
    addresses = [f"10.{n // 250}.0.{n % 250}:80" for n in range(ENDPOINTS)]
    pools = [pool(addresses, {"name": "prefix_cache"}, probe=False)]
    with tempfile.TemporaryDirectory() as folder:
        async with looking(Path(folder), pools) as live:
            await fill(live)
            gc.freeze()  # as the service does when it has started
            builder = StateBuilder(Recording(monotonic))
            drawing = cpu_ms(lambda: encode(finish(builder.build(live.app, monotonic()))))
            turns = [longest_ms(builder, live) for _ in range(30)][5:]
            size = len(encode(finish(builder.build(live.app, monotonic()))))
            idle = await shares(ROUNDS)
            async with viewers(live, 1):
                one = await shares(ROUNDS)
            async with viewers(live, 16):
                many = await shares(ROUNDS)
            recording = Recording(monotonic)
            decision = live.request("once more")
    metrics = Metrics()
    recorder = Recorder(metrics, recording)
    counted = time_us(lambda: metrics.routed(decision, 1e-5), 2_000)
    recorded = time_us(lambda: recorder.routed(decision, 1e-5), 2_000)
    return [
        Row("CPU, nobody looks", idle, "% of a core"),
        Row("CPU, one viewer", one, "% of a core"),
        Row("CPU, 16 viewers", many, "% of a core"),
        Row(PICTURE, drawing, "ms of CPU"),
        Row("  its longest step", turns, "ms of CPU"),
        Row("  its size", [size / 1_000], "kB"),
        Row("a decision counted, nobody looks", counted, "µs"),
        Row("a decision counted and recorded", recorded, "µs"),
    ]


def main() -> None:
    pick = Row("the whole pick, 2 KB body, 100 endpoints", time_us(picks(100)), "µs")
    report("live", [*asyncio.run(looked_at()), pick], reference=pick.name)


if __name__ == "__main__":
    main()
