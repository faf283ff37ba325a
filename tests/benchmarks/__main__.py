"""`make bench`: the benchmarks of this folder, one after the other; each prints a table and writes JSON.

`seed`, `gateways`, `cost`, `events`, `terms`, `hostile`, `shadow`, `foretold` and `watched` take minutes:
`make bench-seed` and so on, or `python -m tests.benchmarks.bench_NAME`; `faults_simulated` wants to know how
many seeds.
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("build/bench"), help="folder of the JSON files"
    )
    parser.add_argument(
        "names", nargs="*", help="which ones, as in `pick gateway`; else all but those"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    every = {path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py")}
    named = {"seed", "gateways", "cost", "events", "hostile", "terms", "faults_simulated"}
    named |= {"shadow", "foretold", "watched"}
    names = arguments.names or sorted(every - named)
    failed = [name for name in names if not _run(name, arguments.out / f"{name}.json")]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(name: str, path: Path) -> bool:
    print(f"\n== {name}", flush=True)
    command = [sys.executable, "-m", f"tests.benchmarks.bench_{name}", "--json", str(path)]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
