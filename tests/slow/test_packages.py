"""Without the system's programs the slow tests say at once what to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow.compose.docker import skip
from tests.slow.packages import PACKAGES, find_compose

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


def test_without_docker_one_line_says_what_to_install() -> None:
    found = run_packages("", "--docker")

    assert (found.returncode, found.stderr.count("\n")) == (1, 1)
    assert "apt-get install docker.io docker-compose" in found.stderr


@pytest.mark.parametrize(
    ("programs", "words"),
    [
        ({"docker": "true"}, ["docker", "compose"]),
        ({"docker": "true", "docker-compose": "true"}, ["docker", "compose"]),
        ({"docker": "false", "docker-compose": "true"}, ["docker-compose"]),
        ({"docker": "false"}, []),
        ({"docker-compose": "true"}, []),
    ],
)
def test_compose_is_dockers_plugin_or_the_older_program(
    programs: dict[str, str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, answer in programs.items():
        tmp_path.joinpath(name).write_text(f"#!/bin/sh\n{answer}\n")
        tmp_path.joinpath(name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_compose() == words


@pytest.mark.parametrize(("asked", "outcome"), [("required", "Failed"), ("", "Skipped")])
def test_what_must_run_fails_where_it_cannot(
    asked: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPOSE", asked)
    with pytest.raises(BaseException, match="no engine") as found:
        skip("no engine")

    assert type(found.value).__name__ == outcome
