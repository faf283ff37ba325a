"""A cluster as small as it can be: it holds what the operator made, and Jobs that end when a test says so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from extproc.bench.report.brief import Brief, encode_brief
from extproc.bench.status_server import RunStatus
from extproc.operator import state
from extproc.operator.objects import DUE_ANNOTATION, MAIN, PART_LABEL, PARTS, RUN_LABEL
from extproc.operator.reconcile import reconcile, refuse_spec
from extproc.operator.resource import SpecRefused, parse_benchmark, read_time
from extproc.operator.router import SWITCHED_LABEL

Object = dict[str, Any]
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
HELD = {SWITCHED_LABEL: "b"}
SPEC: Object = {
    "endpoint": "llm:8000",
    "performance": {"traffic-shape": {"req-rate": 10, "duration": 100}},
}


def brief_json(
    *, is_good: bool = True, title: str = "valid", faults: Sequence[str] = (), **figures: float
) -> str:
    return encode_brief(Brief(title, is_good, tuple(faults), (), dict(figures))).decode()


@dataclass
class World:
    """One Benchmark, and whatever was made for it. `made` counts how often an object was really created."""

    spec: Object = field(default_factory=lambda: dict(SPEC))
    now: datetime = NOON
    status: Object = field(default_factory=dict)
    generation: int = 1
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    jobs: dict[str, state.JobState] = field(default_factory=dict)
    # Pods of a Job run at once unless a test says what they wait for.
    starts: dict[str, state.PodStart] = field(default_factory=dict)
    words: dict[str, state.LastWords] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    notices: dict[str, RunStatus] = field(default_factory=dict)
    routers: dict[str, Object] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)

    def body(self) -> Object:
        metadata = {
            "name": "b",
            "namespace": "default",
            "uid": "u",
            "generation": self.generation,
            "creationTimestamp": "2026-11-22T11:00:30Z",
        }
        return {"metadata": metadata, "spec": self.spec, "status": self.status}

    def change(self, **spec: Any) -> None:
        self.spec = self.spec | {name.replace("_", "-"): value for name, value in spec.items()}
        self.generation += 1

    def decide(self) -> list[state.Action]:
        held = [each for each in self.routers.values() if each["metadata"].get("labels") == HELD]
        observed = state.Observation(
            tuple(self.jobs.values()),
            self._read_starts(),
            self.words,
            self.faults,
            self.notices,
            switched=tuple(held),
        )
        try:
            benchmark = parse_benchmark(self.body())
        except SpecRefused as refused:
            return refuse_spec(self.body(), str(refused), observed, self.now)
        router = self.routers.get(benchmark.operation.router.config_map or "")
        observed = replace(observed, router=router)
        return reconcile(benchmark, observed, self.now, image="image:1")

    def _read_starts(self) -> dict[str, state.PodStart]:
        return {
            job.run: state.PodStart(has_started=True) for job in self.jobs.values()
        } | self.starts

    def act(self, action: state.Action) -> None:
        match action:
            case state.WriteStatus(status):
                self.status = status
            case state.Replace(made):
                self.routers[made["metadata"]["name"]] = made
            case state.Delete(name, uid):
                job = self.jobs[name]
                assert job.uid == uid
                self.jobs[name] = replace(job, is_deleting=True)
            case state.Create(made):
                self._create(made)

    def _create(self, made: Object) -> None:
        metadata = made["metadata"]
        key = made["kind"], metadata["name"]
        if key in self.objects:
            return
        self.objects[key] = made
        self.made.append("/".join(key))
        if made["kind"] == "Job":
            due = metadata.get("annotations", {}).get(DUE_ANNOTATION)
            self.jobs[metadata["name"]] = state.JobState(
                name=metadata["name"],
                run=metadata["labels"][RUN_LABEL],
                part=metadata["labels"][PART_LABEL],
                uid=f"uid-{len(self.made)}",
                started=self.now,
                due=read_time(due) if due else None,
            )

    def settle(self, most: int = 10) -> None:
        """Lets the operator act until it has nothing to do; deleted Pods are gone at once."""
        for _ in range(most):
            actions = self.decide()
            if not actions:
                return
            for action in actions:
                self.act(action)
            self.collect()
        raise AssertionError(f"never content: {self.decide()}")

    def collect(self) -> None:
        for job in [job for job in self.jobs.values() if job.is_deleting]:
            del self.jobs[job.name], self.objects["Job", job.name]

    def after(self, **span: float) -> None:
        self.now += timedelta(**span)

    def end(self, words: str = "", exit_code: int = 0, failure: str | None = None) -> str:
        """Ends the run that goes, its parts first; returns its run."""
        for parts in self.active(lambda job: job.part == PARTS):
            self.jobs[parts.name] = replace(parts, finished=self.now)
            self.settle()
        (job,) = self.active(lambda job: job.part == MAIN)
        self.jobs[job.name] = replace(job, finished=self.now, failure=failure)
        if words:
            self.words[job.run] = state.LastWords(exit_code, words)
        return job.run

    def active(
        self, claim: Callable[[state.JobState], bool] = lambda _: True
    ) -> list[state.JobState]:
        return [
            job for job in self.jobs.values() if not (job.is_over or job.is_deleting) and claim(job)
        ]

    def condition(self, kind: str) -> tuple[str, str]:
        (found,) = [each for each in self.status["conditions"] if each["type"] == kind]
        return found["status"], found["reason"]
