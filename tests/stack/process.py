"""Real processes for tests: started with a log file, stopped by their own id, never left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

START_S = 60.0
STOP_S = 10.0
# Even a test run that is killed leaves nothing: the kernel ends a child with its parent, and means
# a thread. So every child is started by one that lives as long as the run.
_SPAWNER = ThreadPoolExecutor(1, "spawner")


class Process:
    """One child process. Use as a context manager; `name` heads its log in failures."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = directory / f"{name}.log"
        self._environment = {**os.environ, **(environment or {})}
        self._child: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Process {self.name} {'running' if self.is_running else 'stopped'}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._child is not None, f"{self.name} was never started"
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        assert not self.is_running
        self._child = _SPAWNER.submit(self._spawn).result()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = STOP_S) -> int:
        """Returns the exit status; raises `subprocess.TimeoutExpired`."""
        assert self._child is not None
        return self._child.wait(timeout_s)

    def kill(self) -> None:
        if self.is_running:
            self.send(signal.SIGKILL)
            self.wait()

    def stop(self) -> int | None:
        """Asks the process to end, then forces it; returns the exit status, None if it never ran."""
        if self._child is None:
            return None
        if self.is_running:
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float = START_S) -> None:
        """Polls `is_ready`; fails with the end of the log if the process dies or takes too long."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            assert self.is_running, f"{self.name} ended\n{self.tail()}"
            assert time.monotonic() < deadline, (
                f"{self.name} was not ready in {timeout_s} s\n{self.tail()}"
            )
            time.sleep(0.02)

    def is_ready(self) -> bool:
        """Whether the process serves; a subclass knows how to ask."""
        return self.is_running

    def wait_ready(self) -> None:
        self.wait_until(self.is_ready)

    def tail(self, lines: int = 40) -> str:
        """Returns the end of the log, under its name."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"--- {self.name}\n" + "\n".join(text.splitlines()[-lines:])


def descriptors(pid: int) -> int:
    """How many it has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def memory_bytes(pid: int, field: str = "VmRSS") -> int:
    """A field of its status: what it has in memory, `VmHWM` the most it ever had, `RssAnon` of its own."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) * 1_024


def cpu_s(pid: int) -> float:
    """Seconds that all threads of a process were on a CPU, to the nanosecond (first field of schedstat)."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
