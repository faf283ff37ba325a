"""Which configuration is in force, since when, and why the last other one is not."""

from typing import Self

import yaml
from msgspec import Struct
from msgspec.structs import replace

from extproc.settings import Settings


class Refusal(Struct, frozen=True):
    """A changed file that was not taken: when, by the clock, and what was wrong."""

    at_s: float
    why: str


class Configuration(Struct, frozen=True):
    """The settings in force. `number` counts them from 1; `where` they came from is a file, or `flags`."""

    settings: Settings
    where: str
    since_s: float
    number: int = 1
    refusal: Refusal | None = None

    def refused(self, why: str, now_s: float) -> Self:
        return replace(self, refusal=Refusal(now_s, why))

    def replaced(self, settings: Settings, now_s: float) -> Self:
        return replace(self, settings=settings, since_s=now_s, number=self.number + 1, refusal=None)

    def text(self) -> str:
        """As YAML: what was set, by the file or the environment. No secrets: settings name files of them."""
        tree = self.settings.model_dump(mode="json", exclude_unset=True)
        return str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=100))
