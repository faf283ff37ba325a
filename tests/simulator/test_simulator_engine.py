"""The scheduler: cases worked by hand (blocks of 4 tokens, a step of nothing takes 10 ms), and any load."""

from collections import Counter
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.simulator.engine import records
from extproc.simulator.engine.engine import Engine, PromptTooLong
from extproc.simulator.engine.profiles import Profile
from extproc.simulator.engine.records import StepResult
from extproc.simulator.engine.runs import Path, RunCache
from tests.tables import table

PROFILE = Profile(
    name="small",
    base_ms=10,
    kv_us_per_ctx_token=1000,
    prefill_ms_per_token=100,
    kv_tokens=64,
    block_size=4,
    max_num_batched_tokens=16,
    max_num_seqs=4,
    max_model_len=32,
)


def run_engine(engine: Engine[Sequence[int]], steps: int = 1_000) -> list[records.StepResult]:
    """Steps until idle, `steps` at most."""
    results: list[records.StepResult] = []
    now = 0.0
    while not engine.is_idle and len(results) < steps:
        results.append(engine.step(now))
        now = results[-1].ends_at
    return results


def text(name: int, blocks: int) -> range:
    return range(name * 100, name * 100 + blocks)


def test_one_request_takes_one_prefill_and_a_step_per_further_token() -> None:
    """Each step takes as long as the profile's formula says."""
    engine = Engine(PROFILE)
    engine.add("a", range(6), 3, now=1.5)

    results = run_engine(engine)

    assert [result.emitted for result in results] == [("a",)] * 3
    assert [result.prefilled for result in results] == [("a",), (), ()]
    assert [result.finished for result in results] == [(), (), ("a",)]
    assert [result.prefill_tokens for result in results] == [6, 0, 0]
    assert [result.context_tokens for result in results] == [6, 7, 8]
    durations = [0.010 + 6 * 0.001 + 6 * 0.100, 0.010 + 7 * 0.001, 0.010 + 8 * 0.001]
    assert [result.duration_s for result in results] == pytest.approx(durations)


def test_long_prompt_is_computed_in_chunks_that_leave_room_for_decodes() -> None:
    engine = Engine(PROFILE)
    engine.add("a", range(4), 5, now=0)
    engine.step(0)
    engine.add("b", range(100, 120), 1, now=0)

    results = run_engine(engine, 2)

    assert [result.prefill_tokens for result in results] == [15, 5]
    assert [result.emitted for result in results] == [("a",), ("a", "b")]


def test_prompt_that_was_answered_before_is_cached_but_for_its_last_token() -> None:
    """Its blocks are found by a request of the same step already."""
    engine, together = Engine(PROFILE), Engine(PROFILE)
    engine.add("a", range(8), 1, now=0)
    run_engine(engine)
    engine.add("b", range(8), 1, now=0)
    together.add("a", range(8), 1, now=0)
    together.add("b", [*range(8), 9], 1, now=0)
    (later,), (same,) = run_engine(engine), run_engine(together)

    assert later.admitted == (records.Admitted("b", 4, 0.0, is_first=True),)
    assert (later.prefill_tokens, same.prefill_tokens) == (4, 9)
    assert [admission.cached_tokens for admission in same.admitted] == [0, 8]


@table(
    ("tokens", "output", "cached"),
    [
        # The last token was emitted and never computed: 12 of 13 tokens are in the cache.
        (7, range(10, 17), 12),
        # A block that is not full is not found.
        (6, range(10, 16), 8),
        # Nor is an output that nobody knows.
        (7, None, 4),
    ],
)
def test_generated_blocks_are_found_by_the_next_turn(
    tokens: int, output: range | None, cached: int
) -> None:
    engine = Engine(PROFILE)
    engine.add("a", range(6), tokens, output=output, now=0)
    run_engine(engine)
    engine.add("b", [*range(6), *(output or range(6, 13)), 1], 1, now=0)

    assert run_engine(engine)[0].admitted[0].cached_tokens == cached


def test_prompt_is_admitted_only_when_all_of_it_fits() -> None:
    engine = Engine(replace(PROFILE, kv_tokens=32))
    engine.add("a", range(20), 2, now=0)
    engine.add("b", range(100, 116), 1, now=0)

    results = run_engine(engine)

    # 5 of 8 blocks are taken by a (6 while it decodes); b needs 4.
    assert [admission.request_id for result in results for admission in result.admitted] == [
        "a",
        "b",
    ]
    assert (results[-1].finished, results[-2].finished) == (("b",), ("a",))


def preempt(
    *asked: tuple[int, int, int], **sizes: int
) -> tuple[Engine[Sequence[int]], list[records.StepResult]]:
    """Runs requests a, b, c of (prompt tokens, blocks, output tokens), those after a step of the first."""
    engine = Engine(replace(PROFILE, **{"kv_tokens": 32, **sizes}))  # type: ignore[arg-type]  # its sizes
    for place, (tokens, blocks, output) in enumerate(asked):
        engine.add_hashed("abc"[place], tokens, text(place + 1, blocks), output, now=0)
        if place == 0:
            engine.step(0)
    return engine, run_engine(engine)


