"""What holds of the engine for any load."""

from collections import Counter
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.simulator.engine.engine import Engine
from extproc.simulator.engine.profiles import Profile
from extproc.simulator.engine.records import StepResult
from extproc.simulator.engine.runs import Path, RunCache

Names = TypeVar("Names", bound=Sized)

PROFILE = Profile(
    name="tight",
    base_ms=10,
    kv_us_per_ctx_token=500,
    prefill_ms_per_token=1,
    kv_tokens=80,
    block_size=4,
    max_num_batched_tokens=24,
    max_num_seqs=5,
    max_model_len=64,
)


@dataclass(frozen=True, slots=True)
class Load:
    """One request: which of four texts, how much of it, how much more, and after how many steps."""

    text: int
    prompt: int
    output: int
    after: int
    is_aborted: bool


PROMPTS, OUTPUTS, WAITS = st.integers(1, 50), st.integers(1, 30), st.integers(0, 40)
LOADS = st.lists(
    st.builds(Load, st.integers(0, 3), PROMPTS, OUTPUTS, WAITS, st.booleans()), min_size=1, max_size=14
)


def hashes(number: int, load: Load) -> list[int]:
    """The prompts of one text have their blocks in common, the outputs have not."""
    prompt, blocks = load.prompt // 4, (load.prompt + load.output) // 4
    own = range((10 + number) * 1000 + prompt, (10 + number) * 1000 + blocks)
    return [*range(load.text * 1000, load.text * 1000 + prompt), *own]


def path(number: int, load: Load) -> Path:
    return Path(((load.text, load.prompt // 4), (10 + number, (load.prompt + load.output) // 4)))


def add(engine: Engine[Sequence[int]], number: int, load: Load, now: float = 0.0) -> None:
    engine.add_hashed(str(number), load.prompt, hashes(number, load), load.output, now=now)


def add_path(engine: Engine[Path], number: int, load: Load, now: float = 0.0) -> None:
    engine.add_hashed(str(number), load.prompt, path(number, load), load.output, now=now)


def build_late() -> Engine[Path]:
    return Engine(PROFILE, cache=RunCache(PROFILE.blocks))


def play(
    engine: Engine[Names], loads: list[Load], add: Callable[[Engine[Names], int, Load], None]
) -> list[StepResult]:
    """Adds each request after its steps; one that is aborted goes five steps later."""
    results, ledger = list[StepResult](), Ledger(loads)
    turn = 0
    while turn <= 45 or not engine.is_idle:
        for number, load in enumerate(loads):
            if load.after == turn:
                add(engine, number, load)
            if load.is_aborted and load.after + 5 == turn:
                engine.abort(str(number))
                ledger.drop(str(number))
        if not engine.is_idle:
            results.append(engine.step(0.0))
            ledger.note(results[-1])
            ledger.check(engine)
        turn += 1
    return results


class Ledger:
    """Which tokens the running requests have in the KV cache, by what came out of the steps."""

    def __init__(self, loads: list[Load]) -> None:
        self.loads = loads
        self.computed: dict[str, int] = {}
        self.unread: dict[str, int] = {}  # of those that do not decode yet, in order of admission
        self.emitted = Counter[str]()

    def note(self, step: StepResult) -> None:
        for name in step.preempted:
            self.drop(name)
        for name, cached in ((each.request_id, each.cached_tokens) for each in step.admitted):
            self.computed[name] = cached
            self.unread[name] = self.loads[int(name)].prompt + self.emitted[name] - cached
        left = step.prefill_tokens
        for name, unread in self.unread.items():
            chunk = min(unread, left)
            left -= chunk
            self.unread[name] -= chunk
            self.computed[name] += chunk
        for name in step.prefilled:
            assert self.unread.pop(name) == 0
        self.emitted.update(step.emitted)
        for name in {*step.emitted} - {*step.prefilled}:
            self.computed[name] += 1
        for name in step.finished:
            self.drop(name)

    def drop(self, name: str) -> None:
        self.computed.pop(name, None)
        self.unread.pop(name, None)

    def check(self, engine: Engine[Names]) -> None:
        blocks, begun = set[int](), 0
        for name, tokens in self.computed.items():
            blocks.update(hashes(int(name), self.loads[int(name)])[: tokens // 4])
            begun += tokens % 4 > 0
        decoding = [tokens + 1 for name, tokens in self.computed.items() if name not in self.unread]
        counters = engine.counters
        assert counters.kv_usage == pytest.approx((len(blocks) + begun) / PROFILE.blocks)
        assert engine.decode_s(1) == pytest.approx(PROFILE.step_s(sum(decoding), 0))
        assert (counters.running, engine.decoding) == (len(self.computed), len(decoding))
        assert counters.prefix_hits_total <= counters.prefix_queries_total
        assert counters.running <= PROFILE.max_num_seqs


@given(LOADS)
def test_blocks_add_up_requests_get_their_tokens_and_no_step_exceeds_its_budget(loads: list[Load]) -> None:
    engine = Engine(PROFILE)

    results = play(engine, loads, add)

    emitted = [name for result in results for name in result.emitted]
    for number, load in enumerate(loads):
        if not load.is_aborted:
            assert emitted.count(str(number)) == min(load.output, 64 - load.prompt)
    assert (engine.counters.kv_usage, engine.counters.generation_tokens_total) == (0, len(emitted))
    for result in results:
        decoding = len(result.emitted) - len(result.prefilled)
        assert result.prefill_tokens + decoding <= PROFILE.max_num_batched_tokens


@given(LOADS)
def test_quiet_steps_run_at_once_are_the_same_as_one_by_one(loads: list[Load]) -> None:
    compare_at_once(Engine(PROFILE), Engine(PROFILE), loads, add)
    compare_at_once(build_late(), build_late(), loads, add_path)


def compare_at_once(
    at_once: Engine[Names],
    one_by_one: Engine[Names],
    loads: list[Load],
    add: Callable[[Engine[Names], int, Load], None],
) -> None:
    ledger = Ledger(loads)
    for number, load in enumerate(loads):
        add(at_once, number, load)
        add(one_by_one, number, load)
    while not at_once.is_idle:
        quiet = at_once.quiet_steps()
        assert quiet >= 0
        duration_s = at_once.decode_s(quiet) if quiet else 0.0
        result = None if quiet else at_once.step(0.0)
        finished = result.finished if result else at_once.decode(quiet)
        single = [one_by_one.step(0.0) for _ in range(quiet or 1)]
        for step in single:
            ledger.note(step)

        duration_s += result.duration_s if result else 0.0
        assert abs(duration_s - sum(one.duration_s for one in single)) < 1e-9
        assert finished == tuple(name for one in single for name in one.finished)
        assert at_once.counters == one_by_one.counters
        ledger.check(at_once)


@given(LOADS)
def test_runs_of_texts_give_the_same_steps_as_their_blocks(loads: list[Load]) -> None:
    by_block, by_run = Engine(PROFILE), build_late()

    assert play(by_run, loads, add_path) == play(by_block, loads, add)
    assert by_run.counters == by_block.counters
