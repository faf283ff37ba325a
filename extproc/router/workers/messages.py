"""What the parent and its workers tell each other."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from extproc.router.routing.endpoint import Endpoint
from extproc.router.workers.spread import Held

# Workers at most; tickets have their owner's number as their remainder.
LANES: Final = 64


class Welcome(Struct, frozen=True, tag=True):
    """The first word to a worker, number `lane` of `count`: all that it starts from.

    `content` is the settings' text, of the file at `path` or as flags would say it, and `first` what it was
    when the parent began: some sections stay as they were. `secret` is for letters among workers, drawn anew
    at each start.
    """

    lane: int
    count: int
    directory: str
    path: str | None
    first: bytes
    content: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"<Welcome to {self.lane} of {self.count}>"


class Changed(Struct, frozen=True, tag=True):
    """The settings file has this content now, and it is good."""

    content: bytes


class Refused(Struct, frozen=True, tag=True):
    """The settings file has another content now, which is not good."""

    why: str


class Listed(Struct, frozen=True, tag=True):
    """A source's whole list, which was still true so long ago."""

    key: str
    endpoints: Sequence[Endpoint]
    age_s: float = 0.0


class Confirmed(Struct, frozen=True, tag=True):
    """The list that a source told last still holds."""

    key: str


class Restarted(Struct, frozen=True, tag=True):
    """A source was lost, or its watch ended in its time (no `reason`)."""

    key: str
    why: str
    reason: str | None


class Lacking(Struct, frozen=True, tag=True):
    """What a source is to tell of is not there."""

    key: str
    why: str
    reason: str


class Prioritised(Struct, frozen=True, tag=True):
    """The priorities of an InferencePool's objectives, confirmed so long ago; `None`: nobody knows any."""

    key: str
    priorities: Mapping[str, int]
    age_s: float | None


class Forgotten(Struct, frozen=True, tag=True):
    """A source that is followed no more."""

    key: str


class Leave(Struct, frozen=True, tag=True):
    """Drain and end; said a second time: at once."""


class LetGo(Struct, frozen=True, tag=True):
    """Let one connection that brings requests go, as its requests end."""


Told = Listed | Confirmed | Restarted | Lacking | Prioritised | Forgotten
"""What the parent's sources say."""

ToWorker = Welcome | Changed | Refused | Told | Leave | LetGo


class Serving(Struct, frozen=True, tag=True):
    """Connections can come, to this process."""

    pid: int


class Ready(Struct, frozen=True, tag=True):
    """Whether the worker can route: why not, or nothing."""

    faults: Sequence[str]


class CannotStart(Struct, frozen=True, tag=True):
    """The worker's last word: what an operator has to put right."""

    why: str


ToParent = Serving | Ready | CannotStart | Held
