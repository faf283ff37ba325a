"""The composed stack on a Docker engine: one that runs, or one of our own where we are root."""

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import wait_until

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PROJECT = f"extproc-router-test-{os.getpid()}"  # two runs may be beside each other
IMAGES = {"BASE_IMAGE": "python:3.11-slim", "ENVOY_IMAGE": "envoyproxy/envoy:v1.40.2"}
NETWORK = f"{PROJECT}_default"


def docker(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def is_up() -> bool:
    return docker("info", "--format", "{{.ServerVersion}}").returncode == 0


@contextmanager
def engine() -> Iterator[None]:
    """Skips the test where no engine can be had."""
    if not all(map(shutil.which, ("docker", "docker-compose"))):
        pytest.skip("apt-get install docker.io docker-compose debootstrap")
    with (Path(tempfile.gettempdir()) / "extproc-router-engine.lock").open("w") as lock:
        # One at a time: who starts an engine also stops it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield from _started()


def _started() -> Iterator[None]:
    if is_up():
        yield
        return
    if os.geteuid() or not shutil.which("dockerd"):
        pytest.skip("no Docker engine runs, and we cannot start one")
    with subprocess.Popen(
        ["dockerd"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as daemon:
        try:
            # Some machines allow no engine: it ends at once then.
            wait_until(lambda: is_up() or daemon.poll() is not None, "the engine never answered")
            if daemon.poll() is not None:
                pytest.skip(
                    f"dockerd ended with {daemon.returncode}: this machine allows no engine"
                )
            yield
        finally:
            daemon.terminate()


def build_images() -> dict[str, str]:
    """Builds the service's image; returns the variables that name the others where no registry is reached."""
    variables = {}
    if any(docker("pull", "--quiet", name).returncode for name in IMAGES.values()):
        if os.geteuid() or not shutil.which("debootstrap"):
            pytest.skip("no registry is reached, and only root with debootstrap can make stand-ins")
        environment = {**os.environ, "PYTHON": sys.executable}
        made = subprocess.run(
            [HERE / "stand-ins.sh"], env=environment, capture_output=True, text=True, check=False
        )
        if made.returncode:
            pytest.skip(
                f"no registry is reached, and no stand-ins can be made: {made.stderr[-500:]}"
            )
        variables = dict(pair.split("=", 1) for pair in shlex.split(made.stdout) if "=" in pair)
    base = variables.get("BASE_IMAGE", IMAGES["BASE_IMAGE"])
    command = ["build", "--network", "host", "--tag", "extproc-router:compose", str(ROOT)]
    # The classic builder takes images of the machine.
    built = docker(
        *command, "--build-arg", f"BASE_IMAGE={base}", DOCKER_BUILDKIT="0" if variables else "1"
    )
    assert built.returncode == 0, built.stdout[-2_000:] + built.stderr[-2_000:]
    return variables


class Compose:
    """The stack of compose.yaml, under a project name of its own."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}

    def run(self, *arguments: str) -> None:
        command = [
            "docker-compose",
            "--project-name",
            PROJECT,
            "--file",
            str(HERE / "compose.yaml"),
        ]
        done = subprocess.run(
            [*command, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2_000:]
