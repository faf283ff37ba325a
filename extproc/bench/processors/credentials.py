"""How a request shows who asks: a key from the environment, a token that changes, or Amazon's signature."""

import asyncio
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from yarl import URL

from extproc.bench.record import Clock
from extproc.bench.spec.tree import Sign, Target
from extproc.errors import ExtprocError, SettingsError

# After a refusal a new token is asked for, but no sooner than this after the last one: every request of a
# load may be refused at once.
_PAUSE_S = 1.0
_COMMAND_S = 30.0


class NoToken(ExtprocError):
    """There is no token to send."""


class Keys(Protocol):
    """Where requests take their key from."""

    async def get(self) -> str | None:
        """Returns the key for a request that is sent now; raises `NoToken`."""
        ...

    def refuse(self) -> None:
        """Tells that the server did not take the key."""
        ...


class FixedKey:
    """One key for the whole run, or none."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    async def get(self) -> str | None:
        return self._key

    def refuse(self) -> None:
        pass


Fetch = Callable[[], Any]
"""Returns an awaitable of a new token; raises `NoToken`."""


class ChangingToken:
    """A token that is fetched again every `every_s`, and after a refusal; many requests wait for one fetch.

    While a new one cannot be had, the old one is kept.
    """

    def __init__(self, fetch: Fetch, every_s: float, clock: Clock) -> None:
        self._fetch, self._every_s, self._clock = fetch, every_s, clock
        self._token: str | None = None
        self._fetched_s = self._due_s = -1e300
        self._lock = asyncio.Lock()

    async def get(self) -> str | None:
        if self._clock() >= self._due_s:
            async with self._lock:
                if self._clock() >= self._due_s:
                    await self._renew()
        return self._token

    async def _renew(self) -> None:
        try:
            self._token = await self._fetch()
        except NoToken:
            if self._token is None:
                raise
        self._fetched_s = self._clock()
        self._due_s = self._fetched_s + self._every_s

    def refuse(self) -> None:
        self._due_s = min(self._due_s, self._fetched_s + _PAUSE_S)


def open_keys(target: Target, api_key: str | None, clock: Clock) -> Keys:
    """Returns what a target says its requests are to show."""
    if target.token_file is not None:
        path = target.token_file
        return ChangingToken(lambda: asyncio.to_thread(_read_token, path), target.token_refresh, clock)
    if target.token_command:
        command = target.token_command
        return ChangingToken(lambda: _run_command(command), target.token_refresh, clock)
    return FixedKey(api_key)


def _read_token(path: Path) -> str:
    try:
        return _check_token(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise NoToken(f"{path}: {getattr(error, 'strerror', None) or 'not text'}") from None


async def _run_command(command: Sequence[str]) -> str:
    """Returns what a command prints. It inherits the environment, and no standard input."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise NoToken(f"{command[0]}: {error.strerror}") from None
    try:
        said, complaint = await asyncio.wait_for(process.communicate(), _COMMAND_S)
    except TimeoutError:
        raise NoToken(f"{command[0]}: no token within {_COMMAND_S:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        lines = complaint.decode("utf-8", "replace").strip().splitlines() or [""]
        raise NoToken(f"{command[0]}: exit status {process.returncode}: {lines[-1]}")
    return _check_token(said.decode("utf-8", "replace"), command[0])


def _check_token(text: str, source: str) -> str:
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise NoToken(f"{source}: no token in it")
    return token


class Signer:
    """Amazon's Signature Version 4, through its Common Runtime.

    The runtime, not botocore: that one does not install beside the Kubernetes client (python-dateutil).
    Credentials come from its default chain, which renews them itself.
    """

    def __init__(self, sign: Sign, provider: Any = None, now: Callable[[], datetime] | None = None) -> None:
        self._auth, self._http = _import_runtime()
        self._sign = sign
        self._provider = provider or self._open_provider(sign.profile)
        self._now = now or (lambda: datetime.now(UTC))

    def _open_provider(self, profile: str | None) -> Any:
        providers = self._auth.AwsCredentialsProvider
        return providers.new_profile(profile_name=profile) if profile else providers.new_default_chain()

    async def sign(self, method: str, url: str, body: bytes) -> Mapping[str, str]:
        """Returns the headers to add; raises `NoToken` where there are no credentials."""
        target = URL(url)
        request = self._http.HttpRequest(
            method,
            target.raw_path_qs,
            self._http.HttpHeaders([("host", _name_host(target))]),
            io.BytesIO(body),
        )
        config = self._auth.AwsSigningConfig(
            algorithm=self._auth.AwsSigningAlgorithm.V4,
            signature_type=self._auth.AwsSignatureType.HTTP_REQUEST_HEADERS,
            credentials_provider=self._provider,
            region=self._sign.region,
            service=self._sign.service,
            date=self._now(),
        )
        try:
            await asyncio.wrap_future(self._auth.aws_sign_request(request, config))
        except Exception as error:  # the runtime raises bare exceptions of its own
            raise NoToken(f"target.sign: {error}") from error
        return {name: value for name, value in request.headers if name.lower() != "host"}


def _name_host(url: URL) -> str:
    """The host as the client's header has it: without the scheme's own port."""
    host = url.raw_host or ""
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if url.is_default_port() else f"{bracketed}:{url.port}"


def _import_runtime() -> tuple[Any, Any]:
    try:
        from awscrt import auth, http  # noqa: PLC0415  an optional extra
    except ImportError:
        raise SettingsError("target.sign needs the extra `aws`") from None
    return auth, http
