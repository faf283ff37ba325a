"""Finished runs with figures that can be worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from extproc.bench.experiments.replicas import LabError
from extproc.bench.experiments.run import Interrupted
from extproc.bench.record import (
    CacheCounters,
    ClientStats,
    EndpointScrape,
    LoopSample,
    Record,
    RunInfo,
    RunResult,
    TokenSource,
    Window,
)
from extproc.bench.spec.section import Component
from extproc.bench.spec.tree import Spec


def spec(**traffic: object) -> Spec:
    shape = {"req_rate": 10, "total_prompts": 100, **traffic}
    return Spec.model_validate(
        {"endpoint": "127.0.0.1:8000", "performance": {"traffic_shape": shape}}
    )


def record(index: int, intended_s: float, **changes: object) -> Record:
    """A request sent on time: first of 11 tokens after 0.5 s, then one each 0.1 s, in chunks of one."""
    made = Record(
        index=index,
        session=index // 2,
        turn=index % 2,
        intended_s=intended_s,
        admitted_s=intended_s,
        started_s=intended_s,
        sent_s=intended_s,
        first_byte_s=intended_s + 0.4,
        first_token_s=intended_s + 0.5,
        end_s=intended_s + 1.5,
        chunk_s=[intended_s + 0.5 + step / 10 for step in range(11)],
        input_tokens=100,
        output_tokens=11,
        token_source=TokenSource.SERVER,
        estimated_input_tokens=110,
        estimated_output_tokens=11,
        cached_tokens=50,
        endpoint=f"10.0.0.{index % 2}:8000",
        status=200,
        text="word " * 11,
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def failed(index: int, intended_s: float, failure: str = "timeout") -> Record:
    return record(
        index,
        intended_s,
        failure=failure,
        first_token_s=None,
        chunk_s=[],
        output_tokens=0,
        cached_tokens=None,
    )


def result(
    records: Sequence[Record],
    *,
    duration_s: float = 10.0,
    window: Window | None = None,
    of: Spec | None = None,
    model: str = "llama",
) -> RunResult:
    info = RunInfo(
        spec=of or spec(),
        model=model,
        started_at=datetime(2026, 11, 21, 12, 0, tzinfo=UTC),
        duration_s=duration_s,
        window=window or Window(0.0, duration_s),
        schedule_s=tuple(made.intended_s for made in records),
        offered_rps=len(records) / duration_s if duration_s else None,
        clients=(
            ClientStats(
                0,
                1.0,
                duration_s,
                None,
                0.0,
                (LoopSample(1.0, 0.001, 3), LoopSample(2.0, 0.002, 4)),
            ),
        ),
        scrapes=(EndpointScrape("10.0.0.0:8000", CacheCounters(0, 0), CacheCounters(1000, 600)),),
    )
    return RunResult(info, tuple(records))


def steady(requests: int = 100, *, per_second: float = 10.0, **changes: object) -> RunResult:
    """`requests` equal requests at a constant rate; the window ends with the schedule, the run later."""
    records = [record(index, index / per_second, **changes) for index in range(requests)]
    span_s = requests / per_second
    return result(records, duration_s=span_s - 1 / per_second + 1.5, window=Window(0.0, span_s))


# Seconds to the first token of each arm, at seed 0.
TTFT_S = {"round_robin": 0.4, "prefix_hash": 0.1}


class ScriptedRuns:
    """A lab and a run in one: what is measured depends on the arm in force, and is written down.

    It is interrupted before the run number `stop_before`, or breaks off the run number `broken_off`.
    """

    def __init__(
        self,
        late_changes: int = 0,
        *,
        stop_before: int = 0,
        broken_off: int = 0,
        **changes: object,
    ) -> None:
        self.log: list[str] = []
        self.titles: list[str] = []
        self.specs: list[Spec] = []
        self._arm = ""
        self._late_changes, self._stop_before = late_changes, stop_before
        self._broken_off, self._changes = broken_off, changes

    async def prepare(self, arm: Component) -> None:
        self._arm = arm.name
        self.log.append(f"prepare {arm.name}")

    async def confirm(self, arm: Component) -> None:
        assert self._arm == arm.name
        self.log.append(f"confirm {arm.name}")
        if self._late_changes:
            self._late_changes -= 1
            raise LabError("the settings of the router were changed")

    async def run(self, seeded: Spec, title: str) -> RunResult:
        number = len(self.specs) + 1
        if number == self._stop_before:
            raise Interrupted
        self.specs.append(seeded)
        self.titles.append(title)
        self.log.append(title)
        ttft_s = TTFT_S.get(self._arm, 0.4) * (1 + seeded.seed / 100)
        records = [
            record(index, at := index / 10, first_token_s=at + ttft_s, **self._changes)
            for index in range(100)
        ]
        made = result(records, duration_s=11.4, of=seeded)
        interrupted_s = 4.0 if number == self._broken_off else None
        return replace(made, info=replace(made.info, interrupted_s=interrupted_s))
