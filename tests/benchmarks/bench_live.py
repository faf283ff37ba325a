"""What it costs to be looked at: a state of 1,000 endpoints, one viewer, the recording of a decision.

Shares of a core are CPU time of the process that serves, the viewer being another one; beside them the same
process with nobody looking. `python -m tests.benchmarks.bench_live`.
"""

import asyncio
import gc
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic, process_time

from extproc.router.feedback.outcome import Verdict
from extproc.router.routing.signals import EndpointSignals
from tests.benchmarks.report import Row, report
from tests.router.service.live_service import Live, looking
from tests.stack.service import pool
from tests.waiting import until

ENDPOINTS = 1_000
ROUNDS = 9
ROUND_S = 2.0


async def fill(live: Live) -> None:
    """Something to tell in every column of every row."""
    [feedback] = [each.feedback for each in live.app.pools]
    for number, endpoint in enumerate(feedback.pool.snapshot.ready.values()):
        live.outcome(feedback.pool.name, endpoint.address, Verdict.ANSWERED, 0.1)
        feedback.apply_signals(endpoint, EndpointSignals(queried_tokens=1_000.0 + number, hit_tokens=500.0))
        live.request(f"question {number} " * 40)
        await asyncio.sleep(0)


async def shares() -> list[float]:
    """Per cent of a core that this process takes, over rounds of some seconds."""
    samples = []
    for _ in range(ROUNDS):
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
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        async with looking(Path(folder), pools) as live:
            await fill(live)
            gc.freeze()  # as the service does when it has started
            for name, count in (("nobody looks", 0), ("one viewer", 1), ("16 viewers", 16)):
                async with viewers(live, count):
                    rows.append(Row(f"CPU, {name}", await shares(), "% of a core"))
    return rows


def main() -> None:
    rows = asyncio.run(looked_at())
    report("live", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
