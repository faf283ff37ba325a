"""What the admin port of several workers costs who tells of them: one `/metrics`, and one picture.

Four workers with a hundred endpoints each. CPU time of that process, which no request waits for.
`python -m tests.benchmarks.bench_view`.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from msgspec.json import decode, encode
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics

from extproc.router.service.exposition import _expose
from extproc.router.service.live.painter import Painter
from extproc.router.service.live.picture import Picture
from extproc.router.service.live.tape import Tape
from extproc.router.workers.view.admin import parse
from extproc.router.workers.view.mosaic import Mosaic
from extproc.router.workers.view.totals import Totals
from tests.benchmarks.bench_live import cpu_ms, fill
from tests.benchmarks.report import Row, report
from tests.router.service.live_service import finish, looking
from tests.stack.service import pool

WORKERS = 4
ENDPOINTS = 100


async def told() -> tuple[bytes, bytes]:
    """What a worker tells that has picked each endpoint: its metrics, and a picture."""
    addresses = [f"10.0.0.{n}:80" for n in range(1, ENDPOINTS + 1)]
    pools = [pool(addresses, {"name": "prefix_cache"}, probe=False)]
    with tempfile.TemporaryDirectory() as folder:
        async with looking(Path(folder), pools) as live:
            await fill(live)
            registry = live.app.metrics.registry
            metrics = bytes(openmetrics.generate_latest(registry))  # type: ignore[no-untyped-call]  # the library's
            return metrics, encode(finish(Painter(Tape(monotonic)).draw(live.app, monotonic())))


def families(body: bytes) -> list[Metric]:
    read = parse(body)
    assert read is not None
    return read


def draw(mosaic: Mosaic, picture: bytes) -> None:
    for number in range(WORKERS):
        mosaic.hear(f"worker-{number}", decode(picture, type=Picture), 1.0)
    encode(mosaic.draw(1.0))


def measured(body: bytes, picture: bytes) -> Sequence[Row]:
    mosaic = Mosaic()
    scrape, totals = {f"worker-{number}": families(body) for number in range(WORKERS)}, Totals()
    merged = totals.merge(scrape)
    return [
        Row("read, one worker", cpu_ms(lambda: families(body)), "ms of CPU"),
        Row("merged, all", cpu_ms(lambda: totals.merge(scrape)), "ms of CPU"),
        Row("written and zipped", cpu_ms(lambda: _expose(merged, "", is_zipped=True)), "ms of CPU"),
        Row("a picture: read, merged and written", cpu_ms(lambda: draw(mosaic, picture)), "ms of CPU"),
        Row("samples of one worker", [sum(len(family.samples) for family in merged)], ""),
    ]


def main() -> None:
    rows = measured(*asyncio.run(told()))
    report(f"the view of {WORKERS} workers, {ENDPOINTS} endpoints", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
