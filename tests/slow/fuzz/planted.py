"""Plants faults in our HTTP/2, one at a time, and says who finds each, and after how many inputs.

    python -m tests.slow.fuzz.planted [--runs N]

Each fault goes into a copy of the package. First the fuzzer looks for it, from its seeds alone; if that
finds nothing, the tests do. Exit status 1 if a fault stays unfound.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import yaml
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[3]
PURE_ROOMS = ("frames", "streams", "flow", "headers", "messages", "bounds")


class Fault(NamedTuple):
    """What is wrong, and the words of a module of `extproc/router/wire` that make it so."""

    name: str
    module: str
    right: str
    wrong: str

    @property
    def path(self) -> Path:
        return Path("extproc", "router", "wire", f"{self.module}.py")


def read_faults() -> list[Fault]:
    listed = yaml.safe_load((Path(__file__).parent / "planted.yaml").read_text())
    return [
        Fault(name, words["in"], words["right"], words["wrong"])
        for row in listed
        for name, words in row.items()
    ]


def found_by_fuzzing(place: Path, target: str, runs: int) -> str | None:
    """Runs the fuzzer in a copy; returns who found the fault when."""
    command = [sys.executable, "-m", "tests.slow.fuzz.fuzz", "--target", target, "--findings", "1"]
    run = subprocess.run(
        [*command, "--runs", str(runs)], cwd=place, capture_output=True, text=True, timeout=3_600, check=False
    )
    stated = re.search(rf"{target}: ([\d,]+) runs, .* 1 findings", run.stdout)
    if stated:
        return f"{target}, input {stated[1]}"
    # The fault may break more than a run: then that is how it is found.
    return f"{target}, at once" if run.returncode else None


def found_by_tests(place: Path) -> str | None:
    rooms = [f"tests/router/wire/test_wire_{room}.py" for room in PURE_ROOMS]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *rooms],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.search(r"^FAILED \S+::(\w+)", run.stdout, re.MULTILINE)
    return failed[1] if failed else None


def plant(fault: Fault, place: Path) -> None:
    for part in ("extproc", "tests", "pyproject.toml"):
        source, copy = ROOT / part, place / part
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    path = place / fault.path
    text = path.read_text()
    assert text.count(fault.right) == 1, f"{fault.name}: its words are there {text.count(fault.right)} times"
    path.write_text(text.replace(fault.right, fault.wrong))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20_000, help="of the fuzzer, for each fault and target")
    parser.add_argument("--only", default="", help="faults with these words in their names")
    options = parser.parse_args()
    table = Table("fault", "found by", title="planted faults")
    is_unfound = False
    for fault in read_faults():
        if options.only not in fault.name:
            continue
        with tempfile.TemporaryDirectory() as directory:
            plant(fault, Path(directory))
            finder = (
                found_by_fuzzing(Path(directory), "http2", options.runs)
                or found_by_fuzzing(Path(directory), "blocks", options.runs)
                or found_by_tests(Path(directory))
            )
        table.add_row(fault.name, finder or "nobody")
        sys.stderr.write(f"{fault.name}: {finder or 'nobody'}\n")
        is_unfound |= finder is None
    Console().print(table)
    sys.exit(is_unfound)


if __name__ == "__main__":
    main()
