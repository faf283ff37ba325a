"""The pick: its time by number of endpoints, the cost of one endpoint's arrival, and of hearing what became.

Reference in the same run: the same pick with 8 endpoints. `python -m tests.benchmarks.bench_pick`.
"""

import gc
import random
import resource
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count as clock
from itertools import cycle
from operator import truediv
from pathlib import Path
from time import monotonic, process_time_ns, thread_time

import msgspec
from msgspec.structs import replace

from extproc.router.app import YOUNG_OBJECTS
from extproc.router.feedback.access_log import METHOD, AccessLogs
from extproc.router.feedback.cooling import Cooling, Rules
from extproc.router.feedback.outcome import Exchange, outcomes
from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pick, Pool, Snapshot
from extproc.router.routing.prompt.chain import Chain, chain_of
from extproc.router.routing.prompt.parse import parse
from extproc.router.routing.strategies.base import ClockAndRandom, Strategy
from extproc.router.routing.strategies.prefix_cache.index import PrefixIndex
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.router.routing.strategies.prefix_hash import PrefixHash
from extproc.router.routing.tickets import Tickets
from tests.benchmarks.report import Row, report, time_us
from tests.router.feedback.access_logs import LogClient, entry, log_message

OUTSIDE = ClockAndRandom(
    random.Random(1), clock(0.0, 0.1).__next__
)  # time goes by, so that prefills end
STRATEGY = PrefixHash(OUTSIDE)
COUNTS = (8, 100, 1_000)
STRATEGIES: tuple[Callable[[], Strategy], ...] = (
    lambda: PrefixCache(OUTSIDE, kv_tokens=4_000_000),
    lambda: PrefixHash(OUTSIDE),
)
# Bytes of a chat, and how many questions it has had answered.
CHATS = ((2_000, 3), (8_000, 8), (32_000, 20), (100_000, 30), (400_000, 40))
# What Envoy's 16 KiB buffer holds of the entries that a chat makes.
BATCH = 24


def numbered_endpoints(count: int) -> list[Endpoint]:
    return [
        Endpoint(f"default/vllm-{index}", f"10.0.{index // 250}.{index % 250 + 1}:8000")
        for index in range(count)
    ]


def build_picker(count: int, strategy: Strategy = STRATEGY) -> Picker:
    pool = Pool("llama", strategy)
    pool.replace(numbered_endpoints(count))
    return Picker([Route(pool)])


def short_asks() -> list[Query]:
    """2 KB each, no two prefixes alike."""
    text = "".join(random.Random(2).choices("abcdefghij klmnop", k=1_800))
    said = [[{"role": "user", "content": f"{index} {text}"}] for index in range(512)]
    bodies = [
        msgspec.json.encode({"model": "llama", "messages": each, "stream": True}) for each in said
    ]
    return [Query("POST", "/v1/chat/completions", {}, body) for body in bodies]


def picks(count: int) -> Callable[[], None]:
    """One whole decision: parse, hash, walk, count, and release; a quarter of the mean load in flight."""
    picker, asks = build_picker(count), cycle(short_asks())
    for _ in range(4 * count):
        picker.pick(next(asks))
    return lambda: picker.pick(next(asks)).pick.release()  # noqa: PLW0108  # another one each time


def chats(size: int, turns: int, count: int = 64) -> list[bytes]:
    """Chats of about `size` bytes each, no two alike."""
    rng = random.Random(3)
    length = size // (2 * turns + 1)

    def said(role: str) -> dict[str, str]:
        return {"role": role, "content": "".join(rng.choices("abcdefghij klmnop", k=length))}

    return [
        msgspec.json.encode(
            {"messages": [said(role) for role in [*(("user", "assistant") * turns), "user"]]}
        )
        for _ in range(count)
    ]


