"""Faults on purpose: what a simulated endpoint does wrong, for tests and demonstrations."""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from extproc.errors import SettingsError

Rate = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to one request."""

    hangs: bool
    fails: bool
    closes: bool


class Faults(BaseModel):
    """What goes wrong. Rates are shares of the requests to a serving API; times are real seconds.

    `delay_s` passes before a request is read; an error is answered with `error_status`; a request
    that hangs is accepted and never answered; one that is closed loses its connection after
    `close_after` pieces of its stream (of a whole answer: before any byte). With `slow_start_s` the
    port opens that long after the process started, as if a model was loading; `is_sick` lets
    `/health` answer 503.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    delay_s: Seconds = 0
    error_rate: Rate = 0
    error_status: Annotated[int, Field(ge=500, le=599)] = 500
    hang_rate: Rate = 0
    close_rate: Rate = 0
    close_after: Annotated[int, Field(ge=0)] = 1
    slow_start_s: Seconds = 0
    is_sick: bool = False

    @classmethod
    def parse(cls, pairs: Iterable[str]) -> Self:
        """Reads `name=value` pairs; raises `SettingsError` naming every fault in them."""
        try:
            return cls.model_validate(dict(pair.partition("=")[::2] for pair in pairs))
        except ValidationError as fault:
            lines = (f"{error['loc'][0]}: {error['msg']}" for error in fault.errors())
            raise SettingsError("; ".join(lines)) from None

    def draw(self, random: Random) -> Fate:
        """Decides what happens to one request."""
        return Fate(
            hangs=random.random() < self.hang_rate,
            fails=random.random() < self.error_rate,
            closes=random.random() < self.close_rate,
        )
