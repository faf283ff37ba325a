"""Runs the composed stack once, asks it what a user would, and takes it down: `make test-compose`.

Needs a Docker engine. On a machine without an image registry: `--stand-ins`.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import orjson

HERE = Path(__file__).parent
PROJECT = "extproc-router-test"
GATEWAY = "http://127.0.0.1:8080"
ENVOY_METRICS = "http://127.0.0.1:9902/stats/prometheus"
METRICS = "http://127.0.0.1:9090/metrics"
ENDPOINTS = 4
START_S = 120.0
CONVERSATIONS = 20


class Compose:
    """The stack of compose.yaml, under a project name of its own."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}
        has_plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        self._command = ["docker", "compose"] if has_plugin.returncode == 0 else ["docker-compose"]

    def run(self, *arguments: str) -> None:
        options = ["--project-name", PROJECT, "--file", str(HERE / "compose.yaml")]
        subprocess.run([*self._command, *options, *arguments], env=self._environment, check=True)

    @contextmanager
    def up(self) -> Iterator[None]:
        try:
            self.run("up", "--detach")
            yield
        except BaseException:
            self.run("logs", "--tail", "30")
            raise
        finally:
            self.run("down", "--volumes", "--timeout", "5")


def build(environment: Mapping[str, str]) -> None:
    """Builds the service's image; with the machine's network, where pip may need it."""
    base = environment.get("BASE_IMAGE", "python:3.11-slim")
    command = ["docker", "build", "--network", "host", "--tag", "extproc-router:compose"]
    classic = {**os.environ, "DOCKER_BUILDKIT": "0"} if environment else None
    subprocess.run(
        [*command, "--build-arg", f"BASE_IMAGE={base}", str(HERE.parents[2])], env=classic, check=True
    )


def ask(text: str) -> str:
    """Chats once; returns the name of the endpoint that answered."""
    body = orjson.dumps(
        {"model": "simulated", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    )
    request = Request(f"{GATEWAY}/v1/chat/completions", body, {"content-type": "application/json"})
    with urlopen(request, timeout=30) as answer:
        served_by: str = answer.headers["x-simulated-endpoint"]
    return served_by


def ask_all() -> dict[str, str]:
    return {text: ask(text) for text in (f"conversation {number}" for number in range(CONVERSATIONS))}


def is_routed() -> bool:
    """Whether Envoy finds the service healthy, so that the service picks."""
    try:
        with urlopen(ENVOY_METRICS, timeout=5) as answer:
            return 'membership_healthy{envoy_cluster_name="extproc"} 1' in answer.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return False


def is_whole() -> bool:
    """Whether every endpoint may be picked: one that was asked before it listened is left out for a while."""
    try:
        with urlopen(METRICS, timeout=5) as answer:
            return f'state="ready"}} {ENDPOINTS:.1f}' in answer.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return False


def wait_until(is_true: Callable[[], bool], what: str, timeout_s: float = START_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.5)


def check(compose: Compose) -> None:
    """The story of a day: affinity, an endpoint goes, the service goes and comes back."""
    wait_until(is_routed, "the service never answered Envoy")
    wait_until(is_whole, "an endpoint was never ready")
    homes = ask_all()
    tell("conversations per endpoint", Counter(homes.values()))
    assert len(set(homes.values())) > 1, "all conversations met on one endpoint"
    assert ask_all() == homes, "a conversation left its home"

    compose.run("kill", "extproc")
    without = ask_all()
    tell("moved while the service is down", sum(without[text] != home for text, home in homes.items()))
    assert without != homes, "without the service somebody else picked the same endpoints"

    compose.run("start", "extproc")
    wait_until(is_routed, "the service never came back")
    wait_until(is_whole, "an endpoint never came back")
    assert ask_all() == homes, "affinity did not come back"

    compose.run("kill", "vllm-3")
    tell("moved when an endpoint went", sum(served != homes[text] for text, served in ask_all().items()))


def tell(what: str, value: object) -> None:
    print(f"{what}: {value}", flush=True)


def make_stand_ins() -> dict[str, str]:
    """Returns the environment that names the local images."""
    script = HERE / "stand-ins.sh"
    environment = {**os.environ, "PYTHON": sys.executable}
    made = subprocess.run([script], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return dict(pair.split("=", 1) for pair in shlex.split(made.stdout) if "=" in pair)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stand-ins", action="store_true", help="use local images (needs root, debootstrap)")
    environment = make_stand_ins() if parser.parse_args().stand_ins else {}
    build(environment)
    compose = Compose(environment)
    with compose.up():
        check(compose)
    tell("result", "passed")


if __name__ == "__main__":
    main()
