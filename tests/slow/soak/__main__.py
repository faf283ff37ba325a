"""`make soak MINUTES=30`: gateways that share their picks, hurt in every way, and whether all adds up."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.slow.soak.report import format_report
from tests.slow.soak.run import Options, run_soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--users", type=int, default=24)
    parser.add_argument(
        "--carrier", choices=("nats", "mesh"), default="nats", help="of what gateways share"
    )
    parser.add_argument("--out", type=Path, help="folder of the logs, a new one; else one in /tmp")
    arguments = parser.parse_args()
    directory = arguments.out or Path(tempfile.mkdtemp(prefix="soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    options = Options(
        60 * arguments.minutes, arguments.seed, arguments.users, arguments.carrier, directory
    )
    findings = run_soak(options, lambda text: print(text, flush=True))
    page = format_report(findings)
    (directory / "report.txt").write_text(page + "\n")
    print(page)
    return 1 if findings.reasons() else 0


if __name__ == "__main__":
    sys.exit(main())
