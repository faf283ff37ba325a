"""How gateways share their picks, as the configuration says it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from extproc.errors import SettingsError
from extproc.router.settings.endpoints import PeersSettings
from extproc.router.settings.sections import Listen, Name, OneOf, Section


class SecretSettings(OneOf):
    """Where the cluster's secret is: exactly one of these."""

    file: str | None = None
    """A file with the secret, as a Secret is mounted. Relative to the configuration file."""
    env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """A variable of the environment."""

    def read(self, base: Path, environment: Mapping[str, str], place: str = "share.secret") -> bytes:
        """Returns the secret without blanks around it; raises `SettingsError`."""
        if self.env is not None:
            if self.env not in environment:
                raise SettingsError(f"{place}.env: there is no variable {self.env}")
            return environment[self.env].strip().encode()
        try:
            return (base / str(self.file)).read_bytes().strip()
        except OSError as error:
            raise SettingsError(f"{place}.file: cannot read {self.file}: {error.strerror}") from error


class MeshSettings(Section):
    """Every gateway has a line to every other one."""

    listen: Listen = "0.0.0.0:9004"
    """Where the others' lines come in, `host:port`."""
    peers: PeersSettings
    """Where the gateways' addresses come from, with or without this one: in Kubernetes a headless Service of
    their own."""

    @model_validator(mode="after")
    def _are_gateways(self) -> Self:
        if self.listen.startswith("unix:"):
            raise ValueError("the others cannot reach a unix socket")
        return self


class NatsSettings(Section):
    """A NATS server that brings each letter to all others (extra `nats`)."""

    servers: list[Annotated[str, StringConstraints(pattern=r"^(nats|tls)://[^\s@/]+$")]] = Field(min_length=1)
    """`nats://host:port` each, or `tls://…`."""
    credentials: str | None = None
    """A file with a user's JWT and seed (`.creds`). Relative to the configuration file."""
    user: str | None = None
    """Our user name at the server; with `password`."""
    password: SecretSettings | None = None
    """Where that user's password is."""
    ca: str | None = None
    """PEM file with the authorities of the servers' certificates; omitted, with `tls://`: the system's."""

    @model_validator(mode="after")
    def _has_both(self) -> Self:
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password go together")
        return self


class ShareSettings(Section):
    """Exchange of picks with other gateways. A change takes effect with a restart."""

    cluster: Name
    """Gateways of one name and secret share; those of another installation are not understood."""
    secret: SecretSettings
    """16 bytes or more that nobody can guess, the same for all: messages are sealed with it."""
    mesh: MeshSettings | None = None
    """Without a broker, for up to a dozen gateways or so."""
    nats: NatsSettings | None = None
    """For many."""

    @model_validator(mode="after")
    def _has_a_carrier(self) -> Self:
        if (self.mesh is None) == (self.nats is None):
            raise ValueError("give exactly one of mesh, nats")
        return self
