"""Profiles: what one simulated endpoint can do, and how long a step takes it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, TypeAdapter, with_config

from extproc.documents import parse_document
from extproc.errors import SettingsError

DEFAULT_PROFILE: Final = "l4-llama8b-fp8"

Count = Annotated[int, Field(gt=0)]
Cost = Annotated[float, Field(ge=0)]


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True)
class Profile:
    """One endpoint's speed, memory and vLLM settings.

    The costs are those of `step_s` and `way_s`; `kv_tokens` is the size of the KV cache, the rest are vLLM's
    options of the same names. `is_calibrated` says that the costs were fitted to a measurement,
    `note` to which, or what else they come from, `misses` where measurements differ. Raises
    `ValueError` if the KV cache cannot hold one request of `max_model_len`: vLLM does not start
    then either.
    """

    name: str
    base_ms: Cost
    kv_us_per_ctx_token: Cost
    prefill_ms_per_token: Cost
    kv_tokens: Count
    block_size: Count
    max_num_batched_tokens: Count
    max_num_seqs: Count
    max_model_len: Count
    attention_ns: Cost = 0.0
    floor_ms: Cost = 0.0
    way_ms: Cost = 0.0
    way_us_per_token: Cost = 0.0
    is_calibrated: bool = False
    note: str = ""
    misses: str = ""

    def __post_init__(self) -> None:
        if self.blocks * self.block_size < self.max_model_len:
            raise ValueError(f"{self.name}: the KV cache holds less than max_model_len")
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ValueError(f"{self.name}: max_num_seqs exceeds max_num_batched_tokens")

    @property
    def blocks(self) -> int:
        """How many whole blocks the KV cache has."""
        return self.kv_tokens // self.block_size

    def step_s(self, context_tokens: float, prefill_tokens: int, pairs: float = 0.0) -> float:
        """Returns how long a step takes, in seconds.

        `context_tokens` counts every scheduled request's tokens in the KV cache at the end of the
        step, `prefill_tokens` the prompt tokens computed in it, `pairs` these with each token
        before them: a base, a read of all those keys and values, the arithmetic of the prompts, and
        their attention. A step with prompts takes at least `floor_ms`, in which their kernels are launched.
        """
        milliseconds = (
            self.base_ms
            + self.kv_us_per_ctx_token * context_tokens / 1000
            + self.prefill_ms_per_token * prefill_tokens
            + self.attention_ns * pairs / 1_000_000
        )
        return max(milliseconds, self.floor_ms if prefill_tokens else 0.0) / 1000

    def way_s(self, prompt_tokens: int) -> float:
        """Returns how long a request is on its way to the engine's scheduler, in seconds.

        HTTP, the chat template and the tokenizer: it holds up nobody else.
        """
        return self.way_ms / 1000 + self.way_us_per_token * prompt_tokens / 1_000_000

    def slowed(self, factor: float) -> "Profile":
        """Returns a profile whose every step takes `factor` times as long."""
        return replace(
            self,
            base_ms=self.base_ms * factor,
            kv_us_per_ctx_token=self.kv_us_per_ctx_token * factor,
            prefill_ms_per_token=self.prefill_ms_per_token * factor,
            attention_ns=self.attention_ns * factor,
            floor_ms=self.floor_ms * factor,
        )


def read_profiles(content: bytes | str, where: str = "profiles") -> dict[str, Profile]:
    """Reads profiles by name from YAML; raises `SettingsError` with every fault and where it is."""
    document = parse_document(content, where)
    if not isinstance(document.tree, Mapping):
        raise SettingsError(f"{where}:1: expected a mapping of names to profiles")
    return document.validate(_validate)


def _validate(tree: Mapping[str, Any]) -> dict[str, Profile]:
    named = {
        name: {"name": name, **fields} if isinstance(fields, Mapping) else fields
        for name, fields in tree.items()
    }
    return _profiles.validate_python(named)


_profiles = TypeAdapter(dict[str, Profile])


def built_in_profiles() -> dict[str, Profile]:
    """Returns the profiles that come with the package."""
    return read_profiles(
        files("extproc.simulator.engine").joinpath("profiles.yaml").read_text("utf-8")
    )


def find_profile(name: str) -> Profile:
    """Returns the profile called `name`, or the first one of the YAML file of that name.

    Raises `SettingsError` if there is neither.
    """
    profiles = built_in_profiles()
    if name in profiles:
        return profiles[name]
    try:
        content = Path(name).read_bytes()
    except OSError:
        raise SettingsError(f"{name!r} is no file and none of {', '.join(profiles)}") from None
    found = read_profiles(content, name)
    if not found:
        raise SettingsError(f"{name}: no profile in it")
    return next(iter(found.values()))
