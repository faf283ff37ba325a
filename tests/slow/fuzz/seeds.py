"""Runs a target on inputs from a seeded generator: unguided, so many times faster than by coverage.

    python -m tests.slow.fuzz.seeds [--target NAME] [--runs N] [--seed N] [--findings N]

Two inputs of three are made of nothing, one is a changed one of the corpus. A line a minute says how far it
is; a finding is written to `build/fuzz`, as `NAME-seed-…`. Exit status 1 if there was one.
"""

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from rich.console import Console

from tests.slow.fuzz.targets import TARGETS

HERE = Path(__file__).parent
FOUND = HERE.parents[2] / "build" / "fuzz"
MAX_BYTES = 160


def inputs(random: Random, corpus: list[bytes]) -> Iterator[bytes]:
    while True:
        yield random.randbytes(random.randrange(8, 110))
        yield random.randbytes(random.randrange(8, 110))
        yield changed(random, random.choice(corpus), random.choice(corpus))


def changed(random: Random, data: bytes, other: bytes) -> bytes:
    """The head of one input and the tail of another, with a few bytes set, left out or put in."""
    made = bytearray(data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :])
    for _ in range(random.randrange(1, 6)):
        place = random.randrange(len(made) + 1)
        made[place : place + random.randrange(3)] = random.randbytes(random.randrange(3))
    return bytes(made[:MAX_BYTES])


def run(target: Callable[[bytes], object], name: str, runs: int, seed: int, max_findings: int) -> int:
    """Returns how many findings there were."""
    console = Console()
    corpus = [path.read_bytes() for path in sorted((HERE / "corpus" / name).iterdir())]
    outcomes: Counter[str] = Counter()
    findings, start_s = 0, time.monotonic()
    told_s = start_s
    for count, data in enumerate(inputs(Random(seed), corpus), start=1):  # the same inputs for the same seed
        try:
            outcomes[str(target(data))] += 1
        except Exception:  # noqa: BLE001  # whatever it is, it is the finding
            findings += 1
            place = FOUND / f"{name}-seed-{seed}-{count}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            console.print(f"a finding, {place}:\n{traceback.format_exc(limit=-3)}", markup=False)
        now_s = time.monotonic()
        is_over = count >= runs or findings >= max_findings
        if is_over or now_s - told_s > 60:
            told_s = now_s
            console.print(
                f"{name}: {count:,} runs, {now_s - start_s:,.0f} s, {findings} findings, seed {seed}"
            )
        if is_over:
            break
    for outcome, count in outcomes.most_common():
        console.print(f"{count:>12,} {outcome}", markup=False)
    return findings


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=sorted(TARGETS), default="http2")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--findings", type=int, default=20, help="ends after so many")
    options = parser.parse_args()
    target = TARGETS[options.target]
    sys.exit(run(target, options.target, options.runs, options.seed, options.findings) > 0)


if __name__ == "__main__":
    main()
