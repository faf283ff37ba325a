"""The recipes of docs/maintaining.md, followed: a strategy, a setting of a pool."""

import importlib.util
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from extproc.grpc_server.budget import Budget
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import ClockAndRandom, Strategy, StrategySettings
from extproc.router.routing.strategies.registry import STRATEGIES, StrategyRegistry
from extproc.router.service.live.page import build_page
from extproc.router.service.wiring import PoolWiring, build_probe
from extproc.router.settings.pool_settings import HoldSettings
from extproc.router.settings.reading import parse_settings

DOCS = Path(__file__).parents[3] / "docs" / "how-to" / "monitoring.md"

FILE = """
from typing import Literal

from pydantic import Field

from extproc.router.routing.strategies.base import Choice, Reading, Reason, Strategy, StrategySettings

NEWEST = Reason("newest", "one of the endpoints that came last", "cyan")


class NewestSettings(StrategySettings):
    name: Literal["newest"]
    skip: int = Field(default=0, ge=0)


class Newest(Strategy, Reading):
    name, settings, reasons = "newest", NewestSettings, (NEWEST,)

    def __init__(self, outside, *, skip=0):
        self._skip = skip

    def needs_body(self, headers, /):
        return False

    def read(self, prompt, headers, adapter, /):
        return self

    def choose(self, candidates, count, /):
        names = candidates.names[::-1]
        return Choice((*names[self._skip:], *names[:self._skip])[:count], NEWEST)
"""


@pytest.fixture
def newest(tmp_path: Path) -> Iterator[type[Strategy]]:
    (tmp_path / "newest.py").write_text(FILE)
    spec = importlib.util.spec_from_file_location("newest", tmp_path / "newest.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["newest"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.Newest
    del sys.modules["newest"]


def test_a_strategy_in_one_file_is_configured_strictly(newest: type[Strategy]) -> None:
    registry = StrategyRegistry(*STRATEGIES.kinds.values(), newest)  # the one line
    section = TypeAdapter[StrategySettings](Annotated[StrategySettings, registry])

    for wrong in (
        {"name": "newest", "skip": -1},
        {"name": "newest", "more": 1},
        {"name": "oldest"},
    ):
        with pytest.raises(ValidationError):
            section.validate_python(wrong)
    settings = section.validate_python({"name": "newest", "skip": 1})
    strategy = registry.build(
        settings.name, settings.options(), ClockAndRandom(random.Random(1), float)
    )
    pool = Pool("llama", strategy)
    pool.replace([Endpoint(f"e{number}", f"10.0.0.{number}:80") for number in (1, 2, 3)])
    pick = Picker([Route(pool)]).pick(Query("POST", "/v1/chat/completions", {})).pick

    assert (pick.endpoint.name, pick.strategy, pick.reason) == ("e2", "newest", "newest")
    assert (pool.strategy.sharing, pool.strategy.signals) == (None, None)
    assert registry.reasons["newest"].meaning == "one of the endpoints that came last"
    assert "newest" in build_page(registry.reasons).html
    assert "NewestSettings" in section.json_schema()["$defs"]


def test_the_docs_and_the_page_explain_every_reason() -> None:
    docs, page = DOCS.read_text(), build_page(STRATEGIES.reasons).html

    for word, reason in STRATEGIES.reasons.items():
        assert f"| `{word}` | {reason.meaning} |" in docs
        assert f'"{word}": ["s' in page


def test_no_two_strategies_mean_different_things_by_one_reason() -> None:
    reasons = [reason for kind in STRATEGIES.kinds.values() for reason in kind.reasons]

    assert len({(str(one), one.meaning, one.colour) for one in reasons}) == len(STRATEGIES.reasons)


POOL = """
pools:
- name: llama
  endpoints: {static: ['10.0.0.1:80']}
  hold: {wait_s: 1, wait_s_by_objective: {batch: 2}, requests: 3, settle_s: 4}
  probe: {path: /ready, timeout_s: 5, interval_s: 6}
"""


def test_a_field_of_a_pools_section_reaches_the_part_that_uses_it_by_its_name() -> None:
    [pool] = parse_settings(POOL, {}).pools
    queue = PoolWiring(Path(), ClockAndRandom(random.Random(1), float)).queue(
        pool, Budget(1), lambda *_: None
    )
    plan = build_probe(pool)

    assert queue is not None
    assert asdict(queue.limits) == {
        name: getattr(pool.hold, name) for name in HoldSettings.model_fields
    }
    assert plan is not None
    assert [getattr(plan, name) for name in ("path", "timeout_s", "interval_s")] == ["/ready", 5, 6]