def chat_picks(strategy: Strategy, kind: str, size: int, turns: int) -> Callable[[], None]:
    """One whole decision: a chat's next turn, a chat that begins, or the same request again."""
    picker, numbers = build_picker(8, strategy), clock(10)
    bodies = chats(size, turns, max(4, min(64, 2_000_000 // size)))
    for body in (
        *[body[: body.rindex(b',{"role":"assistant"')] + b"]}" for body in bodies],
        *bodies,
    ):
        picker.pick(Query("POST", "/v1/chat/completions", {}, body)).pick.release()
    turn = cycle(bodies)

    def once() -> None:
        body = next(turn)
        if kind == "next turn":
            body = b'%b %d"}]}' % (body[:-4], next(numbers))
        elif kind == "new chat":
            body = body.replace(b'"content":"', b'"content":"%d ' % next(numbers), 1)
        picker.pick(Query("POST", "/v1/chat/completions", {}, body)).pick.release()

    return once


def time_decisions(size: int, turns: int) -> list[Row]:
    """CPU of a decision, and of what none can do without; in turns, so that a busy machine slows all."""
    [body], kinds = chats(size, turns, 1), ("next turn", "new chat", "again")
    read = [*parse("/v1/chat/completions", "", body).turns(size * 2)]
    floors = ("blocks hashed", "msgspec.json.decode")
    arms: dict[object, Callable[[], object]] = {floors[1]: partial(msgspec.json.decode, body)}
    arms[floors[0]] = partial(chain_of, read, 1)
    arms |= {
        (kind, build): chat_picks(build(), kind, size, turns)
        for kind in kinds
        for build in STRATEGIES
    }
    clocked = partial(time_us, calls=max(5, 600_000 // size), rounds=1, clock_ns=process_time_ns)
    rounds = [{what: clocked(arm)[0] for what, arm in arms.items()} for _ in range(21)]
    rows = [
        Row(f"{size // 1_000} KB: {what}", [each[what] for each in rounds], "µs CPU")
        for what in floors
    ]
    for kind in kinds:
        cache, hashed = ([each[kind, build] for each in rounds] for build in STRATEGIES)
        named, ratios = f"{size // 1_000} KB, {kind}: prefix_", [*map(truediv, cache, hashed)]
        rows += [Row(f"{named}cache", cache, "µs CPU"), Row(f"{named}hash", hashed, "µs CPU")]
        rows.append(Row(f"{named}cache to hash", ratios, "times"))
    return rows


def memory_mb(count: int) -> float:
    """An index of so many endpoints of 84,000 tokens, full of the shortest blocks that it takes."""
    index, rng, ends = PrefixIndex(336_000), random.Random(4), range(64, 6_401, 64)
    index.follow({endpoint.name: endpoint.address for endpoint in numbered_endpoints(count)})
    before = _resident_mb()
    for endpoint in numbered_endpoints(count):
        holding = index.holding(endpoint.name)
        for _ in range(30):
            hashes = [rng.getrandbits(64) for _ in ends]
            chain = Chain(hashes, ends, ends, ends[-1], hashes[0], 0)
            if holding is not None:
                index.release(holding, chain, index.insert(holding, chain, 0.0), 0.0)
    return _resident_mb() - before


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def arrivals(count: int) -> Callable[[], Snapshot]:
    """One more endpoint: the snapshot with it, built in a thread."""
    known = numbered_endpoints(count + 1)
    before = Snapshot.build(known[:-1], STRATEGY)
    return partial(Snapshot.build, known, STRATEGY, before.placement)


def installs(count: int) -> Callable[[], None]:
    known = numbered_endpoints(count + 1)
    before = Snapshot.build(known[:-1], STRATEGY)
    states = cycle([Snapshot.build(known, STRATEGY, before.placement), before])
    pool = Pool("llama", STRATEGY)
    pool.install(before)
    return lambda: pool.install(next(states))


def answered_batches() -> bytes:
    known = numbered_endpoints(100)
    told = tuple(endpoint.address for endpoint in known[:3])
    each = [
        entry(address=(one.ip, one.port), destinations=told, pick="f" * 16) for one in known[:BATCH]
    ]
    return log_message(*each)


def build_desk() -> PoolFeedback:
    rng = random.Random(1)
    cooling = Cooling(Rules(), clock=monotonic, rng=rng)
    pool = Pool("llama", PrefixHash(ClockAndRandom(rng, monotonic)), gate=cooling)
    pool.replace(numbered_endpoints(100))
    return PoolFeedback(pool, cooling)


def hearing_outcomes(feedback: PoolFeedback) -> Callable[[], None]:
    def take(exchange: Exchange) -> None:
        for outcome in outcomes(exchange, 0.0):
            feedback.observe(outcome)

    stream = AccessLogs(take, lambda _: None).open(LogClient())
    log = answered_batches()

    return lambda: stream.on_message(log)


def collections_ms(asked: int = 50_000) -> list[float]:
    """CPU of each collection of garbage while so many prompts are picked for, no two alike, 100 in flight."""
    picker, tickets, began_ms, took_ms = (
        build_picker(8, STRATEGIES[0]()),
        Tickets(monotonic, 1),
        0.0,
        [],
    )
    open_, [chat] = deque[tuple[Pick, int]](), short_asks()[:1]

    def note(phase: str, _: object) -> None:
        nonlocal began_ms
        now_ms = thread_time() * 1e3
        if phase == "start":
            began_ms = now_ms
        else:
            took_ms.append(now_ms - began_ms)

    gc.freeze()  # as the service does
    gc.set_threshold(YOUNG_OBJECTS)
    gc.callbacks.append(note)
    for number in range(asked):
        body = (chat.body or b"").replace(b'"0 ', b'"%d ' % number)
        pick = picker.pick(replace(chat, body=body)).pick
        open_.append((pick, tickets.give(pick)))
        if len(open_) > 100:
            pick, ticket = open_.popleft()
            pick.release()
            tickets.end(ticket)
    gc.callbacks.remove(note)
    return took_ms


def main() -> None:
    # First: what has been freed once is not asked for again.
    memory = [
        Row(f"full index of {count} endpoints", [memory_mb(count)], "MB") for count in (8, 1_000)
    ]
    rows = [
        Row(f"pick, 2 KB body, {count} endpoints", time_us(picks(count)), "µs") for count in COUNTS
    ]
    for count in COUNTS:
        arrival = f"arrival at {count} endpoints"
        rows.append(Row(f"{arrival}: snapshot, in a thread", time_us(arrivals(count), 20), "µs"))
        rows.append(Row(f"{arrival}: install, on the loop", time_us(installs(count), 50), "µs"))
    gc.freeze()  # as the service does when it has started
    heard = [sample / BATCH for sample in time_us(hearing_outcomes(build_desk()), 50)]
    rows.append(
        Row(f"hear of one request ({METHOD.rpartition('/')[2]}, {BATCH} a message)", heard, "µs")
    )
    took_ms = collections_ms()
    rows.append(Row(f"longest of {len(took_ms)} collections, 50,000 prompts", [max(took_ms)], "ms"))
    rows += [row for size, turns in CHATS for row in time_decisions(size, turns)]
    report("pick", rows + memory, reference=rows[0].name)


if __name__ == "__main__":
    main()
