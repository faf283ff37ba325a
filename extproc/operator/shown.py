"""A Benchmark's status as far as it can be shown: who may edit a status may write anything into it. Pure."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

Body = Mapping[str, Any]

_TEXTS: Final = (
    "phase",
    "message",
    "verdict",
    "progress",
    "report",
    "run",
    "startedAt",
    "finishedAt",
    "nextRunAt",
)
_LISTS: Final = ("faults", "regressions", "remarks")
_SUMMARY: Final = ("requestsPerSecond", "ttftP95")
_RUN: Final = ("run", "digest", "phase", "verdict", "finishedAt")


def read_status(body: Body) -> Body:
    """What the page and the metrics go by, each of its type; what is missing or of another type is empty."""
    status = _mapping(body.get("status"))
    return {
        **_texts(status, _TEXTS),
        **{name: [text for one in _list(status.get(name)) if (text := _text(one))] for name in _LISTS},
        "summary": _texts(_mapping(status.get("summary")), _SUMMARY),
        "figures": _figures(status.get("figures")),
        "history": [_read_run(run) for run in _list(status.get("history")) if isinstance(run, dict)],
    }


def _read_run(run: Body) -> Body:
    return {**_texts(run, _RUN), "figures": _figures(run.get("figures"))}


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