def test_last_admitted_is_preempted_when_blocks_run_out() -> None:
    engine, results = preempt((14, 6, 8), (12, 4, 4))

    preempting = next(result for result in results if result.preempted)
    again = next(
        result for result in results if any(not admission.is_first for admission in result.admitted)
    )
    assert (preempting.preempted, preempting.emitted, preempting.admitted) == (("b",), ("a",), ())
    # b's three prompt blocks lay idle, a took one of them; the block with its first token was never
    # full.
    assert again.admitted[0].request_id == "b"
    assert results[-1].finished == ("b",)
    assert sum(result.emitted.count("b") for result in results) == 4
    assert sum(result.emitted.count("a") for result in results) == 7
    # It is counted as one query.
    assert (engine.counters.preemptions_total, engine.counters.prefix_queries_total) == (1, 26)


def test_preempted_request_goes_to_the_head_of_the_queue() -> None:
    _, results = preempt((14, 6, 8), (12, 4, 4), (4, 1, 1), max_num_seqs=2)

    assert [one.request_id for result in results for one in result.admitted] == ["b", "b", "c"]


def test_last_admitted_gives_way_even_if_it_is_the_one_that_needs_a_block() -> None:
    _, results = preempt((14, 5, 5), (16, 5, 5))

    assert [name for result in results for name in result.preempted] == ["b"]
    assert sum(result.emitted.count("b") for result in results) == 5


def test_request_that_is_still_prefilling_can_be_preempted() -> None:
    engine, results = preempt((15, 8, 12), (22, 6, 2), kv_tokens=40)

    assert (results[0].prefill_tokens, results[1].preempted) == (15, ("b",))
    assert results[1].prefill_tokens == 0
    assert sum(result.emitted.count("b") for result in results) == 2
    assert engine.counters.prompt_tokens_total == 37


def test_step_that_preempts_admits_nobody_even_where_the_victim_would_fit_at_once() -> None:
    """Two alike: the survivor has named the block of which the victim holds a copy, so it needs one less."""
    engine = Engine(replace(PROFILE, kv_tokens=8, block_size=2, max_model_len=8))
    for name in ("a", "b"):
        engine.add(name, [2, 1], 4, output=[1, 0, 1, 1], now=0)

    results = run_engine(engine)

    (place,) = (place for place, result in enumerate(results) if result.preempted)
    assert (results[place].preempted, results[place].admitted) == (("b",), ())
    assert [one.request_id for one in results[place + 1].admitted] == ["b"]


def test_what_cannot_be_run_is_refused() -> None:
    engine = Engine(PROFILE)
    with pytest.raises(ValueError, match="idle"):
        engine.step(0)
    with pytest.raises(PromptTooLong, match="maximum context length is 32 tokens") as caught:
        engine.add("a", range(32), 1, now=0)
    assert caught.value.status == 400
    for prompt, max_tokens in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="empty"):
            engine.add("a", range(prompt), max_tokens, now=0)
    engine.add("a", range(4), 2, now=0)
    with pytest.raises(ValueError, match="already"):
        engine.add("a", range(4), 2, now=0)
    engine.step(0)
    with pytest.raises(ValueError, match="already"):
        engine.add("a", range(4), 2, now=0)


def test_abort_frees_a_running_request_keeps_what_it_computed_and_ends_no_other_of_its_name() -> (
    None
):
    engine = Engine(PROFILE)
    engine.add("a", range(9), 9, now=0)
    engine.step(0)

    engine.abort("a")

    assert (engine.is_idle, engine.counters.kv_usage) == (True, 0)
    engine.add("a", range(9), 6, now=0)
    results = run_engine(engine)
    assert results[0].admitted[0].cached_tokens == 8
    assert sum(len(result.emitted) for result in results) == 6


def test_abort_lets_the_queue_move() -> None:
    engine = Engine(PROFILE)
    for name in "abcde":
        engine.add(name, [ord(name)], 9, now=0)
    engine.step(0)
    assert engine.quiet_steps() > 0

    engine.abort("b")

    assert (engine.quiet_steps(), engine.step(0).admitted[0].request_id) == (0, "e")


def test_counters_count_tokens_and_requests() -> None:
    engine = Engine(PROFILE)
    for name in "abcde":
        engine.add(name, range(5), 2, now=0)
    engine.step(0)

    counters = engine.counters
    assert (counters.running, counters.waiting) == (4, 1)
    assert counters.kv_usage == pytest.approx(5 / 16)
    assert (counters.prefix_queries_total, counters.prefix_hits_total) == (20, 12)
    assert (counters.prompt_tokens_total, counters.generation_tokens_total) == (20, 4)


