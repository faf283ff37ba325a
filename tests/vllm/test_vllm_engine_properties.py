"""What holds of the engine for any load."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.vllm.engine import Engine
from extproc.vllm.profiles import Profile
from extproc.vllm.step import StepResult

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


LOADS = st.lists(
    st.builds(
        Load,
        text=st.integers(0, 3),
        prompt=st.integers(1, 50),
        output=st.integers(1, 30),
        after=st.integers(0, 40),
        is_aborted=st.booleans(),
    ),
    min_size=1,
    max_size=14,
)


def add(engine: Engine, number: int, load: Load, now: float = 0.0) -> None:
    hashes = range(load.text * 1000, load.text * 1000 + (load.prompt + load.output) // 4)
    engine.add_hashed(str(number), load.prompt, hashes, load.output, now=now)


def play(engine: Engine, loads: list[Load]) -> list[StepResult]:
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


def check(engine: Engine) -> None:
    cache, requests = engine._cache, engine._running.values()
    shared = {block for request in requests for block in request.hashes[: request.shared]}
    private = sum(request.private for request in requests)
    assert cache.free + len(shared) + private == cache.size
    assert not shared & cache._idle.keys()
    assert engine._context_tokens == sum(map(engine._computed, engine._decoding.values()))
    assert all(request.blocks >= -(-engine._computed(request) // 4) for request in requests)
    counters = engine.counters
    assert counters.prefix_hits_total <= counters.prefix_queries_total
    assert counters.running <= PROFILE.max_num_seqs


@given(LOADS)
@settings(max_examples=150, deadline=None)
def test_blocks_add_up_and_every_request_gets_its_tokens(loads: list[Load]) -> None:
    engine = Engine(PROFILE)

    results = play(engine, loads)

    emitted = [name for result in results for name in result.emitted]
    for number, load in enumerate(loads):
        if not load.is_aborted:
            assert emitted.count(str(number)) == min(load.output, 64 - load.prompt)
    assert engine.counters.kv_usage == 0
    assert engine.counters.generation_tokens_total == len(emitted)


@given(LOADS)
@settings(max_examples=50, deadline=None)
def test_no_step_computes_more_than_its_budget(loads: list[Load]) -> None:
    for result in play(Engine(PROFILE), loads):
        decoding = len(result.emitted) - len(result.prefilled)
        assert result.prefill_tokens + decoding <= PROFILE.max_num_batched_tokens


@given(LOADS)
@settings(max_examples=50, deadline=None)
def test_same_load_gives_the_same_steps(loads: list[Load]) -> None:
    assert play(Engine(PROFILE), loads) == play(Engine(PROFILE), loads)


@given(LOADS)
@settings(max_examples=150, deadline=None)
def test_quiet_steps_run_at_once_are_the_same_as_one_by_one(loads: list[Load]) -> None:
    at_once, one_by_one = Engine(PROFILE), Engine(PROFILE)
    for number, load in enumerate(loads):
        add(at_once, number, load)
        add(one_by_one, number, load)
    while not at_once.is_idle:
        quiet = at_once.quiet_steps()
        assert quiet >= 0
        duration_s = at_once.decode_s(quiet) if quiet else at_once.step(0.0).duration_s
        at_once.decode(quiet)
        single = [one_by_one.step(0.0) for _ in range(quiet or 1)]

        assert abs(duration_s - sum(result.duration_s for result in single)) < 1e-9
        assert at_once.counters == one_by_one.counters
        check(at_once)
