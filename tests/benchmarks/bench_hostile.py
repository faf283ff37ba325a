"""What the worst bodies take of the serving loop and of memory, beside honest ones of their size.

CPU time, for all keys but headers in one request. `python -m tests.benchmarks.bench_hostile`.
"""

import random
import tracemalloc
from collections.abc import Callable
from time import process_time_ns

from extproc.errors import PromptError
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Snapshot
from extproc.router.routing.prompt.parse import parse
from extproc.router.routing.prompt.prefix import parse_key, prefix_of, routing_key
from extproc.router.routing.strategies.base import Outside
from extproc.router.routing.strategies.prefix_hash import PrefixHash
from tests.benchmarks.report import Row, report
from tests.hostile import HONEST, HOSTILE, Body, chat

MEBIBYTE = 1024 * 1024
SIZES = {"31 MiB": 31 * MEBIBYTE, "2 MiB": 2 * MEBIBYTE, "64 KiB": 65_000}
KEYS = tuple(map(parse_key, ("field:none", "conversation", "first_user_message", "prompt_head")))
REFERENCE = "normal, 2 KB"


def route(body: Body) -> None:
    try:
        prompt = parse(body.path, body.content_type, body.data)
    except PromptError:
        return
    for key in KEYS:
        prefix = prefix_of(prompt, (key,), 100, {})
        routing_key(prefix or "", model=prompt.model or "", cache_salt=prompt.cache_salt)


def rows_of(name: str, once: Callable[[], None]) -> list[Row]:
    once()
    samples = [_time_ms(once) for _ in range(5)]
    tracemalloc.start()
    once()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return [Row(name, samples, "ms"), Row(f"{name}: peak", [peak_bytes / 1e6], "MB")]


def subset_of(count: int) -> Callable[[], None]:
    endpoints = [Endpoint(f"e{number}", f"10.0.0.{number}:8000") for number in range(8)]
    snapshot = Snapshot.build(endpoints, PrefixHash(Outside(random.Random(0), lambda: 0.0)))
    subset = [f"[fd00::{number:x}]:8000" for number in range(count)]
    return lambda: void(snapshot.locate(subset))


def void(_: object) -> None:
    """Makes a statement of an expression."""


def _time_ms(once: Callable[[], None]) -> float:
    start_ns = process_time_ns()
    once()
    return (process_time_ns() - start_ns) / 1e6


def main() -> None:
    normal = chat(b'{"role":"user","content":"%b"}' % (b"some text " * 200))
    rows = rows_of(REFERENCE, lambda: route(normal))
    rows += rows_of("a subset of 200,000 addresses", subset_of(200_000))
    for kinds, sort in ((HONEST, "honest"), (HOSTILE, "hostile")):
        for size_name, size in SIZES.items():
            for kind, build in kinds.items():
                body = build(size)
                rows += rows_of(f"{sort}: {kind}, {size_name}", lambda body=body: route(body))  # type: ignore[misc]
    report("hostile: what one body takes", rows, reference=REFERENCE)
    worst = max((row for row in rows if row.unit == "ms"), key=lambda row: row.median)
    print(f"the longest: {worst.median:.1f} ms, {worst.name}")


if __name__ == "__main__":
    main()
