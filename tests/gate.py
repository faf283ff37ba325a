"""The gate: what every change passes, in one command (`make test`), with what each step cost.

Types are checked beside lint, layers and generated files; then the tests run in two processes. The
budget is CPU, not time, and is scaled by a fixed piece of work measured in the same run: a busy or
slower machine changes nothing.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BUDGET_S: Final = 400.0
# What `calibrate` takes on the machine that the budget was set on.
_REFERENCE_S: Final = 0.30
_ROOT: Final = Path(__file__).parent.parent
_BIN: Final = Path(sys.executable).parent
_PYTHON: Final = sys.executable
# Every house's, as `make layers` finds them.
CONTRACTS: Final = sorted(
    str(path.relative_to(_ROOT)) for path in (_ROOT / "extproc").rglob("contracts.toml")
)

CHECKS: Final[dict[str, Sequence[Sequence[str]]]] = {
    "types": ([f"{_BIN}/mypy"],),
    "lint": ([f"{_BIN}/ruff", "format", "--check"], [f"{_BIN}/ruff", "check"]),
    "layers": tuple(
        [f"{_BIN}/lint-imports", "--no-cache", "--no-logo", "--config", path] for path in CONTRACTS
    ),
    "generated": (["make", "--no-print-directory", "generated-check"],),
}
TESTS: Final = [
    *(_PYTHON, "-m", "pytest", "--numprocesses", "2", "--dist", "loadgroup"),
    *("-m", "not slow", "--ignore", "tests/slow"),
]


@dataclass(frozen=True, slots=True)
class Step:
    """One step as it went: its exit status, and seconds of wall clock and of CPU (its children included)."""

    name: str
    status: int
    wall_s: float
    cpu_s: float
    output: str


def run_step(name: str, commands: Sequence[Sequence[str]]) -> Step:
    """Run `commands` one after the other until one fails; what they print is kept."""
    began_s = time.monotonic()
    cpu_s, output, status = 0.0, "", 0
    for command in commands:
        process = subprocess.Popen(
            command,
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        output += process.stdout.read()
        _, raw, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(raw)
        cpu_s += used.ru_utime + used.ru_stime
        if status := process.returncode:
            break
    return Step(name, status, time.monotonic() - began_s, cpu_s, output)


def run_tests(options: Sequence[str]) -> Step:
    """Run the tests; their output is shown as it comes."""
    began_s = time.monotonic()
    # Where no bytecode may be written, each of the processes would rewrite every assertion once
    # more.
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    process = subprocess.Popen(
        [*TESTS, *options], cwd=_ROOT, env=environment, stdin=subprocess.DEVNULL
    )
    _, raw, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(raw)
    return Step(
        "tests", process.returncode, time.monotonic() - began_s, used.ru_utime + used.ru_stime, ""
    )


def calibrate() -> float:
    """Return the CPU seconds of a fixed piece of work: the least of three runs."""

    def work() -> float:
        began = time.process_time()
        table = {f"{number:x}": number for number in range(300_000)}
        total = sum(len(key) * value for key, value in table.items())
        assert total
        assert re.sub(r"(\d)(\d)", r"\2\1", "0123456789" * 60_000)
        return time.process_time() - began

    return min(work() for _ in range(3))


def report_steps(steps: Sequence[Step], factor: float) -> list[str]:
    rows = [f"{'step':<12}{'wall':>8}{'CPU':>8}  result"]
    rows += [
        f"{step.name:<12}{step.wall_s:>7.1f}s{step.cpu_s:>7.1f}s  {'failed' if step.status else 'ok'}"
        for step in steps
    ]
    cpu_s = sum(step.cpu_s for step in steps)
    scaled = f"{cpu_s / factor:.0f} s of {BUDGET_S:.0f} (this machine: x{factor:.2f})"
    rows.append(f"{'sum':<12}{'':>8}{cpu_s:>7.1f}s  {scaled}")
    return rows


def main(options: Sequence[str]) -> int:
    """Return the exit status: 0 if every step passed within the budget."""
    factor = calibrate() / _REFERENCE_S
    with ThreadPoolExecutor(2) as two:
        others = [name for name in CHECKS if name != "types"]
        types = two.submit(run_step, "types", CHECKS["types"])
        rest = two.submit(lambda: [run_step(name, CHECKS[name]) for name in others])
        steps = [types.result(), *rest.result()]
    for step in steps:
        if step.status:
            print(f"--- {step.name}\n{step.output}")
    steps.append(run_tests(options))
    factor = max(1.0, (factor + calibrate() / _REFERENCE_S) / 2)
    print("\n".join(report_steps(steps, factor)))
    failed = [step.name for step in steps if step.status]
    if failed:
        print(f"failed: {', '.join(failed)}")
        return 1
    if sum(step.cpu_s for step in steps) / factor > BUDGET_S and not options:
        print("The gate is over its budget of CPU: make a test cheaper, or move one to tests/slow.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
