"""What a load process does, against a client that answers as a test says."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from extproc.bench.datasets.conversation import ChatTurn, Conversation, TurnMessage
from extproc.bench.load.generator import Cap, LoadGenerator, LoadShare
from extproc.bench.load.process import LoadWatch
from extproc.bench.load.workload import Numbering
from extproc.bench.processors.processor import ChatQuery
from extproc.bench.record import Record, RunClock
from extproc.bench.spec.tree import Spec
from tests.tables import table

THREE_TURNS = Conversation(
    tuple(ChatTurn((TurnMessage("user", f"question {i}"),), 5, f"recorded {i}") for i in range(3))
)


class FakeClient:
    """Answers after `delay_s`; `spoil` may make a record fail."""

    def __init__(
        self,
        clock: RunClock,
        delay_s: float = 0.0,
        spoil: Callable[[Record], None] = lambda _: None,
    ) -> None:
        self.asks: list[ChatQuery] = []
        self.most = self._now = 0
        self._clock, self._delay_s, self._spoil = clock, delay_s, spoil

    async def send(self, ask: ChatQuery, record: Record) -> None:
        self.asks.append(ask)
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            record.started_s = record.sent_s = self._clock()
            await asyncio.sleep(self._delay_s)
            record.end_s = record.first_token_s = self._clock()
            record.text = f"answer {record.index}"
            self._spoil(record)
        finally:
            self._now -= 1

    async def close(self) -> None:
        pass


def build_share(
    conversations: Sequence[Conversation] = (THREE_TURNS,),
    starts: Sequence[tuple[int, float]] = (),
    requests: int | None = None,
    users: int = 0,
    cap: int | None = None,
    **traffic: Any,
) -> LoadShare:
    rate = {} if users else {"req_rate": 10}
    shape = {"total_prompts": 100, "vus": users or None, **rate, **traffic}
    spec = Spec.model_validate({"endpoint": "x", "performance": {"traffic-shape": shape}})
    return LoadShare(0, spec, "m", tuple(conversations), requests, tuple(starts), users, cap=cap)


def build_generator(
    share: LoadShare,
    *,
    delay_s: float = 0.0,
    spoil: Callable[[Record], None] = lambda _: None,
    jobs: int = 10**9,
) -> tuple[LoadGenerator, FakeClient]:
    clock = RunClock()
    client = FakeClient(clock, delay_s, spoil)
    numbers = itertools.count()

    def take_next() -> int | None:
        number = next(numbers)
        return number if number < jobs else None

    return LoadGenerator(share, client, clock, take_next), client


async def play_load(share: LoadShare, **how: Any) -> tuple[LoadGenerator, FakeClient]:
    """Runs a share to its end."""
    generator, client = build_generator(share, **how)
    await generator.run()
    return generator, client


async def test_session_asks_turn_by_turn_and_quotes_real_answers() -> None:
    generator, client = await play_load(build_share(starts=[(0, 0.0)]))

    assert [len(ask.messages) for ask in client.asks] == [1, 3, 5]
    quoted = ["question 0", "answer 0", "question 1", "answer 1", "question 2"]
    assert [m.content for m in client.asks[2].messages] == quoted
    assert [(r.session, r.turn) for r in generator.records] == [(0, 0), (0, 1), (0, 2)]

    dataset = {"name": "synthetic", "replies": "recorded"}
    generator, client = await play_load(build_share(starts=[(0, 0.0)], dataset=dataset))

    assert client.asks[1].messages[1] == TurnMessage("assistant", "recorded 0")


async def test_failed_answer_ends_its_session() -> None:
    def spoil(record: Record) -> None:
        record.failure = "http 500"

    generator, _ = await play_load(build_share(starts=[(0, 0.0), (1, 0.0)]), spoil=spoil)

    assert [(r.session, r.turn) for r in generator.records] == [(0, 0), (1, 0)]


async def test_refused_user_asks_again_when_the_server_says_so() -> None:
    def refuse(record: Record) -> None:
        record.failure, record.retry_after_s = "http 429", 0.1

    generator, _ = await play_load(
        build_share(users=1, duration=0.25, total_prompts=None), spoil=refuse
    )

    starts = [record.intended_s for record in generator.records]
    assert 2 <= len(starts) <= 3
    assert all(b - a >= 0.1 for a, b in itertools.pairwise(starts))


async def test_users_share_iterations_and_work_alone() -> None:
    """k6's shared iterations: four users, ten conversations, each run by one user to its end."""
    generator, client = await play_load(build_share(users=4), delay_s=0.005, jobs=10)

    assert sorted({record.session for record in generator.records}) == list(range(10))
    assert len(generator.records) == 30
    assert client.most == 4


