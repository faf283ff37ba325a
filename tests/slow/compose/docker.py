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
from typing import NoReturn

import pytest

from tests.slow.packages import explain_no_docker, find_compose, is_engine_up
from tests.waiting import wait_until

HERE = Path(__file__).parent
FILE = HERE.parents[2] / "examples" / "compose" / "compose.yaml"
PROJECT = f"extproc-router-test-{os.getpid()}"  # two runs may be beside each other
IMAGES = {"BASE_IMAGE": "python:3.11-slim", "ENVOY_IMAGE": "envoyproxy/envoy:v1.40.2"}
NETWORK = f"{PROJECT}_default"


def docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)


def skip(reason: str) -> NoReturn:
    """Where the stack must run (`make compose-test`), that it cannot is a failure."""
    if os.environ.get("COMPOSE") == "required":
        pytest.fail(f"the composed stack cannot be tested: {reason}", pytrace=False)
    pytest.skip(f"the composed stack was not tested: {reason}")


@contextmanager
def engine() -> Iterator[None]:
    """Skips the test where no engine can be had."""
    if missing := explain_no_docker():
        skip(f"it needs {missing}")
    with (Path(tempfile.gettempdir()) / "extproc-router-engine.lock").open("w") as lock:
        # One at a time: who starts an engine also stops it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield from _started()


def _started() -> Iterator[None]:
    if is_engine_up():
        yield
        return
    with subprocess.Popen(
        ["dockerd"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as daemon:
        try:
            # Some machines allow no engine: it ends at once then.
            wait_until(
                lambda: is_engine_up() or daemon.poll() is not None, "the engine never answered"
            )
            if daemon.poll() is not None:
                skip(f"dockerd ended with {daemon.returncode}: this machine allows no engine")
            yield
        finally:
            daemon.terminate()


def find_images() -> dict[str, str]:
    """Returns the variables that name other images where no registry is reached; none where one is."""
    if all(docker("pull", "--quiet", name).returncode == 0 for name in IMAGES.values()):
        return {}
    if os.geteuid() or not shutil.which("debootstrap"):
        skip("no registry is reached, and only root with debootstrap can make stand-ins")
    environment = {**os.environ, "PYTHON": sys.executable}
    made = subprocess.run(
        [HERE / "stand-ins.sh"], env=environment, capture_output=True, text=True, check=False
    )
    if made.returncode:
        skip(f"no registry is reached, and no stand-ins can be made: {made.stderr[-500:]}")
    stand_ins = dict(pair.split("=", 1) for pair in shlex.split(made.stdout) if "=" in pair)
    # The classic builder takes images of the machine; the package index may be on its loopback.
    return {**stand_ins, "BUILD_NETWORK": "host", "DOCKER_BUILDKIT": "0"}


class Compose:
    """The stack of examples/compose, under a project name of its own."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}
        self._command = [*find_compose(), "--project-name", PROJECT, "--file", str(FILE)]

    def try_to(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def run(self, *arguments: str) -> str:
        done = self.try_to(*arguments)
        assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
        return done.stdout

    def find_container(self, service: str) -> str:
        """Programs of Compose name containers in more than one way: ask for the id."""
        return self.run("ps", "--quiet", service).strip()

    def find_leftovers(self) -> list[str]:
        """Returns what is there of the project: containers, networks, volumes."""
        mine = f"label=com.docker.compose.project={PROJECT}"
        kinds = (("ps", "--all"), ("network", "ls"), ("volume", "ls"))
        return [docker(*kind, "--quiet", "--filter", mine).stdout for kind in kinds]
