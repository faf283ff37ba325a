"""Tokens that change, from a file or a command."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp.web
import pytest

from extproc.bench.experiments.run import check_target, run
from extproc.bench.load.registry import build_registry
from extproc.bench.processors.credentials import ChangingToken, NoToken, open_keys
from extproc.bench.record import RunClock
from extproc.bench.spec.tree import Spec, Target
from extproc.errors import SettingsError
from tests.bench.running import Silence, answer, build_spec, serving
from tests.tables import table


class Now:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def __call__(self) -> float:
        return self.at_s


class Issuer:
    """Gives one token after the other, or none."""

    def __init__(self) -> None:
        self.given = 0
        self.is_away = False

    async def __call__(self) -> str:
        await asyncio.sleep(0)
        if self.is_away:
            raise NoToken("away")
        self.given += 1
        return f"token-{self.given}"


async def test_token_is_fetched_again_when_its_time_is_over() -> None:
    now, issuer = Now(), Issuer()
    keys = ChangingToken(issuer, 60, now)

    assert [await keys.get(), await keys.get()] == ["token-1", "token-1"]
    now.at_s = 60
    assert await keys.get() == "token-2"


async def test_requests_wait_for_one_fetch() -> None:
    issuer = Issuer()
    keys = ChangingToken(issuer, 60, Now())

    assert set(await asyncio.gather(*(keys.get() for _ in range(50)))) == {"token-1"}
    assert issuer.given == 1


async def test_refusal_fetches_a_new_one_but_not_for_every_request() -> None:
    """All requests in flight are refused at once; within a second nothing is fetched, then one token is."""
    now, issuer = Now(), Issuer()
    keys = ChangingToken(issuer, 60, now)
    await keys.get()
    for _ in range(100):
        keys.refuse()

    assert await keys.get() == "token-1"
    now.at_s = 1
    assert await keys.get() == "token-2"
    now.at_s = 2
    assert await keys.get() == "token-2"


async def test_old_token_is_kept_while_there_is_no_new_one() -> None:
    now, issuer = Now(), Issuer()
    keys = ChangingToken(issuer, 60, now)
    await keys.get()
    issuer.is_away, now.at_s = True, 60

    assert await keys.get() == "token-1"


async def test_first_token_must_be_there() -> None:
    issuer = Issuer()
    issuer.is_away = True

    with pytest.raises(NoToken, match="away"):
        await ChangingToken(issuer, 60, Now()).get()


@table(
    ("target", "fault"),
    [
        ({"token-file": "/no/such/file"}, "No such file"),
        ({"token-file": "/dev/null"}, "no token in it"),
    ],
)
async def test_target_without_a_token_cannot_be_run(target: dict[str, Any], fault: str) -> None:
    spec = build_spec(1, {"req-rate": 1, "total-prompts": 1}, target={"model": "m", **target})

    with pytest.raises(SettingsError, match=fault):
        await check_target(spec, build_registry())


async def test_file_has_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(" abc \n")
    target = Target.model_validate({"token-file": str(tmp_path / "token")})

    assert await open_keys(target, None, RunClock()).get() == "abc"


def test_only_one_way_to_show_who_asks_is_taken() -> None:
    with pytest.raises(ValueError, match="give one of api-key-env and token-file"):
        Target.model_validate({"token-file": "a", "api-key-env": "K"})


@table(
    ("spec", "said"),
    [
        ({"target": {"sign": {"service": "s", "region": "r"}}}, "sign was removed in 0.2: send requests"),
        ({"target": {"token-command": ["x"]}}, "token-command was removed in 0.2: have the command write"),
        ({"dcgm": ["127.0.0.1:9400"]}, "dcgm was removed in 0.2: Prometheus has"),
    ],
)
def test_field_that_was_removed_says_what_to_do_instead(spec: dict[str, Any], said: str) -> None:
    traffic = {"traffic-shape": {"req-rate": 1, "total-prompts": 1}}
    with pytest.raises(ValueError, match=said):
        Spec.model_validate({"endpoint": "h", "performance": traffic, **spec})


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
        return await answer(request)

    async with serving(chat=check) as port:
        target = {"model": "m", "token-file": str(file), "token-refresh": "1h"}
        spec = build_spec(port, {"req-rate": 10, "total-prompts": 40}, target=target)
        result = await run(spec, progress=Silence())

    assert seen[0] == "Bearer first"
    assert seen[-1] == "Bearer second"
    assert result.records[-1].is_ok
