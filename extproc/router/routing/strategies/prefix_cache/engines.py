"""What engines take for their work: the constants that a cost in milliseconds is made of, by name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct


class EngineCosts(Struct, frozen=True):
    """One vLLM endpoint: `step_ms` is a step that only decodes, of an almost empty engine."""

    prefill_ms_per_token: float
    step_ms: float
    kv_tokens: int


ENGINES: Final[Mapping[str, EngineCosts]] = MappingProxyType(
    {
        "l4-llama8b-fp8": EngineCosts(0.19, 39, 84_000),
        "l4-llama8b-fp8-fitted": EngineCosts(0.19, 39, 60_000),
        "l4-llama8b-fp8-kvfp8": EngineCosts(0.19, 39, 168_000),
        "h100-llama70b-fp8": EngineCosts(0.16, 27, 26_000),
        "h100-llama8b-bf16": EngineCosts(0.03, 6, 430_000),
    }
)
"""The simulator's profiles, by their names there."""

DEFAULT_ENGINE: Final = "l4-llama8b-fp8"
