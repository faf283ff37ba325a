"""A cell: one run as names and numbers alone, so that anybody can repeat it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, nan
from typing import Final

import msgspec
from xxhash import xxh3_64_hexdigest

from extproc.errors import SettingsError
from extproc.router.routing.strategies.prefix_cache.engine import ENGINES
from extproc.simulator.engine.profiles import DEFAULT_PROFILE, find_profile
from extproc.simulator.fleet.arms import FleetArm, parse_arm
from extproc.simulator.fleet.autoscaler import Scaling, parse_scaling
from extproc.simulator.fleet.bus import BusFault, Sharing
from extproc.simulator.fleet.changes import SCENARIOS
from extproc.simulator.fleet.chats import Demand
from extproc.simulator.fleet.fleet import FleetRun, Setup, Watch, simulate_fleet
from extproc.simulator.fleet.gateway import Routing
from extproc.simulator.fleet.session import PlannedSession
from extproc.simulator.fleet.summary import Summary, summarize
from extproc.simulator.fleet.trace import Trace, read_trace
from extproc.simulator.fleet.traffic import LoadSpike, Traffic, parse_spike
from extproc.simulator.fleet.workloads import draw_sessions, find_workload

# Sessions for so much longer than the window: the load has to last until the last answer in it.
_SLACK: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCell:
    """All that decides a run.

    `load` is the share of the workload's capacity, `rate` requests per second instead, `users` a
    closed loop instead. `None` for a time takes the workload's own. `requests` limits the run to so
    many instead of a time. A `trace` is a file that is replayed instead of a workload,
    `trace_speed` times as fast as it was recorded; `trace_xxh3` says what was in it, empty:
    anything. A `spike` and an autoscaler (`autoscale`) are written as their modules say, empty:
    none; `slo_ttft_s` judges what they cost. Cells that differ in `ties` alone get the same
    arrivals; what strategies leave to chance is drawn anew. Gateways send each other their picks,
    which arrive after `share_delay_ms`; `None`: they do not.
    """

    arm: str
    workload: str = "sessions"
    load: float | None = 0.75
    rate: float | None = None
    users: int | None = None
    requests: int | None = None
    think_s: float | None = None
    endpoints: int = 8
    profiles: tuple[str, ...] = ()
    gateways: int = 1
    scenario: str = "plain"
    warmup_s: float | None = None
    measured_s: float | None = None
    seed: int = 0
    ties: int = 0
    trace: str | None = None
    trace_xxh3: str = ""
    trace_speed: float = 1.0
    spike: str = ""
    autoscale: str = ""
    slo_ttft_s: float = 1.0

    share_delay_ms: float | None = None
    share_loss: float = 0.0
    share_fault: BusFault = BusFault.NONE

    @property
    def label(self) -> str:
        """What its run is called beside others of the same load."""
        return f"{self.arm} {self.autoscale}".rstrip()

    @property
    def digest(self) -> str:
        """Tells cells apart that differ in anything."""
        return xxh3_64_hexdigest(msgspec.json.encode(self))

    @property
    def rps(self) -> float:
        """Scheduled requests per second; NaN in a closed loop of users."""
        if self.users is not None:
            return nan
        if self.trace is not None:
            return self._trace().rps(self.trace_speed)
        capacity = find_workload(self.workload).capacity_rps * self.endpoints
        return self.rate if self.rate is not None else (self.load or 0.0) * capacity

    @property
    def requests_about(self) -> int:
        """About how many requests it takes; what cells cost goes by that."""
        return self._requests()

    def run(self, watch: Watch | None = None) -> Summary:
        """Calls `watch` with the share that is done. Raises `SettingsError` for names that there are not."""
        return summarize(self.simulate(watch), self.label)

    def simulate(self, watch: Watch | None = None) -> FleetRun:
        """As `run`, with all that it left behind."""
        return simulate_fleet(self.plan(), self.draw(), watch)

    def draw(self) -> list[PlannedSession]:
        """Returns the sessions; the same for every arm."""
        if self.trace is not None:
            return [*self._trace().sessions[: self.requests]]
        workload = find_workload(self.workload)
        think_s = workload.think_s if self.think_s is None else self.think_s
        rps = self.rps if self.users is None else workload.capacity_rps * self.endpoints
        return draw_sessions(
            self.workload, Demand(self._requests(), think_s, self.endpoints, rps), self.seed
        )

    def plan(self) -> Setup:
        arm, profiles, scenario = parse_arm(self.arm), self.profile_names, self.scenario
        start_s, end_s = self._window()
        # Where the requests are counted, they end when they end: about then, at this rate.
        stop_s = end_s if end_s < inf else self._requests() / self.rps
        if self.trace is None and scenario == "plain":
            scenario = find_workload(self.workload).scenario
        changes = SCENARIOS[scenario](self.endpoints, start_s, stop_s)
        rate = self.rps if self.users is None and self.trace is None else None
        return Setup(
            profiles=[find_profile(name) for name in profiles],
            endpoints=self.endpoints,
            routing=Routing(
                arm.strategy,
                self._options(arm),
                self.gateways,
                self._sharing((start_s + stop_s) / 2),
            ),
            traffic=Traffic(
                rate,
                self.users,
                until_s=end_s,
                speed=self.trace_speed,
                spike=self._spike(start_s, end_s),
            ),
            changes=changes,
            seed=self.seed,
            ties=self.ties,
            warmup_s=start_s,
            scaling=self._scaling(),
            slo_ttft_s=self.slo_ttft_s,
        )

    @property
    def profile_names(self) -> Sequence[str]:
        """The profile of its endpoints: its own, or the workload's."""
        if self.profiles or self.trace is not None:
            return self.profiles or (DEFAULT_PROFILE,)
        return (find_workload(self.workload).profile,)

    def _options(self, arm: FleetArm) -> Mapping[str, object]:
        """`prefix_cache` is configured with the workload's engine, unless the arm names another."""
        engine = self.profile_names[0]
        if arm.strategy in {"prefix_cache", "oracle"} and not self.profiles and engine in ENGINES:
            return {"engine": engine, **arm.options}
        return arm.options

    def _scaling(self) -> Scaling | None:
        return parse_scaling(self.autoscale) if self.autoscale else None

    def _spike(self, start_s: float, end_s: float) -> LoadSpike | None:
        """Raises `SettingsError` for one that would not be measured, or that the load cannot have."""
        if not self.spike:
            return None
        spike = parse_spike(self.spike)
        if self.users is not None or self.trace is not None:
            raise SettingsError(
                "users and traces set their own pace: a spike is of --load or --rate"
            )
        if not start_s <= spike.after_s < spike.end_s <= end_s or end_s == inf:
            raise SettingsError(
                f"spike {self.spike}: measured is from {start_s:g} to {end_s:g} s, all of it must be within"
            )
        return spike

    def _sharing(self, middle_s: float) -> Sharing | None:
        if self.share_delay_ms is None:
            return None
        return Sharing(self.share_delay_ms / 1000, self.share_loss, self.share_fault, middle_s)

    def _trace(self) -> Trace:
        assert self.trace is not None  # noqa: S101  # who calls this looked
        trace = read_trace(self.trace)
        if self.trace_xxh3 not in {"", trace.digest}:
            raise SettingsError(
                f"{self.trace}: this is not what was replayed before ({self.trace_xxh3})"
            )
        return trace

    def _window(self) -> tuple[float, float]:
        """The measured time; its end is infinite where a number of requests ends the run."""
        workload = find_workload(self.workload) if self.trace is None else None
        measured_s = self.measured_s
        if measured_s is None and workload is not None:
            measured_s = workload.measured_s
        is_counted = self.requests is not None or measured_s is None
        warmup_s = 0.0 if is_counted or workload is None else workload.warmup_s
        start_s = warmup_s if self.warmup_s is None else self.warmup_s
        return start_s, inf if is_counted or measured_s is None else start_s + measured_s

    def _requests(self) -> int:
        _, end_s = self._window()
        if self.requests is not None:
            return self.requests
        if self.trace is not None:
            return len(self._trace().sessions)
        workload = find_workload(self.workload)
        if end_s == inf:
            return workload.requests * self.endpoints
        per_s = workload.capacity_rps * self.endpoints if self.users is not None else self.rps
        load_s = parse_spike(self.spike).load_until(end_s) if self.spike else end_s
        return ceil(per_s * load_s * _SLACK) + 100
