"""The fields of requests that the simulator reads; others are accepted and ignored.

Names and limits are vLLM 0.32's; pydantic's errors are what vLLM itself sends to clients.
"""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from extproc.simulator.http.refusals import Refusal, refuse_shape, refuse_value

MOST_ANSWERS = 16_384
Token = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Fields(BaseModel):
    model_config = ConfigDict(extra="ignore")

    @classmethod
    def read(cls, body: object) -> Self:
        """Returns a decoded body's fields; raises `Refusal` with every fault of its shape."""
        try:
            return cls.model_validate(body, from_attributes=True)
        except ValidationError as fault:
            raise refuse_shape(fault.errors(include_url=False)) from None


class StreamOptions(Fields):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class Part(Fields):
    """One part of a message: text, or anything else, which the simulator reads as its own JSON."""

    model_config = ConfigDict(extra="allow")
    type: str = "text"
    text: str | None = None

    @property
    def content(self) -> str:
        return self.model_dump_json() if self.text is None else self.text


class Message(Fields):
    role: str
    content: str | list[Part] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class Sampling(Fields):
    """What chat and text completions have in common."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int = 1
    seed: int | None = None
    temperature: float | None = None
    cache_salt: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    echo: bool | None = False

    def check(self) -> None:
        """Raises `Refusal` for values that vLLM refuses."""
        if self.stream_options is not None and not self.stream:
            raise Refusal(
                "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
                param="stream_options",
            )
        self._check_n(self.n)
        if self.min_tokens < 0:
            raise Refusal(f"min_tokens must be greater than or equal to 0, got {self.min_tokens}.")
        if self.cache_salt == "":
            message = "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)"
            raise Refusal(message, param="cache_salt")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            message = f"temperature must be in [0, 2], got {self.temperature}."
            raise refuse_value(message, "temperature", self.temperature)

    @staticmethod
    def _check_n(n: int) -> None:
        if n < 1:
            raise Refusal(f"n must be at least 1, got {n}.")
        if n > MOST_ANSWERS:
            raise Refusal(
                f"n must be at most {MOST_ANSWERS}, got {n}. "
                "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
            )

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def wants_continuous_usage(self) -> bool:
        return self.wants_usage and (
            self.stream_options is not None and self.stream_options.continuous_usage_stats
        )
