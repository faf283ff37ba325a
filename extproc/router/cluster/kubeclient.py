"""Clients of the Kubernetes API, with the credentials as they are now."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_kube_config
from kubernetes.aio.config.incluster_config import SERVICE_HOST_ENV_NAME, InClusterConfigLoader

from extproc.router.cluster.kube_api import WatchLost
from extproc.router.cluster.reason import describe_error, shorten

# What the client's loaders raise; for a half-written file the built-in ones.
_UNUSABLE: Final = (
    ConfigException,
    yaml.YAMLError,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
)


@dataclass(frozen=True, slots=True)
class KubeClients:
    """Opens clients of one cluster: that of a kubeconfig, or the one we run in.

    Each `open` reads the credentials again, so a rotated token, a changed certificate authority or
    an expired login is a matter of the next try. Without a `kubeconfig` it is the Pod's service
    account inside a cluster, ~/.kube/config outside.
    """

    kubeconfig: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    service_account: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")

    async def open(self) -> ApiClient:
        """Raises `WatchLost` if there are no usable credentials."""
        configuration = Configuration()
        try:
            await self._load(configuration)
            # Editors and `echo` end a file with a newline; no header may.
            for name, key in configuration.api_key.items():
                scheme, _, token = key.partition(" ")
                configuration.api_key[name] = f"{scheme} {token.strip()}"
            return ApiClient(configuration)
        except ConfigException as error:
            raise _unusable(shorten(str(error))) from error
        except _UNUSABLE as error:
            raise _unusable(describe_error(error)) from error

    async def _load(self, configuration: Configuration) -> None:
        if self.kubeconfig is not None or SERVICE_HOST_ENV_NAME not in self.environment:
            await load_kube_config(
                self.kubeconfig, client_configuration=configuration, persist_config=False
            )
            return
        loader = InClusterConfigLoader(
            str(self.service_account / "token"),
            str(self.service_account / "ca.crt"),
            # A client lives as long as one watch, and would put the token back as the file has it.
            try_refresh_token=False,
            environ=self.environment,
        )
        loader.load_and_set(configuration)

    def own_namespace(self) -> str:
        """Returns the Pod's namespace, `default` where we are in none."""
        try:
            return (self.service_account / "namespace").read_text(
                encoding="utf-8"
            ).strip() or "default"
        except OSError:
            return "default"


def _unusable(reason: str) -> WatchLost:
    return WatchLost("credentials", reason, keeps_version=True)
