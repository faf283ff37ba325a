"""All runs of all Benchmarks as one page, from their statuses: a list, then each one's runs. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final
from urllib.parse import quote

from extproc.bench.experiments.history import METHOD, Line, draw_line
from extproc.bench.measure.words import DASH
from extproc.bench.report.headline import FIGURES, show
from extproc.operator.status import COMPARED, TOLERANCE, trace_history
from extproc.pages import page
from extproc.pages.page import Cell, PageLink

Body = Mapping[str, Any]

_TIMES: Final = ("startedAt", "finishedAt", "nextRunAt")
_RUN: Final = ("run", "digest", "phase", "verdict", "finishedAt")
_TEXTS: Final = ("phase", "message", "verdict", "progress", "report", "run", *_TIMES)
_LISTS: Final = ("faults", "regressions", "remarks")
_SUMMARY: Final = ("requestsPerSecond", "ttftP95")


def read_status(body: Body) -> Body:
    """What the page and the metrics go by, each of its type; what is missing or of another type is empty."""
    status = _mapping(body.get("status"))
    return {
        **_texts(status, _TEXTS),
        **{
            name: [text for one in _list(status.get(name)) if (text := _text(one))]
            for name in _LISTS
        },
        "summary": _texts(_mapping(status.get("summary")), _SUMMARY),
        "figures": _figures(status.get("figures")),
        "history": [
            {**_texts(run, _RUN), "figures": _figures(run.get("figures"))}
            for run in _list(status.get("history"))
            if isinstance(run, dict)
        ],
    }


def _texts(values: Body, names: tuple[str, ...]) -> dict[str, str]:
    return {name: _text(values.get(name)) for name in names}


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int | float) else ""


def _figures(values: object) -> dict[str, float]:
    return {name: float(value) for name, value in _mapping(values).items() if _is_figure(value)}


def _is_figure(value: object) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:  # of a whole number
        return False


def _mapping(value: object) -> Body:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


_LIST: Final = (
    "benchmark",
    "phase",
    "verdict",
    "progress",
    "req/s",
    "TTFT p95",
    "last run",
    "next run",
)
_SHOWN: Final = ("req_per_s", "total_tok_per_s", "ttft_median_ms", "ttft_p99_ms", "e2e_median_ms")
_RUNS: Final = ("run", "ended", *(FIGURES[name].heading for name in _SHOWN), "verdict", "report")

HasReport = Callable[[Body, str], bool]
"""Whether the report of a Benchmark's run can be read here."""


def build_runs_page(bodies: Sequence[Body], has_report: HasReport) -> str:
    """The whole page; nothing in it is executed, or fetched."""
    return page.html_page(
        "Benchmarks", METHOD.format(runs=COMPARED, tolerance=TOLERANCE), _parts(bodies, has_report)
    )


def _parts(bodies: Sequence[Body], has_report: HasReport) -> Iterator[str]:
    if not bodies:
        yield page.remarks(["There is no Benchmark."])
        return
    yield page.table("", _LIST, [_list_one(body) for body in bodies])
    for body in bodies:
        yield from _show_one(body, has_report)


def name_benchmark(body: Body) -> str:
    return f"{body['metadata']['namespace']}/{body['metadata']['name']}"


def _list_one(body: Body) -> tuple[Cell, ...]:
    status = read_status(body)
    summary = status["summary"]
    name = name_benchmark(body)
    return (
        PageLink(name, f"#{quote(name, safe='')}"),
        _show_phase(status),
        status["verdict"] or DASH,
        status["progress"] or DASH,
        summary["requestsPerSecond"] or DASH,
        summary["ttftP95"] or DASH,
        _show_time(status["finishedAt"]),
        _show_time(status["nextRunAt"]),
    )


def _show_phase(status: Body) -> str:
    if status["phase"] in {"Starting", "Waiting"} and status["message"]:
        return f"{status['phase']}: {status['message']}"
    return status["phase"] or DASH


def _show_one(body: Body, has_report: HasReport) -> Iterator[str]:
    status = read_status(body)
    name, phase = name_benchmark(body), status["phase"]
    faults = [*status["faults"], *status["regressions"]]
    yield page.anchored_heading(name, quote(name, safe=""))
    yield page.notice(
        _title(status), faults, is_good=not faults and phase not in {"Invalid", "Failed"}
    )
    where = [f"Reports: {status['report']} (volume claim, folder)"] if status["report"] else []
    yield page.remarks([*status["remarks"], *where])
    spec = body.get("spec") or {}
    model = (spec.get("target") or {}).get("model") or str(spec.get("endpoint", ""))
    for line in trace_history(name, model, status["history"]):
        yield page.table(
            "", _RUNS, [_run_row(n, body, line, has_report) for n in range(len(line.entries))]
        )
        yield from draw_line(line)


def _title(status: Body) -> str:
    """The verdict of what is over, else how far it is."""
    phase = status["phase"] or "not looked at yet"
    title = status["verdict"] if phase in {"Valid", "Invalid", "Failed"} else phase
    return f"{title}, worse than before" if status["regressions"] else title


def _run_row(number: int, body: Body, line: Line, has_report: HasReport) -> tuple[Cell, ...]:
    entry = line.entries[number]
    figures = (show(name, entry.figures.get(name)) for name in _SHOWN)
    report = (
        PageLink("report", report_path(body, entry.source))
        if has_report(body, entry.source)
        else DASH
    )
    return str(number + 1), _show_time(entry.at), *figures, entry.verdict, report


def report_path(body: Body, run: str, file: str = "report.html") -> str:
    """Where the page finds a report."""
    parts = (body["metadata"]["namespace"], body["metadata"]["name"], run, file)
    return "/".join(["reports", *(quote(part, safe="") for part in parts)])


def _show_time(text: str) -> str:
    return text[:16].replace("T", " ") if text else DASH
