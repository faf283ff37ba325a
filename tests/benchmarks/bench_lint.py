"""What the sample of prompts costs a pick: `python -m tests.benchmarks.bench_lint`.

Reference in the same run: the picks without it. Chats grow, as they do: each next turn is found by the one
before. The sample is timed alone, since it is less than what picks vary by. And what one comparison takes.
"""

import random
from itertools import count
from statistics import median
from time import perf_counter, process_time_ns

from extproc.router.lint.heads import EVERY, read_prompt_head
from extproc.router.lint.partings import find_partings
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pool
from extproc.router.routing.prompt.parse import parse
from extproc.router.routing.strategies.base import ClockAndRandom
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from tests.router.lint.planted import PATHS, plant_fault, planted_head, write_body, write_lines

PICKS, ROUNDS = 4_000, 5


def _bodies(system_lines: int) -> list[bytes]:
    found = []
    for chat in range(25):
        said = list[tuple[str, str]]()
        for turn in range(8):
            said.append(("user", write_lines(f"{chat} asks {turn}", 4)))
            found.append(write_body(PATHS[0], write_lines("system", system_lines), said))
            said.append(("assistant", write_lines(f"{chat} hears {turn}", 10)))
    return found


def _pick_us(picker: Picker, bodies: list[bytes]) -> float:
    started = process_time_ns()
    for number in range(PICKS):
        picker.pick(Query("POST", PATHS[0], {}, bodies[number % len(bodies)])).pick.release()
    return (process_time_ns() - started) / PICKS / 1_000


def _see_us(bodies: list[bytes]) -> float:
    """What reading one head adds, as after a pick that found the chat's last turn: once in `EVERY` requests."""
    took = list[int]()
    for body in bodies:
        prompt = parse(PATHS[0], "application/json", body)
        started = process_time_ns()
        read_prompt_head(prompt)
        took.append(process_time_ns() - started)
    return sum(took) / len(took) / 1_000 / EVERY


def main() -> None:
    clock = count(0.0, 0.001).__next__
    for lines in (10, 60, 300, 2_000):
        bodies = _bodies(lines)
        pool = Pool(
            "llama", PrefixCache(ClockAndRandom(random.Random(1), clock), kv_tokens=4_000_000)
        )
        pool.replace([Endpoint(f"{place}", f"10.0.0.{place}:8000") for place in range(8)])
        picker = Picker([Route(pool)])
        picks = [_pick_us(picker, bodies) for _ in range(ROUNDS)]
        sees = [_see_us(bodies) for _ in range(ROUNDS)]
        size = sum(map(len, bodies)) / len(bodies) / 1_000
        ratios = [see / pick for see, pick in zip(sees, picks, strict=True)]
        print(
            f"{size:.0f} kB: a pick {median(picks):.1f} us, the sample {median(sees):.2f} us a request: "
            f"{min(ratios):.2%}/{median(ratios):.2%}/{max(ratios):.2%}"
        )
    heads = [planted_head(PATHS[0], plant_fault("uuid", PATHS[0], n % 8)) for n in range(64)]
    started = perf_counter()
    find_partings(heads)
    print(
        f"one comparison of 64 heads: {1_000 * (perf_counter() - started):.0f} ms, at most one a minute"
    )


if __name__ == "__main__":
    main()
