"""What the operator serves: / /reports /metrics /healthz /readyz.

It changes nothing and has no login: a NetworkPolicy says who gets here.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from itertools import islice
from pathlib import Path
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import choose_encoder

from extproc.bench.report.outputs import REPORTS
from extproc.bench.status_server import serve_app
from extproc.operator.page import Body, build_runs_page, read_status
from extproc.operator.resource import read_time
from extproc.operator.state import Key
from extproc.operator.watches import WatchHealth

PHASES: Final = (
    "Refused",
    "Waiting",
    "Starting",
    "Running",
    "Valid",
    "Invalid",
    "Failed",
    "Suspended",
)
_ENDS: Final = ("Valid", "Invalid", "Failed")
# The operator writes a few; others that may write a status must not fill a Prometheus.
_MOST_FIGURES: Final = 50
_TIMES: Final = {
    "last_run_started": ("startedAt", "Begin of the run shown"),
    "last_run_finished": ("finishedAt", "End of the last run"),
    "next_run": ("nextRunAt", "When the schedule is due next"),
}
_WATCH: Final = (
    "1 while a resource is listed and watched, 0 before its first list and after 30 s of failures"
)


def fill_registry(bodies: Sequence[Body], healths: Sequence[WatchHealth]) -> CollectorRegistry:
    """A series for each Benchmark and what its status holds; what a status does not have has no line."""
    registry = CollectorRegistry()
    watches = Gauge("extproc_operator_watch_up", _WATCH, ["resource"], registry=registry)
    for health in healths:
        watches.labels(health.resource).set(health.is_up)

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        of = ("namespace", "benchmark", *labels)
        return Gauge(f"extproc_benchmark_{name}", text, of, registry=registry)

    info = gauge("info", "What is measured; always 1", "mode", "model")
    phase = gauge("phase", "1 for the phase that it is in, 0 for the others", "phase")
    progress = gauge("progress_ratio", "How much of it is over")
    figure = gauge(
        "figure", "A headline figure of the last run, by its name in the status", "figure"
    )
    runs = gauge("runs", "Runs that the status remembers, by how they ended", "phase")
    regressions = gauge("regressions", "Figures that are worse than in the valid runs before")
    times = {name: gauge(f"{name}_timestamp_seconds", text) for name, (_, text) in _TIMES.items()}
    for body in bodies:
        status, spec = read_status(body), body.get("spec") or {}
        own = body["metadata"]["namespace"], body["metadata"]["name"]
        info.labels(
            *own, spec.get("mode", "run"), (spec.get("target") or {}).get("model") or ""
        ).set(1)
        for name in PHASES:
            phase.labels(*own, name).set(name == status["phase"])
        # A search has no known end: its progress is the number of its run.
        if status["progress"].endswith("%"):
            with suppress(ValueError):
                progress.labels(*own).set(float(status["progress"].removesuffix("%")) / 100)
        for name, value in islice(status["figures"].items(), _MOST_FIGURES):
            figure.labels(*own, name).set(value)
        ended = Counter(run["phase"] for run in status["history"])
        for name in _ENDS:
            runs.labels(*own, name).set(ended[name])
        regressions.labels(*own).set(len(status["regressions"]))
        for name, (field, _) in _TIMES.items():
            with suppress(ValueError, OverflowError):  # it says no time
                at_s = read_time(status[field]).timestamp()
                times[name].labels(*own).set(at_s)
    return registry


# A page of ours has no script. A report is whatever a Pod of a run has written: it gets no origin,
# either.
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


def serve_web(
    benchmarks: Mapping[Key, Body],
    healths: Sequence[WatchHealth],
    listen: tuple[str, int],
    reports: Path | None,
) -> AbstractAsyncContextManager[None]:
    """Serves for as long as the context lasts; raises `SettingsError` for an address that cannot be had."""
    return serve_app(build_web(benchmarks, healths, reports), *listen)


def build_web(
    benchmarks: Mapping[Key, Body], healths: Sequence[WatchHealth], reports: Path | None
) -> web.Application:
    app, shown = web.Application(client_max_size=0), _Pages(benchmarks, healths, reports)
    app.router.add_get("/", shown.page)
    app.router.add_get("/reports/{namespace}/{name}/{run}/{file}", shown.report)
    app.router.add_get("/metrics", shown.metrics)
    app.router.add_get("/healthz", shown.healthz)
    app.router.add_get("/readyz", shown.readyz)
    return app


class _Pages:
    def __init__(
        self, benchmarks: Mapping[Key, Body], healths: Sequence[WatchHealth], reports: Path | None
    ) -> None:
        self._benchmarks, self._healths, self._reports = benchmarks, healths, reports

    async def page(self, _: web.Request) -> web.Response:
        bodies = self._list()
        text = await asyncio.to_thread(build_runs_page, bodies, self._has_report)
        is_moving = any(read_status(body)["phase"] in {"Starting", "Running"} for body in bodies)
        headers = {**_HEADERS, **({"refresh": str(_AGAIN_S)} if is_moving else {})}
        return web.Response(text=text, content_type="text/html", headers=headers)

    async def report(self, request: web.Request) -> web.StreamResponse:
        names = request.match_info
        body = self._benchmarks.get((names["namespace"], names["name"]))
        run, file = names["run"], names["file"]
        path = (
            None
            if body is None
            else await asyncio.to_thread(find_report, self._reports, body, run, file)
        )
        if path is None:
            raise web.HTTPNotFound(text="there is no such report here\n")
        return web.FileResponse(path, headers=_SANDBOX)

    async def metrics(self, request: web.Request) -> web.Response:
        registry = fill_registry(self._list(), self._healths)
        encode, content_type = choose_encoder(",".join(request.headers.getall("accept", [])))
        body = await asyncio.to_thread(encode, registry)
        return web.Response(body=body, headers={"content-type": content_type, "vary": "accept"})

    async def healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(self, _: web.Request) -> web.Response:
        text = "".join(f"{health.describe()}\n" for health in self._healths)
        is_ready = bool(self._healths) and all(health.is_up for health in self._healths)
        return web.Response(
            status=200 if is_ready else 503, text=text or "nothing is followed yet\n"
        )

    def _list(self) -> list[Body]:
        return [body for _, body in sorted(self._benchmarks.items())]

    def _has_report(self, body: Body, run: str) -> bool:
        return find_report(self._reports, body, run, "report.html") is not None


def find_report(root: Path | None, body: Body, run: str, file: str) -> Path | None:
    """The file of a run's report below `root`/namespace/claim; `None` if it cannot be read.

    Everything but `file` is of the Benchmark's status, and nothing that leads out of `root` is
    taken.
    """
    status, metadata = read_status(body), body["metadata"]
    claim = status["report"].partition("/")[0]
    runs = {status["run"], *(entry["run"] for entry in status["history"])}
    if root is None or not claim or run not in runs or file not in REPORTS:
        return None
    with suppress(OSError, ValueError):  # no name of a file
        path = (root / metadata["namespace"] / claim / metadata["name"] / run / file).resolve()
        return path if path.is_relative_to(root.resolve()) and path.is_file() else None
    return None
