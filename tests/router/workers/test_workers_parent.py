"""The parent of several workers, without any."""

import asyncio
import socket
from pathlib import Path

import pytest

from extproc.router.app import Start
from extproc.router.settings.tree import PoolSettings, parse_settings
from extproc.router.workers.forkserver import ForkServer
from extproc.router.workers.parent import Parent
from tests.waiting import until

SETTINGS = "pools: [{{name: llama, endpoints: {{static: ['10.0.0.{}:8000']}}}}]"
LONG_S = 60.0


async def test_a_change_that_meets_a_bug_is_told_of_and_the_next_one_is_applied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "extproc.yaml"
    first = SETTINGS.format(1).encode()
    path.write_bytes(first)
    with socket.socket() as nobody:
        parent = Parent(Start(parse_settings(first, {}), path, first), ForkServer(nobody), tmp_path)
    applied: list[str] = []

    def apply(pools: list[PoolSettings]) -> None:
        applied.extend(pools[0].endpoints.static or [])
        if len(applied) == 1:
            raise KeyError("a bug")

    monkeypatch.setattr(parent._feeds, "apply", apply)
    watching = asyncio.create_task(parent._watch_settings())
    path.write_text(SETTINGS.format(2))
    await until(lambda: "the changed configuration cannot be applied: KeyError" in caplog.text)
    path.write_text(SETTINGS.format(3))
    await until(lambda: len(applied) == 2)
    watching.cancel()

    assert applied == ["10.0.0.2:8000", "10.0.0.3:8000"]
