"""A pool whose requests are recorded, and where the rows go."""

from collections.abc import Mapping
from random import Random

from msgspec.json import decode

from extproc.router.recording.trace_rows import PoolTrace, RecordedRow
from extproc.router.routing.signals import EndpointSignals
from tests.router.routing.fleet import Fleet


class Rows:
    """Keeps rows, by file."""

    def __init__(self) -> None:
        self.files: list[list[bytes]] = []
        self.lost = 0

    def write_row(self, row: bytes) -> None:
        self.files[-1].append(row)

    def lose_row(self) -> None:
        self.lost += 1

    def begin(self) -> None:
        self.files.append([])

    def read(self) -> list[RecordedRow]:
        return [decode(row, type=RecordedRow) for file in self.files for row in file]


def record_pool(
    fleet: Fleet,
    rows: Rows,
    share: float = 1.0,
    limit_bytes: int = 10**9,
    signals: Mapping[str, EndpointSignals] | None = None,
) -> None:
    rng = Random(1)
    fleet.pool.listeners = (
        PoolTrace(
            rows,
            signals or {},
            fleet.clock,
            lambda: rng.randbytes(32),
            share=share,
            limit_bytes=limit_bytes,
        ),
    )
