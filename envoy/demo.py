"""`make demo`: the whole stack as `make run` starts it, with a small load, and keys that change something.

One endpoint is a process of its own, so that it can be killed. The configuration is a copy in
`.run/demo/`, written anew when a key asks for another strategy; the service sees that and changes
it live.
"""

import json
import os
import select
import signal
import subprocess
import sys
import termios
import threading
import time
import tty
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from typing import Any, Final

import yaml
from run import (
    ENDPOINT_PORTS,
    EXTPROC,
    LOGS,
    PAGE,
    check,
    perform,
    shipped,
    simulate,
    start,
    start_all,
)

FOLDER: Final = LOGS / "demo"
CONFIG: Final = FOLDER / "extproc.yaml"
# The others go on in one process.
STAYING: Final = ENDPOINT_PORTS[:-1]
KILLED: Final = ENDPOINT_PORTS[-1:]
# Each with what there is to be seen.
STRATEGIES: Final = {
    "prefix_cache": "each request goes where most of its prompt is cached, as far as the load there allows",
    "prefix_hash": "each beginning of a prompt has a home",
    "least_load": "the cache is not asked: the hits that are found fall",
    "random": "nothing is asked: hits fall, and loads are uneven",
}
LINE_S: Final = 2.0

TOLD: Final = f"""
  see it live   {PAGE}

  conversations with four simulated vLLM endpoints: one or two requests a second at first, five after some
  minutes. Caches fill as slowly: give each strategy some minutes before you judge it

  s   another strategy, live: {", ".join(STRATEGIES)}
  k   kill an endpoint; again: bring it back
  ?   these lines again
  q or Ctrl-C stops everything
"""


def main() -> int:
    return perform(_play)


def _play(stack: ExitStack) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    strategies = cycle(STRATEGIES)
    _use(next(strategies))
    started = start_all(stack, [STAYING], CONFIG)
    demo = _Demo(stack, strategies)
    print(TOLD, flush=True)
    is_over = threading.Event()
    threading.Thread(target=_tell, args=(is_over,), daemon=True).start()
    try:
        with _keys() as read:
            while True:
                check(started)
                demo.tend()
                demo.press(read(0.5))
    finally:
        is_over.set()


class _Demo:
    """What the keys change: the strategy, and the endpoint that can be killed; and the load."""

    def __init__(self, stack: ExitStack, strategies: Iterator[str]) -> None:
        self._stack = stack
        self._strategies = strategies
        self._endpoint: subprocess.Popen[bytes] | None = simulate(stack, KILLED)
        self._load = self._start_load()

    def tend(self) -> None:
        """Begins the load again when its hour is over."""
        if self._load.poll() is not None:
            if self._load.returncode:
                raise RuntimeError(
                    f"the load ended with {self._load.returncode}; see {LOGS}/load.log"
                )
            self._load = self._start_load()

    def press(self, key: str) -> None:
        if key == "s":
            name = next(self._strategies)
            _use(name)
            _say(f"strategy {name}: {STRATEGIES[name]}")
        elif key == "k" and self._endpoint is not None:
            self._endpoint.kill()
            self._endpoint.wait()
            self._endpoint = None
            _say(
                f"killed 127.0.0.1:{KILLED[0]}: it is soon left out, its conversations move; k brings it back"
            )
        elif key == "k":
            self._endpoint = simulate(self._stack, KILLED)
            _say(f"127.0.0.1:{KILLED[0]} is back, with an empty cache")
        elif key == "?":
            print(f"\r\x1b[K{TOLD}", flush=True)
        elif key == "q":
            signal.raise_signal(signal.SIGTERM)
        elif key.isalnum():
            _say(f"no key {key}: there are s, k, ? and q")

    def _start_load(self) -> subprocess.Popen[bytes]:
        words = [
            "bench",
            "run",
            "--quiet",
            "--output",
            str(FOLDER / "load"),
            str(shipped("demo-load.yaml")),
        ]
        return start(self._stack, "load", [*EXTPROC, *words])


def _use(strategy: str) -> None:
    """Writes the configuration in one step, as an editor does."""
    tree = yaml.safe_load(shipped("extproc.yaml").read_text())
    [pool] = tree["pools"]
    pool["strategy"] = (pool["strategy"] if strategy == "prefix_cache" else {}) | {"name": strategy}
    pool["signals"] = {"scrape_s": 1}
    draft = CONFIG.with_suffix(".draft")
    draft.write_text(yaml.safe_dump(tree))
    draft.replace(CONFIG)


def _say(text: str) -> None:
    print(f"\r\x1b[K  {text}", flush=True)


def _tell(is_over: threading.Event) -> None:
    """One line that says how it goes, from the same stream as the page's."""
    while not is_over.is_set():
        with (
            suppress(OSError, ValueError),
            urllib.request.urlopen(f"{PAGE}live", timeout=10) as live,  # noqa: S310  # our own
        ):
            told_s = 0.0
            for line in live:
                is_due = time.monotonic() - told_s > LINE_S and not is_over.is_set()
                if is_due and line.startswith(b"data: {"):
                    told_s = time.monotonic()
                    print(f"\r\x1b[K  {_line(json.loads(line[6:]))}", end="", flush=True)
        time.sleep(1)


def _line(picture: dict[str, Any]) -> str:
    [pool] = picture["pools"]
    found = "-" if pool["found"] is None else f"{100 * pool['found']:.0f} %"
    states = ", ".join(f"{many} {state}" for state, many in pool["states"].items())
    return (
        f"{pool['strategy']}   {states}   {pool['in_flight']} in flight   found in caches {found}"
    )


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yields what waits for a key so many seconds at most; at no terminal it only waits."""
    if not sys.stdin.isatty():
        yield _wait
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield lambda patience_s: _read(descriptor, patience_s)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _wait(patience_s: float) -> str:
    time.sleep(patience_s)
    return ""


def _read(descriptor: int, patience_s: float) -> str:
    ready, _, _ = select.select([descriptor], [], [], patience_s)
    return os.read(descriptor, 1).decode(errors="replace") if ready else ""


if __name__ == "__main__":
    sys.exit(main())
