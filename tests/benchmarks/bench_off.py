"""What `shadow`, `lint` and `record` cost a decision where they are off: `python -m tests.benchmarks.bench_off`.

Reference: the same process with their lines taken out of the four functions that have any, in turns of a few
milliseconds, so that the machine's mood is in both. Whole decisions of a session: headers, body, end.
"""

import gc
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from statistics import median, quantiles
from textwrap import dedent, indent
from time import process_time_ns
from typing import Any, Final

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Route
from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.strategies.base import ClockAndRandom
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.router.stream.events import RequestBody, RequestHeaders
from extproc.router.stream.session import Session, SessionOptions
from tests.stack.client import chat_about

# What is taken out, by where it stands.
HOOKS: Final[tuple[tuple[Any, str, str], ...]] = (
    (
        Pick,
        "acquire",
        """
        if self.pool.watcher is not None:
            self.pool.watcher.picked(self)
        """,
    ),
    (
        Pick,
        "release",
        """
        if self.pool.watcher is not None:
            self.pool.watcher.ended(self)
        for listener in self.pool.listeners:
            listener.ended(self)
        """,
    ),
    (
        Picker,
        "find",
        """
        for listener in () if query.is_trial else route.pool.listeners:
            listener.see(prompt, reading)
        """,
    ),
    (
        Session,
        "on",
        """
        if self._watched is not None or isinstance(event, Observed):
            return self._watch(event)
        """,
    ),
    (
        Session,
        "close",
        """
        if self._watched is not None:
            self._watched.close()
        """,
    ),
)
CHUNK, PAIRS = 50, 600


def cut_lines(owner: Any, name: str, lines: str) -> Callable[..., Any]:
    """The same method without these lines."""
    source = dedent(inspect.getsource(getattr(owner, name)))
    wanted = indent(dedent(lines).strip(), "    ") + "\n"
    assert source.count(wanted) == 1, f"{owner.__name__}.{name} has changed"
    names: dict[str, Any] = {}
    exec(source.replace(wanted, ""), inspect.getmodule(owner).__dict__, names)
    method: Callable[..., Any] = names[name]
    return method


@contextmanager
def absent(methods: list[tuple[Any, str, Callable[..., Any]]]) -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in methods]
    for owner, name, method in methods:
        setattr(owner, name, method)
    try:
        yield
    finally:
        for owner, name, method in before:
            setattr(owner, name, method)


def main() -> None:
    outside = ClockAndRandom(random.Random(1), count(0.0, 0.001).__next__)
    pool = Pool("llama", PrefixCache(outside, kv_tokens=4_000_000))
    pool.replace([Endpoint(f"{place}", f"10.0.0.{place}:8000") for place in range(8)])
    picker, options = Picker([Route(pool)]), SessionOptions(new_request_id=lambda: "id")
    headers = RequestHeaders({":method": "POST", ":path": "/v1/chat/completions"})
    cuts = [(owner, name, cut_lines(owner, name, lines)) for owner, name, lines in HOOKS]
    for size in (400, 8_000):
        bodies = [
            RequestBody(chat_about(f"{number} " + "word " * (size // 5)), end_of_stream=True)
            for number in range(50)
        ]

        def decide(bodies: list[RequestBody] = bodies) -> int:
            started = process_time_ns()
            for number in range(CHUNK):
                session = Session(picker, options)
                session.on(headers)
                session.on(bodies[number % len(bodies)])
                session.close()
            return process_time_ns() - started

        decide()
        gc.disable()
        ratios, took_us = list[float](), list[float]()
        for pair in range(PAIRS):
            # Who comes first changes, or a slow drift would look like a cost.
            if pair % 2:
                off = decide()
                with absent(cuts):
                    without = decide()
            else:
                with absent(cuts):
                    without = decide()
                off = decide()
            ratios.append(off / without)
            took_us.append(off / CHUNK / 1_000)
        gc.enable()
        low, middle, high = quantiles(ratios, n=4)
        print(
            f"{size} bytes: {median(took_us):.1f} us a decision, {middle:.4f} times that without "
            f"the code (half of {PAIRS} pairs: {low:.3f} to {high:.3f})"
        )


if __name__ == "__main__":
    main()
