"""What `extproc check` finds beyond the settings: files, variables, pools that no request can reach."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from extproc.documents import Place, parse_document, read_file, refuse_faults
from extproc.errors import SettingsError
from extproc.router.cluster.file import parse_endpoints
from extproc.router.routing.strategies.base import ClockAndRandom
from extproc.router.service.transport import build_certificates
from extproc.router.service.wiring import PoolWiring, build_courier
from extproc.router.settings.pool_settings import PoolSettings
from extproc.router.settings.reading import find_faults
from extproc.router.settings.sections import SecretSettings
from extproc.router.settings.server_settings import TlsSettings
from extproc.router.settings.share_settings import ShareSettings
from extproc.router.settings.tree import Settings

S = TypeVar("S", bound=BaseModel)


def check_file(path: Path, environment: Mapping[str, str]) -> Settings:
    """Returns the settings. Raises `SettingsError` with every fault, in the order of lines.

    The parts of the service are tried, too; of each section that is valid by itself.
    """
    document = parse_document(read_file(path), str(path), refuses_repeats=False)
    settings, faults = find_faults(document, environment)
    for place, part in _parts(document.tree, path.parent, environment):
        try:
            part()
        except SettingsError as error:
            text, name = str(error), ".".join(map(str, place))
            faults.append(
                document.fault(place, text if text.startswith(name) else f"{name}: {text}")
            )
    if settings is not None:
        faults += [document.fault(("pools", place), text) for place, text in settings.unreachable()]
    if settings is None or faults:
        raise refuse_faults(faults)
    return settings


def list_absent(settings: Settings, environment: Mapping[str, str]) -> list[str]:
    """Returns the variables with secrets that are not here: a file is checked far from its Pods, too."""
    secrets = [*_secrets(settings.share), *(pool.engine_key for pool in settings.pools)]
    return _absent(secrets, environment)


def _secrets(share: ShareSettings | None) -> Sequence[SecretSettings | None]:
    return () if share is None else (share.secret, share.nats.password if share.nats else None)


def _absent(secrets: Iterable[SecretSettings | None], environment: Mapping[str, str]) -> list[str]:
    names = dict.fromkeys(secret.env for secret in secrets if secret is not None and secret.env)
    return [name for name in names if name not in environment]


def _parts(
    tree: Any, base: Path, environment: Mapping[str, str]
) -> Iterator[tuple[Place, Callable[[], object]]]:
    outside = ClockAndRandom(Random(), monotonic)  # noqa: S311  # chances, not secrets
    server, pools = tree.get("server"), tree.get("pools")
    if tls := _section(TlsSettings, server.get("tls") if isinstance(server, dict) else None):
        files = {name: getattr(tls, name) for name in ("certificate", "key", "client_ca")}
        missing = [name for name, path in files.items() if path and not (base / path).is_file()]
        for name in missing:
            yield ("server", "tls", name), partial(read_file, base / files[name])
        if not missing:
            yield ("server", "tls"), build_certificates(tls, base).context
    share = _section(ShareSettings, tree.get("share"))
    if share and not _absent(_secrets(share), environment):
        secret = next(iter(share.secret.model_fields_set))
        yield ("share", "secret", secret), partial(build_courier, share, base, environment, outside)
    for number, each in enumerate(pools if isinstance(pools, list) else ()):
        if pool := _section(PoolSettings, each):
            place = ("pools", number, "endpoints")
            yield place, partial(PoolWiring(base, outside, environment).source, pool)
            if not _absent([pool.engine_key], environment):
                yield (
                    ("pools", number, "engine_key"),
                    partial(pool.engine_headers, base, environment),
                )
            if path := pool.endpoints.file:
                yield (*place, "file"), partial(_read_endpoints, base / path)


def _read_endpoints(path: Path) -> None:
    parse_endpoints(read_file(path), str(path))


def _section(kind: type[S], tree: Any) -> S | None:
    try:
        return kind.model_validate(tree)
    except ValidationError:
        return None
