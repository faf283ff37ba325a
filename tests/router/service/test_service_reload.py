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
from extproc.router.feedback.probes import Prober
from extproc.router.feedback.scraper import Scraper
from extproc.router.routing.picker import Query
from extproc.router.service.admin import describe_pool
from extproc.router.service.running_pool import RunningPool
from extproc.router.service.wiring import PoolWiring
from extproc.router.settings.reading import parse_settings
from extproc.router.settings.tree import Settings
from extproc.router.share.courier import Courier
from tests.waiting import until

ONE = "pools: [{name: a, endpoints: {static: ['10.0.0.1:80']}}]"
TWO = "pools: [{name: b, endpoints: {static: ['10.0.0.1:80']}}]"


@asynccontextmanager
async def started_application(loaded: str, path: Path) -> AsyncIterator[Application]:
    """An application that was loaded from this text, whatever the file holds by now."""
    app = Application(Start(parse_settings(loaded, {}), path, loaded.encode()))
    app.start()
    try:
        yield app
    finally:
        await app.pools.stop()


@asynccontextmanager
async def watching(path: Path, loaded: str) -> AsyncIterator[Application]:
    """And its watch runs."""
    async with started_application(loaded, path) as app:
        task = asyncio.create_task(app.watch_settings(poll_s=0.1))
        yield app
        task.cancel()


def pool_names(app: Application) -> list[str]:
    return [each.name for each in app.pools]


def reloads(app: Application, result: str) -> float | None:
    return app.metrics.registry.get_sample_value("extproc_config_reloads_total", {"result": result})


async def test_a_file_that_goes_and_comes_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """1. The file goes: a warning, and no other at further looks. 2. It is back with another pool."""
    log = "extproc.router.service.configuration"
    caplog.set_level("INFO", log)
    path = tmp_path / "extproc.yaml"
    path.write_text(ONE)

    def is_logged() -> list[str]:
        """Other tests of the process may have set other loggers to INFO, too."""
        return [record.getMessage() for record in caplog.records if record.name == log]

    async with watching(path, ONE) as app:
        await until(lambda: pool_names(app) == ["a"])
        path.unlink()
        await until(is_logged)
        for number in range(3):
            (tmp_path / f"other-{number}").touch()
            await asyncio.sleep(0)
        path.write_text(TWO)
        await until(lambda: pool_names(app) == ["b"])

    assert is_logged() == [
        f"{path} cannot be read, what it said stays: No such file or directory",
        f"{path} can be read again",
    ]


async def test_a_refused_file_is_reported_until_one_is_applied(tmp_path: Path) -> None:
    """And a change between load and watch is not lost."""
    path = tmp_path / "extproc.yaml"
    path.write_text(TWO)
    async with watching(path, ONE) as app:
        refused = partial(app.metrics.registry.get_sample_value, "extproc_config_refused")
        await until(lambda: pool_names(app) == ["b"])
        seen = [refused(), reloads(app, "applied")]
        path.write_text("pools: nonsense")
        await until(lambda: refused() == 1)
        path.write_text(TWO)  # what is in force
        await until(lambda: refused() == 0)

    assert seen == [0, 1]


