"""Fuzzes targets: by coverage (atheris, libFuzzer), or on inputs of a seeded generator.

    python -m tests.slow.fuzz.fuzz [--target NAME] [--seconds N] [--executions N]
    python -m tests.slow.fuzz.fuzz --target NAME --runs N [--seed N] [--findings N]

By coverage, a target ends at whichever limit comes first; inputs are gathered in `build/fuzz`.
Seeded ones are many times faster: two of three are made of nothing, one is a changed one of the
corpus. Keep a finding of `build/fuzz` in the corpus when it is mended: the tests try it ever after.
Exit status 1 if there was one.
"""

import argparse
import re
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
GATHERED = HERE.parents[2] / "build" / "fuzz"
# One input must not take longer, nor the process more memory.
MAX_BYTES = 160
LIMITS = (
    "-timeout=5",
    "-rss_limit_mb=1024",
    "-max_len=1000",
    "-print_final_stats=1",
    "-verbosity=1",
)


def fuzz_here(target: str, arguments: list[str]) -> None:
    """Runs libFuzzer in this process; it exits when it is done."""
    import atheris  # noqa: PLC0415  # only here: the driver and the tests do without

    with atheris.instrument_imports(include=["extproc"]):
        from tests.slow.fuzz.targets import TARGETS  # noqa: PLC0415  # imported under instrumentation

    atheris.Setup([target, *arguments], TARGETS[target])
    atheris.Fuzz()


def fuzz_apart(target: str, seconds: int, executions: int) -> tuple[int, float, bool]:
    """Fuzzes in a process of its own; returns executions, seconds, and whether there was a finding."""
    gathered = GATHERED / target
    gathered.mkdir(parents=True, exist_ok=True)
    limits = [
        *LIMITS,
        f"-max_total_time={seconds}",
        f"-runs={executions}",
        f"-dict={HERE / 'json.dict'}",
    ]
    places = [
        f"-artifact_prefix={GATHERED}/{target}-",
        str(gathered),
        str(HERE / "corpus" / target),
    ]
    start_s = time.monotonic()
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.slow.fuzz.fuzz",
            "--here",
            "--target",
            target,
            "--",
            *limits,
            *places,
        ],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        cwd=HERE.parents[2],
    )
    elapsed_s = time.monotonic() - start_s
    stated = re.search(r"stat::number_of_executed_units:\s*(\d+)", run.stderr)
    if run.returncode:
        sys.stderr.write(run.stdout[-4_000:] + run.stderr[-4_000:])
    return int(stated[1]) if stated else 0, elapsed_s, run.returncode != 0


def inputs(random: Random, corpus: list[bytes]) -> Iterator[bytes]:
    while True:
        yield random.randbytes(random.randrange(8, 110))
        yield random.randbytes(random.randrange(8, 110))
        yield changed(random, random.choice(corpus), random.choice(corpus))


def changed(random: Random, data: bytes, other: bytes) -> bytes:
    """The head of one input and the tail of another, with a few bytes set, left out or put in."""
    made = bytearray(
        data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]
    )
    for _ in range(random.randrange(1, 6)):
        place = random.randrange(len(made) + 1)
        made[place : place + random.randrange(3)] = random.randbytes(random.randrange(3))
    return bytes(made[:MAX_BYTES])


def run_seeded(name: str, runs: int, seed: int, max_findings: int) -> int:
    """Tries inputs of a seeded generator; returns how many findings there were."""
    from tests.slow.fuzz.targets import TARGETS  # noqa: PLC0415  # elsewhere imported under instrumentation

    console = Console()
    corpus = [path.read_bytes() for path in sorted((HERE / "corpus" / name).iterdir())]
    outcomes: Counter[str] = Counter()
    findings, start_s = 0, time.monotonic()
    logged_s = start_s
    for count, data in enumerate(
        inputs(Random(seed), corpus), start=1
    ):  # the same inputs for the same seed
        try:
            outcomes[str(TARGETS[name](data))] += 1
        except Exception:  # noqa: BLE001  # whatever it is, it is the finding
            findings += 1
            place = GATHERED / f"{name}-seed-{seed}-{count}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            console.print(f"a finding, {place}:\n{traceback.format_exc(limit=-3)}", markup=False)
        is_over = count >= runs or findings >= max_findings
        if is_over or time.monotonic() - logged_s > 60:
            logged_s = time.monotonic()
            passed = f"{count:,} runs, {logged_s - start_s:,.0f} s"
            console.print(f"{name}: {passed}, {findings} findings, seed {seed}")
        if is_over:
            break
    for outcome, count in outcomes.most_common():
        console.print(f"{count:>12,} {outcome}", markup=False)
    return findings


def main() -> None:
    names = (
        *("prompt", "wire", "http2", "blocks", "letter", "zmtp", "uploads", "nats"),
        *("events", "lint", "recording", "prefill"),
    )
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--target", choices=names, help="only this one")
    parser.add_argument("--seconds", type=int, default=120, help="for all targets together")
    parser.add_argument(
        "--executions", type=int, default=-1, help="per target; -1: as there is time for"
    )
    parser.add_argument("--runs", type=int, help="seeded inputs instead, so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--findings", type=int, default=20, help="seeded: ends after so many")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("libfuzzer", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        fuzz_here(options.target, options.libfuzzer)
    targets = [options.target] if options.target else names
    if options.runs:
        found = [run_seeded(name, options.runs, options.seed, options.findings) for name in targets]
        sys.exit(any(found))
    table = Table("target", "executions", "seconds", "findings", title="fuzzing")
    results = [
        fuzz_apart(target, options.seconds // len(targets), options.executions)
        for target in targets
    ]
    for target, (executions, elapsed_s, is_finding) in zip(targets, results, strict=True):
        table.add_row(target, f"{executions:,}", f"{elapsed_s:.0f}", str(int(is_finding)))
    Console().print(table)
    sys.exit(any(is_finding for _, _, is_finding in results))


if __name__ == "__main__":
    main()
