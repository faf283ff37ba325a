"""What every part of the configuration is made of: a strict section, and texts with a form."""

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, model_validator


def _has_port(listen: str) -> str:
    port = listen.rpartition(":")[2]
    if not listen.startswith("unix:") and int(port) >= 65536:
        raise ValueError(f"{port} is not a port")
    return listen


# Names become metric labels, header values and cluster names of Envoy: nothing that needs escaping.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
Listen = Annotated[
    str,
    StringConstraints(pattern=r"^(unix:/\S+|\[?[^\s/\]]*\]?:\d{1,5})$"),
    AfterValidator(_has_port),
]
# As Kubernetes names objects.
ObjectiveName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
HostPort = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+:\d{1,5}$")]


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class OneOf(Section):
    """A section of which exactly one member is given."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"give exactly one of {', '.join(type(self).model_fields)}")
        return self
