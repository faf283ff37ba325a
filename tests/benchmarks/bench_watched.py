"""What clients feel of the shadow: `python -m tests.benchmarks.bench_watched`.

One Envoy, with a listener as it was and one with the filter, asked in turns in one run; the service runs, is
slow, hangs, is gone. Prints the table of docs/why/shadow.md, in two minutes where nothing else runs.
"""

import asyncio
import signal
from collections import Counter
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from tests.slow.stack.shadowed import LARGE, Somebody, ask_many, sinks, slowed
from tests.stack.client import chat_about
from tests.stack.ports import free_ports
from tests.stack.process import memory_bytes

SMALL = chat_about("hello")
LOADS = {"200 chats": (SMALL, 200), "3,000 chats": (SMALL, 3_000), "4 of 48 MB": (LARGE, 4)}
ROUNDS = 2
HEADINGS = (
    *("service", "at once", "answered 200: without, with", "p50, ms", "p99, ms"),
    "Envoy's memory before, at most, after, MB",
)


def _memory_mb(pid: int) -> int:
    return memory_bytes(pid) // 1_000_000


async def measure_watched(somebody: Somebody, state: str) -> None:
    pid = somebody.gateway.pid
    for name, (body, count) in LOADS.items():
        took: list[list[float]] = [[], []]
        fine = Counter[int]()
        memory = [_memory_mb(pid)]
        for turn in range(ROUNDS):
            urls = [*enumerate((somebody.plain, somebody.shadowed))]
            for place, url in urls[:: 1 - 2 * (turn % 2)]:
                asking = asyncio.create_task(ask_many(url, body, count))
                while not asking.done():
                    await asyncio.wait([asking], timeout=0.1)
                    memory.append(_memory_mb(pid))
                answers = await asking
                fine[place] += sum(status == 200 for status, _ in answers)
                took[place] += [1_000 * seconds for _, seconds in answers]
        cuts = [quantiles(one, n=100) for one in took]
        cells = [
            *(state, name, f"{fine[0]}, {fine[1]} of {ROUNDS * count}"),
            *(f"{cuts[0][at]:.0f}, {cuts[1][at]:.0f}" for at in (49, 98)),
            f"{memory[0]}, {max(memory)}, {memory[-1]}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


async def main() -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(4)]
    print(f"| {' | '.join(HEADINGS)} |", "| --- " * len(HEADINGS) + "|", sep="\n")
    with TemporaryDirectory() as folder:
        somebody = Somebody(Path(folder), addresses)
        service = somebody.service
        async with sinks(addresses):
            with service, somebody.gateway:
                service.wait_ready()
                somebody.gateway.wait_until(somebody.sees_service)
                await measure_watched(somebody, "runs")
                async with slowed(service):
                    await measure_watched(somebody, "runs a fifth of the time")
                service.send(signal.SIGSTOP)
                await measure_watched(somebody, "hangs")
                service.send(signal.SIGCONT)
                service.kill()
                await measure_watched(somebody, "is gone")


if __name__ == "__main__":
    asyncio.run(main())
