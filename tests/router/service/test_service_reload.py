"""How a running service takes a changed settings file: the real file, the real watch."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from extproc.router import app as app_module
from extproc.router.app import Application, Start
from extproc.router.settings.tree import Settings, parse_settings
from tests.waiting import until

ONE = "pools: [{name: a, endpoints: {static: ['10.0.0.1:80']}}]"
TWO = "pools: [{name: b, endpoints: {static: ['10.0.0.1:80']}}]"


@asynccontextmanager
async def watching(path: Path, loaded: str) -> AsyncIterator[Application]:
    """Runs the watch of an application that was loaded from this text, whatever the file holds by now."""
    app = Application(Start(parse_settings(loaded, {}), path, loaded.encode()))
    app.start()
    task = asyncio.create_task(app.watch_settings())
    try:
        yield app
    finally:
        task.cancel()
        await app.pools.stop()


def names(app: Application) -> list[str]:
    return [keeper.pool.name for keeper in app.pools]


def applied(app: Application) -> float | None:
    return app.metrics.registry.get_sample_value("extproc_config_reloads_total", {"result": "applied"})


async def test_a_change_between_load_and_watch_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "extproc.yaml"
    path.write_text(TWO)
    async with watching(path, ONE) as app:
        await until(lambda: names(app) == ["b"])

        assert applied(app) == 1


async def test_a_refused_file_is_told_until_one_is_applied(tmp_path: Path) -> None:
    path = tmp_path / "extproc.yaml"
    path.write_text(ONE)
    async with watching(path, ONE) as app:
        told = partial(app.metrics.registry.get_sample_value, "extproc_config_refused")
        seen = [told()]
        path.write_text("pools: nonsense")
        await until(lambda: told() == 1)
        path.write_text(ONE)  # what is in force
        await until(lambda: told() == 0)

    assert seen == [0]


async def test_a_change_is_read_and_parsed_once_and_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is applied is what was compared: a second read could find another file."""
    path = tmp_path / "extproc.yaml"
    path.write_text(ONE)
    parsed: list[tuple[bytes, bool]] = []

    def parse(content: bytes, environment: dict[str, str], where: str) -> Settings:
        parsed.append((content, threading.current_thread() is threading.main_thread()))
        path.unlink()
        return parse_settings(content, environment, where)

    monkeypatch.setattr(app_module, "parse_settings", parse)
    async with watching(path, ONE) as app:
        draft = tmp_path / "draft"
        draft.write_text(TWO)
        draft.replace(path)
        await until(lambda: names(app) == ["b"])

    assert parsed == [(TWO.encode(), False)]


async def test_a_change_that_raises_what_nobody_thought_of_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "extproc.yaml"
    path.write_text(ONE)
    async with watching(path, ONE) as app:
        monkeypatch.setattr(app.pools, "apply", dict[object, object]().__getitem__)
        path.write_text(TWO)
        await until(lambda: "cannot be applied: " in caplog.text)
        monkeypatch.undo()
        path.write_text(TWO + " ")
        await until(lambda: names(app) == ["b"])
