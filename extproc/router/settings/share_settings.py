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

    def read(
        self, base: Path, environment: Mapping[str, str], place: str = "share.secret"
    ) -> bytes:
        """Returns the secret without blanks around it; raises `SettingsError`."""
        if self.env is not None:
            if self.env not in environment:
                raise SettingsError(f"{place}.env: there is no variable {self.env}")
            return environment[self.env].strip().encode()
        try:
            return (base / str(self.file)).read_bytes().strip()
        except OSError as error:
            raise SettingsError(
                f"{place}.file: cannot read {self.file}: {error.strerror}"
            ) from error


class MeshSettings(Section):
    """Every gateway has a connection to every other one."""

    listen: Listen = "0.0.0.0:9004"
    """The port for the other gateways, `host:port`."""
    peers: PeersSettings
    """Where the gateways' addresses come from; this gateway may be among them. In Kubernetes use a headless
    Service of their own."""

    @model_validator(mode="after")
    def _are_gateways(self) -> Self:
        if self.listen.startswith("unix:"):
            raise ValueError("the others cannot reach a unix socket")
        return self


class NatsSettings(Section):
    """A NATS server that brings each letter to all others (extra `nats`)."""

    servers: list[Annotated[str, StringConstraints(pattern=r"^(nats|tls)://[^\s@/]+$")]] = Field(
        min_length=1
    )
    """`nats://host:port` each, or `tls://…`."""
    credentials: str | None = None
    """A file with a user's JWT and seed (`.creds`). Relative to the configuration file."""
    user: str | None = None
    """The user name at the server. Give `password`, too."""
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
    """Gateways with the same name and secret share their picks. Messages of others are ignored."""
    secret: SecretSettings
    """16 bytes or more that nobody can guess, the same for all gateways. It encrypts their messages."""
    mesh: MeshSettings | None = None
    """Direct connections, without a broker. For up to about a dozen gateways."""
    nats: NatsSettings | None = None
    """A NATS server. For many gateways."""

    @model_validator(mode="after")
    def _has_a_carrier(self) -> Self:
        if (self.mesh is None) == (self.nats is None):
            raise ValueError("give exactly one of mesh, nats")
        return self
