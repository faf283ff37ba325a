"""Reading the metrics of a hundred endpoints: what it takes of a core.

A real vLLM's pages, 50 kB, over real sockets from another process. `python -m tests.benchmarks.bench_scrape`.
"""

import asyncio
import multiprocessing
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import monotonic, process_time

import uvloop

from extproc.router.feedback.cooling import Cooling, Rules
from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.feedback.scraper import ScrapePlan, Scraper, read_signals
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import Outside
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from tests.benchmarks.report import Row, report, time_us
from tests.stack.ports import free_ports

PAGE = (Path(__file__).parents[1] / "simulator/data/metrics-0.32.0.txt").read_bytes()
ENDPOINTS = 100
SECONDS = 20


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Closes after five idle seconds, as vLLM does."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(PAGE)
    try:
        while True:
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            writer.write(head + PAGE)
    except (asyncio.IncompleteReadError, TimeoutError, OSError):
        writer.close()


def serve(ports: Sequence[int]) -> None:
    async def forever() -> None:
        for port in ports:
            await asyncio.start_server(answer, "127.0.0.1", port)
        await asyncio.Event().wait()

    asyncio.run(forever())


async def scrape(ports: Sequence[int], interval_s: float) -> float:
    """The share of a core, in per cent."""
    outside = Outside(random.Random(1), monotonic)
    pool = Pool("llama", PrefixCache(outside))
    pool.replace([Endpoint(f"e{port}", f"127.0.0.1:{port}") for port in ports])
    feedback = PoolFeedback(pool, Cooling(Rules(), clock=monotonic, rng=outside.rng))
    task = asyncio.create_task(Scraper(feedback, ScrapePlan(interval_s), rng=outside.rng).run())
    await asyncio.sleep(interval_s + 1)
    began_s, used_s = monotonic(), process_time()
    await asyncio.sleep(SECONDS)
    share = (process_time() - used_s) / (monotonic() - began_s)
    task.cancel()
    assert len(feedback.signals) == len(ports)
    return share * 100


def main() -> None:
    ports = free_ports(ENDPOINTS)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(ports,), daemon=True)
    server.start()
    rows = [Row("a page of 50 kB, read", time_us(partial(read_signals, PAGE)), "µs")]
    for interval_s in (4.0, 15.0):
        share = uvloop.run(scrape(ports, interval_s))
        rows.append(Row(f"{ENDPOINTS} endpoints, every {interval_s:.0f} s", [share], "% of a core"))
    server.terminate()
    report("scrape", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
