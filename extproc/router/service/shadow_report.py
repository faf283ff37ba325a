"""`extproc shadow`: what the running service foretells, as text and as a page."""

import json
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlencode
from urllib.request import Request

import msgspec

from extproc.errors import ExtprocError
from extproc.pages.page import cards, html_page, notice
from extproc.pages.plots import Series, lines
from extproc.router.service.asking import ask_admin
from extproc.router.shadow.forecast import Estimate, Forecast

_JSON: Final = {"content-type": "application/json"}


def fetch_forecasts(url: str) -> list[Forecast]:
    """Gets what is foretold of each pool with a `shadow`. Raises `ExtprocError` where nothing answers."""
    try:
        return msgspec.json.decode(ask_admin(Request(f"{url}/shadow")), type=list[Forecast])  # noqa: S310  # the operator's own
    except msgspec.DecodeError:
        raise ExtprocError(f"{url}/shadow: not what a service of this version says") from None


def begin_again(url: str, pool: str) -> None:
    """Sets the moment back since when a pool is compared. Raises `ExtprocError`."""
    place = f"{url}/shadow/reset?{urlencode({'pool': pool})}"
    ask_admin(Request(place, b"{}", _JSON, method="POST"))  # noqa: S310  # the operator's own


def write_text(forecasts: Sequence[Forecast]) -> str:
    """A sentence for each pool, and its figures below."""
    return "\n\n".join("\n".join(_lines(told)) for told in forecasts)


def _lines(told: Forecast) -> Iterator[str]:
    yield f"pool {told.pool}: {told.sentence}"
    served, picked = told.as_served, told.as_picked
    if served is None or picked is None or told.saved is None:
        return
    before = "as served" if told.is_watching else "least load"
    yield f"  {'':34}{before:>24}{'as picked':>24}{'measured':>12}"
    hours = f"{told.requests} requests in {told.counted_s / 3600:.1f} h"
    rows = (
        ("prompt tokens found in caches", served.hit_rate, picked.hit_rate, 100, "%"),
        ("mean time to the first token", served.mean_s, picked.mean_s, 1000, "ms"),
        ("99th percentile of it", served.p99_s, picked.p99_s, 1000, "ms"),
        ("busiest endpoint's share of prefill", served.busiest, picked.busiest, 100, "%"),
        ("prefill, in engines", served.engines, picked.engines, 1, ""),
    )
    measured = (told.measured_hit_rate, told.measured_mean_s, None, None, None)
    for (what, one, two, scale, unit), found in zip(rows, measured, strict=True):
        beside = "" if found is None else f"{found * scale:.4g} {unit}"
        yield f"  {what:<36}{_show(one, scale, unit):>22}{_show(two, scale, unit):>24}{beside:>12}"
    yield f"  {hours}; in brackets: between what it is with 95 % certainty"


def _show(figure: Estimate, scale: float, unit: str) -> str:
    low, high = (f"{end * scale:.3g}" for end in (figure.low, figure.high))
    return f"{figure.value * scale:.3g} {unit} ({low}-{high})".replace(
        " (", "(" if not unit else " ("
    )


def write_page(forecasts: Sequence[Forecast]) -> str:
    """One page: the sentence, and two charts for each pool."""
    parts = []
    for told in forecasts:
        is_good = told.verdict != "blind"
        parts.append(notice(f"{told.pool}: {told.sentence}", (), is_good=is_good))
        parts.append(cards(_charts(told)))
    return html_page("What routing saves", "", parts)


def _charts(told: Forecast) -> dict[str, str]:
    rows = told.batches
    hours = [(row.begun_s - rows[0].begun_s) / 3600 for row in rows]
    before = "as served" if told.is_watching else "least load"

    def chart(label: str, one: Sequence[float], two: Sequence[float]) -> str:
        series = [Series(before, hours, one), Series("as picked", hours, two)]
        return lines(series, x_label="hours", y_label=label)

    return {
        "Prompt tokens found in caches": chart(
            "%",
            [100 * row.served_hit_rate for row in rows],
            [100 * row.picked_hit_rate for row in rows],
        ),
        f"Prefill, of {told.endpoints} engines' time": chart(
            "engines", [row.served_engines for row in rows], [row.picked_engines for row in rows]
        ),
    }


def as_json(forecasts: Sequence[Forecast]) -> str:
    return json.dumps(msgspec.to_builtins(forecasts), indent=2)