async def test_a_change_is_parsed_once_off_the_loop(
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
        await until(lambda: pool_names(app) == ["b"])

    assert parsed == [(TWO.encode(), False)]


# Pool a stays and changes in everything, b goes, c comes, of which nobody knows an endpoint.
BEFORE = """
pools:
- {name: a, models: [a], endpoints: {static: ['10.0.0.1:80']}, probe: false, strategy: {name: least_load}}
- {name: b, models: [b], endpoints: {static: ['10.0.0.2:80']}}
"""
AFTER = """
- {name: c, models: [c], endpoints: {inference_pool: {namespace: default, name: vllm, kubeconfig: none}},
  max_in_flight: 1, hold: {}, probe: {}, signals: {}}
- {name: a, models: [a], endpoints: {static: ['10.0.0.3:80']}, strategy: {name: round_robin},
  max_in_flight: 1, hold: {}, signals: {}}
"""
SHARE = """
share: {cluster: llm, secret: {file: secret}, mesh: {peers: {static: []}}}
"""
# Every step of building a pool, and which of its calls fails: the first is for c, the second for a.
TWICE: list[tuple[type, str]] = [(PoolWiring, name) for name in ("strategy", "queue", "source")]
TWICE += [(kind, "__init__") for kind in (Prober, Scraper)]
SEAMS = [
    *((owner, name, call) for owner, name in TWICE for call in (1, 2)),
    *((PoolWiring, name, 1) for name in ("cooling", "objectives")),
]


def fail_at(owner: type, name: str, call: int, patch: pytest.MonkeyPatch) -> None:
    """Lets a step raise at its `call`th call alone."""
    real, calls = getattr(owner, name), iter(range(1, 100))

    def step(*arguments: object, **options: object) -> object:
        if next(calls) == call:
            raise RuntimeError("a bug")
        return real(*arguments, **options)

    patch.setattr(owner, name, step)


def placed(app: Application, name: str) -> str:
    pick = app.pools.picker.pick(Query("GET", "/", {}, pool=name)).pick
    pick.release()
    return pick.endpoint.name


def state(app: Application) -> list[object]:
    """What `/readyz`, `/pools`, requests and the event loop know of the pools."""
    shares = app.pools.shares()
    return [
        (app.faults(), app.pools.remarks(), sorted(shares)),
        [describe_pool(each, shares.get(each.name)) | {"age_s": None} for each in app.pools],
        [placed(app, name) for name in pool_names(app)],
        sorted(task.get_name() for task in asyncio.all_tasks() if not task.cancelling()),
    ]


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(
    "seam", SEAMS, ids=[f"{kind.__name__}.{name}-{call}" for kind, name, call in SEAMS]
)
async def test_an_exception_while_pools_are_built_changes_nothing_and_the_next_reload_works(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    seam: tuple[type, str, int],
    is_turned: bool,
) -> None:
    """1. Two pools run. 2. A reload fails halfway: all is as it was. 3. The same file again is applied."""
    (tmp_path / "secret").write_text("a secret of 16 bytes or more")
    async with started_application(BEFORE + SHARE, tmp_path / "extproc.yaml") as app:
        for each in app.pools:
            await each.keeper.synced.wait()
        before = state(app)
        pools = AFTER.split("\n- ")[1:]
        after = "pools:\n- " + "\n- ".join(pools[::-1] if is_turned else pools) + SHARE
        fail_at(*seam, monkeypatch)
        await app.reload(after.encode(), "extproc.yaml")

        assert "the changed configuration cannot be applied: RuntimeError" in caplog.text
        assert state(app) == before
        assert reloads(app, "refused") == 1

        await app.reload(after.encode(), "extproc.yaml")
        pool = app.pools["a"].pool
        await until(
            lambda: (pool.strategy.name, pool.snapshot.names) == ("round_robin", ("10.0.0.3:80",))
        )

        assert (
            pool_names(app)
            == (["a", "c"] if is_turned else ["c", "a"])
            == list(app.pools.picker.routes)
        )
        assert ["a", "c"] == sorted(app.pools.shares())
        assert app.faults() == []
        assert reloads(app, "applied") == 1


async def test_a_refused_reload_says_no_farewell_of_a_pool_that_never_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pool c is built, then the source of a raises."""
    (tmp_path / "secret").write_text("a secret of 16 bytes or more")
    async with started_application(BEFORE + SHARE, tmp_path / "extproc.yaml") as app:
        farewells = list[str]()
        monkeypatch.setattr(Courier, "forget", lambda _, pool: farewells.append(pool))
        fail_at(PoolWiring, "source", 2, monkeypatch)
        await app.reload(f"pools:{AFTER}{SHARE}".encode(), "extproc.yaml")

        assert (reloads(app, "refused"), farewells) == (1, [])


async def test_a_step_that_fails_while_pools_are_swapped_keeps_no_other_pool_from_its_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with started_application(BEFORE, tmp_path / "extproc.yaml") as app:
        fail_at(RunningPool, "close", 1, monkeypatch)
        await app.reload(ONE.encode(), "extproc.yaml")
        await app.reload(TWO.encode(), "extproc.yaml")

        assert pool_names(app) == ["b"]
        assert "a pool was not changed as a whole: RuntimeError" in caplog.text
        assert reloads(app, "applied") == 2
