"""The pick: its time by number of endpoints, and the cost of one endpoint's arrival.

Reference in the same run: the same pick with 8 endpoints. `python -m tests.benchmarks.bench_pick`.
"""

import random
from collections.abc import Callable
from functools import partial
from itertools import cycle

import orjson

from extproc.routing.endpoint import Endpoint
from extproc.routing.picker import Ask, Picker, Route
from extproc.routing.pool import Pool, Snapshot
from extproc.routing.strategies.base import Outside
from extproc.routing.strategies.prefix_hash import PrefixHash
from extproc.stream.codec import encode
from extproc.stream.events import RequestBody, RequestHeaders, StreamConfig
from extproc.stream.session import Session
from tests.benchmarks.report import Row, report, time_us

STRATEGY = PrefixHash(Outside(random.Random(1), lambda: 0.0))
COUNTS = (8, 100, 1_000)
BODIES = 512


def endpoints(count: int) -> list[Endpoint]:
    return [
        Endpoint(f"default/vllm-{index}", f"10.0.{index // 250}.{index % 250 + 1}:8000")
        for index in range(count)
    ]


def build_picker(count: int) -> Picker:
    pool = Pool("llama", STRATEGY)
    pool.replace(endpoints(count))
    return Picker([Route(pool)])


def bodies() -> list[bytes]:
    """2 KB each, no two prefixes alike."""
    rng = random.Random(2)
    text = "".join(rng.choices("abcdefghij klmnop", k=1_800))
    return [
        orjson.dumps(
            {"model": "llama", "messages": [{"role": "user", "content": f"{index} {text}"}], "stream": True}
        )
        for index in range(BODIES)
    ]


def picks(count: int) -> Callable[[], None]:
    """One whole decision: parse, hash, walk, count, and release; a quarter of the mean load in flight."""
    picker, asks = build_picker(count), cycle(_asks())
    for _ in range(4 * count):
        picker.pick(next(asks))

    def once() -> None:
        picker.pick(next(asks)).pick.release()

    return once


def sessions(count: int) -> Callable[[], None]:
    """A whole stream without the socket: decode, session, encode, close."""
    picker = build_picker(count)
    headers = RequestHeaders({":method": "POST", ":path": "/v1/chat/completions"}, config=StreamConfig())
    events = cycle([RequestBody(body) for body in bodies()])

    def once() -> None:
        session = Session(picker, new_request_id=lambda: "id")
        for event in (headers, next(events)):
            for reply in session.on(event):
                encode(reply)
        session.close()

    return once


def arrivals(count: int) -> Callable[[], Snapshot]:
    """One more endpoint: the snapshot with it, built in a thread."""
    known = endpoints(count + 1)
    before = Snapshot.build(known[:-1], STRATEGY)

    return partial(Snapshot.build, known, STRATEGY, before.placement)


def installs(count: int) -> Callable[[], None]:
    known = endpoints(count + 1)
    before = Snapshot.build(known[:-1], STRATEGY)
    states = cycle([Snapshot.build(known, STRATEGY, before.placement), before])
    pool = Pool("llama", STRATEGY)
    pool.install(before)

    return lambda: pool.install(next(states))


def _asks() -> list[Ask]:
    return [Ask("POST", "/v1/chat/completions", {}, body) for body in bodies()]


def main() -> None:
    rows = [Row(f"pick, 2 KB body, {count} endpoints", time_us(picks(count)), "µs") for count in COUNTS]
    rows += [
        Row(f"stream without socket, {count} endpoints", time_us(sessions(count)), "µs") for count in COUNTS
    ]
    rows += [
        Row(f"arrival at {count} endpoints: snapshot, in a thread", time_us(arrivals(count), 20), "µs")
        for count in COUNTS
    ]
    rows += [
        Row(f"arrival at {count} endpoints: install, on the loop", time_us(installs(count), 50), "µs")
        for count in COUNTS
    ]
    report("pick", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
