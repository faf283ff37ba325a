"""What there is of a Benchmark, and what can be done about it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from extproc.bench.status_server import RunStatus
from extproc.operator.objects import Object
from extproc.operator.resource import Benchmark

Key = tuple[str, str]
"""A namespace and a name."""


@dataclass(frozen=True, slots=True)
class JobState:
    """A Job of ours, as far as it matters. `failure` is why it failed, in the words of the Job controller."""

    name: str
    run: str
    part: str
    uid: str
    started: datetime | None = None
    finished: datetime | None = None
    failure: str | None = None
    due: datetime | None = None
    is_deleting: bool = False

    @property
    def is_over(self) -> bool:
        return self.finished is not None


@dataclass(frozen=True, slots=True)
class PodStart:
    """How the Pods of a run start: whether all have, else the first's own reason, and since when it waits."""

    has_started: bool
    reason: str = ""
    message: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class LastWords:
    """What the Pod of a run's main Job ended with: its exit status, and its termination message."""

    exit_code: int
    text: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """What there is: the Benchmark's Jobs, how their Pods start and ended by run; why it cannot be run.

    `notices` are what the Pods of running Jobs report, by run. `router` is the ConfigMap that the
    spec names, `switched` are those that the Benchmark has.
    """

    jobs: tuple[JobState, ...] = ()
    starts: Mapping[str, PodStart] = field(default_factory=dict)
    last_words: Mapping[str, LastWords] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    notices: Mapping[str, RunStatus] = field(default_factory=dict)
    router: Object | None = None
    switched: tuple[Object, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """A Benchmark as it was found, `None` for one that is gone, and what there is of it.

    `benchmark` is `None` where its spec cannot be read; `refused` says why.
    """

    body: Object | None
    observed: Observation
    benchmark: Benchmark | None = None
    refused: str = ""

    @property
    def is_gone(self) -> bool:
        return self.body is None or bool(self.body["metadata"].get("deletionTimestamp"))


@dataclass(frozen=True, slots=True)
class Create:
    """Makes an object; one that is there already is as good."""

    body: Object


@dataclass(frozen=True, slots=True)
class Replace:
    """Replaces a ConfigMap, if it is still the one that was read."""

    body: Object


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes a Job and its Pods, which get time to write their results; one that is gone is no error."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replaces the status."""

    status: Object


Action = Create | Replace | Delete | WriteStatus
