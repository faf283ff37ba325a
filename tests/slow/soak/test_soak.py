"""The soak itself, for some seconds: `make soak` is the same for longer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 20
# Whose first faults are kills of a service and of an Envoy.
SEED = 173


@pytest.mark.envoy
@pytest.mark.slow
@pytest.mark.skipif(
    "SOAK" not in os.environ, reason="set SOAK: it may find a fault, as `make soak` may"
)
@pytest.mark.timeout(600)
def test_all_adds_up_after_kills(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.slow.soak",
        "--minutes",
        f"{SECONDS / 60}",
        "--seed",
        f"{SEED}",
    ]
    done = subprocess.run(
        [*command, "--users", "12", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    print(done.stdout[-6_000:], done.stderr[-2_000:])
    faults = done.stdout.partition("Verdict: ")[2].splitlines()[1:]
    assert faults == []
    assert "Verdict: " in done.stdout
    assert done.returncode == bool(faults)
