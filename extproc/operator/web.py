"""What the operator shows: / /reports /metrics /healthz /readyz.

It changes nothing, and asks nobody who they are: a NetworkPolicy says who gets here.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from aiohttp import web

from extproc.bench.report.outputs import REPORTS
from extproc.errors import SettingsError
from extproc.operator.metrics import describe_benchmarks, describe_operator
from extproc.operator.page import build_page
from extproc.operator.shown import Body, read_status
from extproc.router.service.exposition import answer_metrics

# A page of ours has no script. A report is whatever a Pod of a run has written: it gets no origin, either.
_RULES: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _RULES,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_SANDBOX: Final = {**_HEADERS, "content-security-policy": f"{_RULES}; sandbox"}
# A page that shows a run as it goes is read again without anybody's doing.
_AGAIN_S: Final = 15


class Known(Protocol):
    """What is shown: Benchmarks by namespace and name, whether they were ever listed, and who acts."""

    @property
    def known(self) -> Mapping[tuple[str, str], Body]: ...

    @property
    def has_listed(self) -> bool: ...

    @property
    def is_leading(self) -> asyncio.Event: ...


@asynccontextmanager
async def showing(known: Known, listen: tuple[str, int], reports: Path | None) -> AsyncIterator[None]:
    """Serves for as long as the context lasts; raises `SettingsError` for an address that cannot be had."""
    runner = web.AppRunner(build_web(known, reports), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        host, port = listen
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise SettingsError(f"--listen {host}:{port}: {error.strerror}") from None
        yield
    finally:
        await runner.cleanup()


def build_web(known: Known, reports: Path | None) -> web.Application:
    app, shown = web.Application(client_max_size=0), _Shown(known, reports)
    app.router.add_get("/", shown.page)
    app.router.add_get("/reports/{namespace}/{name}/{run}/{file}", shown.report)
    app.router.add_get("/metrics", shown.metrics)
    app.router.add_get("/healthz", shown.healthz)
    app.router.add_get("/readyz", shown.readyz)
    return app


class _Shown:
    def __init__(self, known: Known, reports: Path | None) -> None:
        self._known, self._reports = known, reports

    async def page(self, _: web.Request) -> web.Response:
        bodies = self._list()
        text = await asyncio.to_thread(build_page, bodies, self._has_report)
        is_moving = any(read_status(body)["phase"] == "Running" for body in bodies)
        headers = {**_HEADERS, **({"refresh": str(_AGAIN_S)} if is_moving else {})}
        return web.Response(text=text, content_type="text/html", headers=headers)

    async def report(self, request: web.Request) -> web.StreamResponse:
        asked = request.match_info
        body = self._known.known.get((asked["namespace"], asked["name"]))
        path = (
            None if body is None else await asyncio.to_thread(self._find, body, asked["run"], asked["file"])
        )
        if path is None:
            raise web.HTTPNotFound(text="there is no such report here\n")
        return web.FileResponse(path, headers=_SANDBOX)

    async def metrics(self, request: web.Request) -> web.Response:
        """One replica tells of Benchmarks: two of them would make everything twice."""
        is_leading = self._known.is_leading.is_set()
        told = describe_benchmarks(self._list()) if is_leading else ()
        return await answer_metrics(request, [describe_operator(is_leading=is_leading), *told])

    async def healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(self, _: web.Request) -> web.Response:
        if self._known.has_listed:
            return web.Response(text="ready\n")
        return web.Response(status=503, text="the Benchmarks were never listed\n")

    def _list(self) -> list[Body]:
        return [body for _, body in sorted(self._known.known.items())]

    def _has_report(self, body: Body, run: str) -> bool:
        return self._find(body, run, "report.html") is not None

    def _find(self, body: Body, run: str, file: str) -> Path | None:
        return None if self._reports is None else find_report(self._reports, body, run, file)


def find_report(root: Path, body: Body, run: str, file: str) -> Path | None:
    """The file of a run's report below `root`/namespace/claim; `None` if it cannot be read.

    Everything but `file` is of the Benchmark's status, and nothing that leads out of `root` is taken.
    """
    status, metadata = read_status(body), body["metadata"]
    claim = status["report"].partition("/")[0]
    runs = {status["run"], *(entry["run"] for entry in status["history"])}
    if not claim or run not in runs or file not in REPORTS:
        return None
    with suppress(OSError, ValueError):  # no name of a file
        path = (root / metadata["namespace"] / claim / metadata["name"] / run / file).resolve()
        return path if path.is_relative_to(root.resolve()) and path.is_file() else None
    return None
