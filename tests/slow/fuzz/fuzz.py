"""Fuzzes every target by coverage (atheris, libFuzzer) and says how many inputs were tried.

    python -m tests.slow.fuzz.fuzz [--target NAME] [--seconds N] [--executions N]

A target ends at whichever limit comes first. Starts from `tests/slow/fuzz/corpus`, gathers inputs in
`build/fuzz`. A finding is written there as `NAME-crash-…`; keep it in the corpus when it is mended, and
the tests try it ever after. Exit status 1 if there was a finding.
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
GATHERED = HERE.parents[2] / "build" / "fuzz"
# One input must not take longer, nor the process more memory.
LIMITS = ("-timeout=5", "-rss_limit_mb=1024", "-max_len=1000", "-print_final_stats=1", "-verbosity=1")


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
    limits = [*LIMITS, f"-max_total_time={seconds}", f"-runs={executions}", f"-dict={HERE / 'json.dict'}"]
    places = [f"-artifact_prefix={GATHERED}/{target}-", str(gathered), str(HERE / "corpus" / target)]
    start_s = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-m", "tests.slow.fuzz.fuzz", "--here", "--target", target, "--", *limits, *places],
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


def main() -> None:
    names = ("prompt", "session", "wire", "http2", "blocks", "letter")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=names, help="only this one")
    parser.add_argument("--seconds", type=int, default=120, help="for all targets together")
    parser.add_argument(
        "--executions", type=int, default=-1, help="per target; -1: as many as there is time for"
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("libfuzzer", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        fuzz_here(options.target, options.libfuzzer)
    targets = [options.target] if options.target else names
    table = Table("target", "executions", "seconds", "findings", title="fuzzing")
    total, has_finding = 0, False
    for target in targets:
        executions, elapsed_s, is_finding = fuzz_apart(
            target, options.seconds // len(targets), options.executions
        )
        table.add_row(target, f"{executions:,}", f"{elapsed_s:.0f}", str(int(is_finding)))
        total, has_finding = total + executions, has_finding or is_finding
    console = Console()
    console.print(table)
    console.print(f"{total:,} executions, {'a finding' if has_finding else 'no finding'}")
    sys.exit(has_finding)


if __name__ == "__main__":
    main()