def test_listener_hears_of_stored_blocks_with_parents_and_tokens() -> None:
    events: list[records.KvEvent] = []
    engine = Engine(PROFILE, sink=events.append)
    engine.add("a", range(8), 5, output=[8, 9, 10, 11, 12], extra_key="lora", now=0)
    run_engine(engine)

    first, second = events
    assert isinstance(first, records.BlockStored)
    assert isinstance(second, records.BlockStored)
    assert (first.parent_hash, [*first.token_ids]) == (None, [*range(8)])
    assert (second.parent_hash, [*second.token_ids]) == (first.block_hashes[1], [8, 9, 10, 11])
    assert (first.block_size, first.extra_key) == (4, "lora")


Names = TypeVar("Names", bound=Sized)

TIGHT = replace(
    PROFILE, kv_us_per_ctx_token=500, prefill_ms_per_token=1, kv_tokens=80, max_model_len=64
)
TIGHT = replace(TIGHT, max_num_batched_tokens=24, max_num_seqs=5)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One request: which of four texts, how much of it, how much more, and after how many steps."""

    text: int
    prompt: int
    output: int
    after: int
    is_aborted: bool


PROMPTS, OUTPUTS, WAITS = st.integers(1, 50), st.integers(1, 30), st.integers(0, 40)
LOADS = st.lists(
    st.builds(EngineLoad, st.integers(0, 3), PROMPTS, OUTPUTS, WAITS, st.booleans()),
    min_size=1,
    max_size=14,
)


def hashes(number: int, load: EngineLoad) -> list[int]:
    """The prompts of one text have their blocks in common, the outputs have not."""
    prompt, blocks = load.prompt // 4, (load.prompt + load.output) // 4
    own = range((10 + number) * 1000 + prompt, (10 + number) * 1000 + blocks)
    return [*range(load.text * 1000, load.text * 1000 + prompt), *own]


def hashes_of(number: int, load: EngineLoad) -> Path:
    return Path(((load.text, load.prompt // 4), (10 + number, (load.prompt + load.output) // 4)))


def add(engine: Engine[Sequence[int]], number: int, load: EngineLoad, now: float = 0.0) -> None:
    engine.add_hashed(str(number), load.prompt, hashes(number, load), load.output, now=now)


def add_path(engine: Engine[Path], number: int, load: EngineLoad, now: float = 0.0) -> None:
    engine.add_hashed(str(number), load.prompt, hashes_of(number, load), load.output, now=now)


def build_late() -> Engine[Path]:
    return Engine(TIGHT, cache=RunCache(TIGHT.blocks))


def play_engine(
    engine: Engine[Names],
    loads: list[EngineLoad],
    add: Callable[[Engine[Names], int, EngineLoad], None],
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
                ledger.gone.add(str(number))
        if not engine.is_idle:
            results.append(engine.step(0.0))
            ledger.note(results[-1])
            ledger.check(engine)
        turn += 1
    return results


class Ledger:
    """Which tokens the running requests have in the KV cache, by what came out of the steps."""

    def __init__(self, loads: list[EngineLoad]) -> None:
        self.loads = loads
        self.computed: dict[str, int] = {}
        self.unread: dict[str, int] = {}  # of those that do not decode yet, in order of admission
        self.emitted = Counter[str]()
        self.gone = set[str]()

    def note(self, step: StepResult) -> None:
        assert self.gone.isdisjoint(step.emitted)
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
        assert counters.kv_usage == pytest.approx((len(blocks) + begun) / TIGHT.blocks)
        assert engine.decode_s(1) == pytest.approx(TIGHT.step_s(sum(decoding), 0))
        assert (counters.running, engine.decoding) == (len(self.computed), len(decoding))
        assert counters.prefix_hits_total <= counters.prefix_queries_total
        assert counters.running <= TIGHT.max_num_seqs


@given(LOADS)
def test_blocks_add_up_requests_get_their_tokens_and_no_step_exceeds_its_budget(
    loads: list[EngineLoad],
) -> None:
    engine = Engine(TIGHT)

    results = play_engine(engine, loads, add)

    emitted = [name for result in results for name in result.emitted]
    for number, load in enumerate(loads):
        if not load.is_aborted:
            assert emitted.count(str(number)) == min(load.output, 64 - load.prompt)
    assert (engine.counters.kv_usage, engine.counters.generation_tokens_total) == (0, len(emitted))
    for result in results:
        decoding = len(result.emitted) - len(result.prefilled)
        assert result.prefill_tokens + decoding <= TIGHT.max_num_batched_tokens


@given(LOADS)
def test_quiet_steps_run_at_once_are_the_same_as_one_by_one(loads: list[EngineLoad]) -> None:
    compare_at_once(Engine(TIGHT), Engine(TIGHT), loads, add)
    compare_at_once(build_late(), build_late(), loads, add_path)


def compare_at_once(
    at_once: Engine[Names],
    one_by_one: Engine[Names],
    loads: list[EngineLoad],
    add: Callable[[Engine[Names], int, EngineLoad], None],
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
def test_runs_of_texts_give_the_same_steps_as_their_blocks(loads: list[EngineLoad]) -> None:
    by_block, by_run = Engine(TIGHT), build_late()

    assert play_engine(by_run, loads, add_path) == play_engine(by_block, loads, add)
    assert by_run.counters == by_block.counters
