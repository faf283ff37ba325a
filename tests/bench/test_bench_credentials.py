"""Tokens that change, from a file."""

from pathlib import Path
from typing import Any

import aiohttp.web
import pytest

from extproc.bench.experiments.run import check_target, run
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import build_workload
from extproc.bench.processors.http import Keys
from extproc.bench.spec.tree import Target
from extproc.errors import SettingsError
from tests.bench.running import Silence, build_spec, null_answer, serving_null
from tests.tables import table


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, list[float], Keys]:
    """A file with a token that was read, on a clock that a test sets."""
    path, now = tmp_path / "token", [0.0]
    path.write_text(" first \n")
    keys = Keys(Target.model_validate({"token-file": str(path)}), None, lambda: now[0])
    assert keys.get() == "first"
    return path, now, keys


def test_token_is_read_again_when_its_time_is_over_and_the_old_one_stays(
    kept: tuple[Path, list[float], Keys],
) -> None:
    path, now, keys = kept
    path.write_text("second")
    assert keys.get() == "first"
    now[0] = 60
    assert keys.get() == "second"
    path.unlink()
    now[0] = 120
    assert keys.get() == "second"


def test_refusal_reads_the_file_again_but_not_for_every_request(
    kept: tuple[Path, list[float], Keys],
) -> None:
    """All requests in flight are refused at once; within a second nothing is read, then one token is."""
    path, now, keys = kept
    path.write_text("second")
    for _ in range(100):
        keys.refuse()

    assert keys.get() == "first"
    now[0] = 1
    assert keys.get() == "second"
    path.write_text("third")
    now[0] = 2
    assert keys.get() == "second"


async def test_target_without_a_token_or_with_two_ways_to_one_cannot_be_run() -> None:
    for file, fault in (("/no/such/file", "No such file"), ("/dev/null", "no token in it")):
        target = {"model": "m", "token-file": file}
        spec = build_spec(1, {"req-rate": 1, "total-prompts": 1}, target=target)
        with pytest.raises(SettingsError, match=fault):
            await check_target(spec, build_registry())
    with pytest.raises(ValueError, match="give one of api-key-env and token-file"):
        Target.model_validate({"token-file": "a", "api-key-env": "K"})


BURSTGPT = {"shape": "trace", "dataset": {"name": "trace", "layout": "burstgpt"}}
SINE = {"req-rate": 1, "shape": {"name": "sine", "period": 8}}


@table(
    ("traffic", "fields", "said"),
    [
        ({}, {"target": {"sign": {"service": "s"}}}, "sign was removed in 0.2: send requests"),
        ({}, {"target": {"token-command": ["x"]}}, "token-command was removed in 0.2: have the"),
        ({}, {"dcgm": ["127.0.0.1:9400"]}, "dcgm was removed in 0.2: Prometheus has"),
        (SINE, {}, "sine was removed in 0.2: give `steps`"),
        (BURSTGPT, {}, "burstgpt was removed in 0.2"),
    ],
)
def test_removed_field_says_what_to_do(
    traffic: dict[str, Any], fields: dict[str, Any], said: str
) -> None:
    rate = {} if traffic else {"req-rate": 1}
    with pytest.raises((ValueError, SettingsError), match=said):
        build_workload(
            build_spec(1, {"total-prompts": 1, **rate, **traffic}, **fields), build_registry()
        )


@pytest.mark.slow
async def test_run_follows_a_token_that_changes(tmp_path: Path) -> None:
    """The first token is refused from the fifth request on; by then the file has another, which is taken."""
    file = tmp_path / "token"
    file.write_text("first\n")
    seen: list[str] = []

    async def check(request: aiohttp.web.Request) -> aiohttp.web.Response:
        seen.append(request.headers["Authorization"])
        if len(seen) == 5:
            file.write_text("second\n")
        if len(seen) >= 5 and seen[-1] == "Bearer first":
            return aiohttp.web.Response(status=401)
        return await null_answer(request)

    async with serving_null(chat=check) as port:
        target = {"model": "m", "token-file": str(file), "token-refresh": "1h"}
        spec = build_spec(port, {"req-rate": 10, "total-prompts": 40}, target=target)
        result = await run(spec, progress=Silence())

    assert (seen[0], seen[-1]) == ("Bearer first", "Bearer second")
    assert result.records[-1].is_ok
