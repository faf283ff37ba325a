"""Without the system's programs the slow tests say at once what to install."""

import os
import subprocess
import sys
from pathlib import Path

from tests.slow.packages import PACKAGES

SCRIPT = Path(__file__).with_name("packages.py")


def run_packages(path: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *options]
    environment = {**os.environ, "PATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_what_is_missing_is_said_in_one_line_with_the_command(tmp_path: Path) -> None:
    for program in PACKAGES:
        if program != "h2load":
            (tmp_path / program).touch(0o755)
    whole = run_packages(os.environ["PATH"])
    found = run_packages(str(tmp_path))

    assert (whole.returncode, whole.stderr) == (0, "")
    assert (found.returncode, found.stderr) == (
        1,
        "make test-slow needs more: apt-get install nghttp2-client\n",
    )


def test_the_list_for_ci_has_every_package() -> None:
    assert {*PACKAGES.values(), "docker.io", "python3-venv"} < {
        *run_packages("", "--list").stdout.split()
    }