STAGES = [{"vus": 1, "duration": 0.1}, {"vus": 0, "duration": 0.05}, {"vus": 3, "duration": 0.1}]


@table(
    ("user", "at_s", "stays_s"),
    [
        (0, 0.02, 0.02),
        (0, 0.12, 0.15),
        (2, 0.02, 0.15),
        (2, 0.2, 0.2),
        (0, 0.25, None),
        (3, 0, None),
    ],
)
def test_user_is_there_while_a_stage_has_it(user: int, at_s: float, stays_s: float | None) -> None:
    found = build_share(users=3, vus=None, stages=STAGES).spec.traffic.find_stay(user, at_s)

    assert found == (stays_s if stays_s is None else pytest.approx(stays_s))


async def test_users_come_and_go_by_stages_and_end_what_they_began() -> None:
    share = build_share(users=3, vus=None, stages=STAGES, graceful_stop=9)
    generator, client = await play_load(share, delay_s=0.02)
    begun_s = [record.intended_s for record in generator.records if not record.turn]

    assert client.most == 3
    assert [at_s for at_s in begun_s if 0.1 <= at_s < 0.15] == []
    assert sum(at_s >= 0.15 for at_s in begun_s) >= 3
    assert len(generator.records) == 3 * len(begun_s)


@table(
    ("traffic", "said"),
    [
        ({"stages": STAGES, "vus": 2}, "leave out req-rate, max-concurrency and vus"),
        ({"stages": STAGES, "duration": 9}, "stages last 0.25 s together: leave out duration"),
        ({"stages": STAGES[1:2]}, "or stages .closed loop."),
        ({"vus": 2, "duration": 9, "traffic_spike": {"burst": 1}}, "nothing; users have stages"),
    ],
)
def test_users_that_cannot_be_meant_are_refused(traffic: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build_share(users=1, **{"vus": None, **traffic})


async def test_closed_loop_intends_each_request_when_its_user_is_free() -> None:
    generator, _ = await play_load(build_share(users=1), delay_s=0.02, jobs=1)

    records = generator.records
    assert [r.intended_s for r in records[1:]] == [r.end_s for r in records[:-1]]


async def test_duration_ends_a_closed_loop_and_later_turns_of_an_open_one() -> None:
    closed, _ = await play_load(
        build_share(users=2, duration=0.1, total_prompts=None), delay_s=0.02
    )
    opened, _ = await play_load(build_share(starts=[(0, 0.0)], duration=0.5), delay_s=0.3)

    assert 2 <= len(closed.records) <= 12
    assert [r.turn for r in opened.records] == [0, 1]


async def test_requests_beyond_the_count_are_not_made_and_numbering_cycles_through_the_dataset() -> (
    None
):
    generator, _ = await play_load(build_share(starts=[(0, 0.0), (1, 0.0)], requests=4))
    numbering = Numbering([THREE_TURNS, Conversation(THREE_TURNS.turns[:1])])

    assert sorted(record.index for record in generator.records) == [0, 1, 2, 3]
    assert [numbering.first_index(n) for n in range(5)] == [0, 3, 4, 7, 8]
    assert [numbering.count_conversations(n) for n in range(9)] == [0, 1, 1, 1, 2, 3, 3, 3, 4]


async def test_cap_holds_requests_back_in_order() -> None:
    single = Conversation(THREE_TURNS.turns[:1])
    share = build_share([single], [(i, 0.0) for i in range(6)], cap=2)
    generator, client = await play_load(share, delay_s=0.02)

    admitted = [r.admitted_s for r in generator.records]
    assert client.most == 2
    assert admitted == sorted(a for a in admitted if a is not None)
    assert admitted[:2] == [0.0, 0.0]


async def test_cap_knows_how_long_it_was_full() -> None:
    now_s = [0.0]
    cap = Cap(2, lambda: now_s[0])
    for now_s[0] in (1.0, 2.0):
        await cap.enter(now_s[0])
    now_s[0] = 5.0
    assert cap.full_s == 3.0
    cap.leave()
    now_s[0] = 9.0

    assert cap.full_s == 3.0


async def test_graceful_stop_interrupts_what_is_in_flight_and_owns_up_to_the_unsent() -> None:
    share = build_share(starts=[(0, 0.0), (1, 5.0)], duration=0.05, graceful_stop=0.05)
    generator, _ = await play_load(share, delay_s=10)

    assert [r.failure for r in generator.records] == ["interrupted", "not sent"]
    assert generator.records[0].end_s is not None
    assert generator.records[1].started_s is None


@table("is_given", [False, True])
async def test_cancelled_waiter_does_not_keep_its_slot(is_given: bool) -> None:
    """Whether it was still waiting or was just given the slot: the next one gets it."""
    cap = Cap(1, lambda: 0.0)
    await cap.enter(0.0)
    waiter, following = (asyncio.create_task(cap.enter(0.0)) for _ in range(2))
    await asyncio.sleep(0)
    if is_given:
        cap.leave()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    if not is_given:
        cap.leave()

    assert await following == 0.0
    cap.leave()
    assert cap.in_flight == 0


async def test_watch_reports_totals_and_only_new_latencies() -> None:
    def spoil(record: Record) -> None:
        record.failure = "http 500" if record.index == 3 else None

    generator, _ = build_generator(build_share(starts=[(0, 0.0), (1, 0.0)]), spoil=spoil)
    watch = LoadWatch(generator, RunClock())
    await generator.run()
    first, second = watch.snapshot(), watch.snapshot()

    assert (first.sent, first.finished, first.in_flight) == (4, 4, 0)
    assert first.failures == second.failures == {"http 500": 1}
    assert (len(first.ttft_s), len(first.lag_s)) == (4, 4)
    assert (second.ttft_s, second.lag_s) == ((), ())


async def test_watch_sees_a_blocked_event_loop() -> None:
    generator, _ = build_generator(build_share())
    watch = LoadWatch(generator, RunClock())
    sampling = asyncio.create_task(watch.sample())
    await asyncio.sleep(0.03)
    blocked_until_s = asyncio.get_running_loop().time() + 0.1
    while asyncio.get_running_loop().time() < blocked_until_s:
        pass
    await asyncio.sleep(0.03)
    sampling.cancel()

    assert max(sample.lag_s for sample in watch.samples) > 0.06


@table(("graceful_stop", "turns"), [(5, [0, 1, 2]), (0, [0])])
async def test_users_finish_conversations_until_the_stop(
    graceful_stop: float, turns: list[int]
) -> None:
    """As k6's do: time is up after the first turn, and nobody begins another conversation."""
    share = build_share(users=1, duration=0.02, graceful_stop=graceful_stop)
    generator, _ = await play_load(share, delay_s=0.03)

    assert [record.turn for record in generator.records] == turns
    assert [record.is_last for record in generator.records][:-1] == [False] * (len(turns) - 1)


async def test_think_time_lies_between_an_answer_and_the_next_question_unless_the_dataset_knows_it() -> (
    None
):
    turns = tuple(
        ChatTurn((TurnMessage("user", "question"),), 5, think_s=think_s)
        for think_s in (9.0, 0.02, None)
    )
    share = build_share([Conversation(turns)], starts=[(0, 0.0)], think_time=0.05)
    generator, _ = await play_load(share, delay_s=0.01)

    first, second, third = generator.records
    assert second.intended_s == pytest.approx((first.end_s or 0) + 0.02)
    assert third.intended_s == pytest.approx((second.end_s or 0) + 0.05)
    assert (third.started_s or 0) >= third.intended_s
