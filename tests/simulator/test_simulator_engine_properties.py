"""What holds of the engine for any load."""

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import TypeVar, cast

from hypothesis import given
from hypothesis import strategies as st

from extproc.simulator.engine.blocks import BlockCache
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
    results: list[StepResult] = []
    turn = 0
    while turn <= 45 or not engine.is_idle:
        for number, load in enumerate(loads):
            if load.after == turn:
                add(engine, number, load)
            if load.is_aborted and load.after + 5 == turn:
                engine.abort(str(number))
        if not engine.is_idle:
            results.append(engine.step(0.0))
            check(engine)
        turn += 1
    return results


def check_blocks(engine: Engine[Sequence[int]]) -> None:
    cache, requests = engine._cache, engine._running.values()
    assert isinstance(cache, BlockCache)
    shared = {block for request in requests for block in request.names[: request.shared]}
    held = sum(engine._blocks(engine._computed(request)) - request.shared for request in requests)
    assert cache.free + len(shared) + held == cache.size
    assert not shared & cache._idle.keys()


def check(engine: Engine[Names]) -> None:
    if not engine._names_late:
        check_blocks(cast("Engine[Sequence[int]]", engine))
    assert engine._context_tokens == sum(map(engine._computed, engine._decoding.values()))
    counters = engine.counters
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

        duration_s += result.duration_s if result else 0.0
        assert abs(duration_s - sum(one.duration_s for one in single)) < 1e-9
        assert finished == tuple(name for one in single for name in one.finished)
        assert at_once.counters == one_by_one.counters
        check(at_once)


@given(LOADS)
def test_runs_of_texts_give_the_same_steps_as_their_blocks(loads: list[Load]) -> None:
    by_block, by_run = Engine(PROFILE), build_late()

    assert play(by_run, loads, add_path) == play(by_block, loads, add)
    assert by_run.counters == by_block.counters
