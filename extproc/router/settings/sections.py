"""What every part of the configuration is made of: a strict section, and texts with a form."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from extproc.errors import SettingsError


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
# As Kubernetes names namespaces and Services.
KubeName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
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


_MOST_SECRET_BYTES: Final = 65_536


class SecretSettings(OneOf):
    """Where a secret is: exactly one of these."""

    file: str | None = None
    """A file with the secret, as a Secret is mounted. Relative to the configuration file."""
    env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """A variable of the environment."""

    def read(
        self, base: Path, environment: Mapping[str, str], place: str = "share.secret"
    ) -> bytes:
        """Returns the secret without blanks around it; raises `SettingsError`."""
        if self.env is not None:
            if self.env not in environment:
                raise SettingsError(f"{place}.env: there is no variable {self.env}")
            return environment[self.env].strip().encode()
        try:
            with (base / str(self.file)).open("rb") as opened:
                secret = opened.read(_MOST_SECRET_BYTES + 1)
        except OSError as error:
            raise SettingsError(
                f"{place}.file: cannot read {self.file}: {error.strerror}"
            ) from error
        if len(secret) > _MOST_SECRET_BYTES:
            raise SettingsError(f"{place}.file: {self.file} has more than 64 KiB: no secret")
        return secret.strip()
