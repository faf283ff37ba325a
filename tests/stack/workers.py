"""The workers of a service under test: their processes, and what each of them tells."""

import json
import os
import re
import signal
import socket
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.stack.service import Service

_SERVES = re.compile(r"worker (\d+) serves, as process (\d+)")
_ADMIN = re.compile(r"admin on unix:(\S+)/worker-\d+\.admin")


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("worker", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(10)
        self.sock.connect(str(self._path))


class Workers:
    """Of a service that runs; each is known by its number. Its log is read from byte `start` on."""

    def __init__(self, service: Service, start: int = 0) -> None:
        self._service = service
        self._start = start

    @property
    def pids(self) -> dict[int, int]:
        """The processes that the parent has told of, the latest of each number."""
        return {lane: pid for lane, pid in self.told().items() if is_alive(pid)}

    def told(self) -> dict[int, int]:
        return {int(lane): int(pid) for lane, pid in _SERVES.findall(self._said())}

    def _said(self) -> str:
        with self._service.log.open("rb") as log:
            log.seek(self._start)
            return log.read().decode()

    def kill(self, lane: int) -> int:
        pid = self.told()[lane]
        os.kill(pid, signal.SIGKILL)
        return pid

    def is_replaced(self, lane: int, pid: int) -> bool:
        """Whether another process serves in its place."""
        return self.told()[lane] != pid

    @property
    def directory(self) -> Path:
        """Where their admin ports are."""
        return Path(_ADMIN.findall(self._said())[-1])

    def get(self, lane: int, path: str) -> str:
        """Asks one worker's own admin port; raises `OSError` where it is away."""
        connection = _UnixConnection(self.directory / f"worker-{lane}.admin")
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def pools(self, lane: int) -> Any:
        return json.loads(self.get(lane, "/pools"))

    def in_flight(self, lane: int) -> int:
        return sum(int(pool["in_flight"]) for pool in self.pools(lane))

    def states(self, lane: int) -> dict[str, str]:
        """The endpoints of the first pool, by address."""
        return {endpoint["address"]: endpoint["state"] for endpoint in self.pools(lane)[0]["endpoints"]}

    def metric(self, lane: int, name: str, **labels: str) -> float:
        """The sum of one worker's samples of a metric that carry `labels`; 0 while it is away."""
        with suppress(OSError):
            lines = self.get(lane, "/metrics").splitlines()
            wanted = [f'{label}="{value}"' for label, value in labels.items()]
            return sum(
                float(line.rpartition(" ")[2])
                for line in lines
                if line.partition("{")[0].partition(" ")[0] == name and all(label in line for label in wanted)
            )
        return 0.0

    def picks(self, lane: int) -> float:
        return self.metric(lane, "extproc_picks_total")


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and not as a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
