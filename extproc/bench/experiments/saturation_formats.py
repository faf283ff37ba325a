"""A search for the inflection point as a table and as HTML."""

from collections.abc import Iterator, Sequence

from extproc.bench.experiments.saturate import Rung, Saturation
from extproc.bench.measure.words import fixed, milliseconds, percent
from extproc.bench.report.headline import name_failed, name_part
from extproc.bench.report.markdown import markdown_table
from extproc.pages import page
from extproc.pages.plots import Series, lines

_HEADER = (
    "asked req/s",
    "served req/s",
    "tok/s",
    "TTFT p50",
    "TTFT p99",
    "E2E p50",
    "time per token",
    "failed",
    "Little's residual",
    "",
)


def saturation_markdown(found: Saturation) -> str:
    part = name_part(found.rungs[0].report)
    return f"{part}\n\n{markdown_table(_HEADER, _rows(found))}\n{headline(found)}\n"


def headline(found: Saturation) -> str:
    """The answer in a sentence."""
    if found.faults:
        return "No answer: a rung says nothing about the server's limit."
    if found.inflection_rps is None:
        return f"The lowest rate was not served: begin below {found.rungs[0].rate:.2f} req/s."
    if not found.is_bracketed:
        return f"No saturation up to {found.rungs[-1].rate:.2f} req/s: the inflection point lies above."
    return (
        f"Inflection point at {found.inflection_rps:.2f} req/s; at most {fixed(found.best_rps)} req/s were "
        f"served, and {fixed(found.best_tps, 0)} tokens/s (at {fixed(found.best_tps_rate)} req/s asked)."
    )


def _rows(found: Saturation) -> list[Sequence[str]]:
    return [
        _row(rung, is_saturated=is_saturated)
        for rung, is_saturated in zip(found.rungs, found.saturated, strict=True)
    ]


def _row(rung: Rung, *, is_saturated: bool) -> Sequence[str]:
    measured = rung.report.measured
    ttft, per_token = measured.latency_ms.get("ttft"), measured.latency_ms.get("time_per_token")
    return (
        fixed(rung.rate),
        fixed(rung.served_rps),
        fixed(measured.throughput.total_tps, 0),
        milliseconds(ttft.p50 if ttft else None),
        milliseconds(ttft.p99 if ttft else None),
        milliseconds(rung.e2e_p50_ms),
        milliseconds(per_token.mean if per_token else None),
        name_failed(rung.report),
        percent(rung.littles_residual),
        _state(rung, is_saturated=is_saturated),
    )


def _state(rung: Rung, *, is_saturated: bool) -> str:
    if not rung.is_measured:
        return rung.report.verdict.text
    if rung.has_failed:
        return "saturated: requests failed"
    return "saturated" if is_saturated else "served"


def saturation_html(found: Saturation) -> str:
    return page.html_page(f"{found.name}: saturation", found.model, _parts(found))


def _parts(found: Saturation) -> Iterator[str]:
    yield page.notice(headline(found), found.faults, is_good=found.is_bracketed and not found.faults)
    yield page.remarks((name_part(found.rungs[0].report), *found.remarks))
    rates = [rung.rate for rung in found.rungs]
    yield page.cards(
        {
            "Served by rate": lines(
                [
                    Series("asked for", rates, rates),
                    Series("served", rates, [rung.served_rps for rung in found.rungs]),
                ],
                x_label="asked req/s",
                y_label="req/s",
            ),
            "Latency by rate": lines(
                [_latency(found, "TTFT p50", "p50"), _latency(found, "TTFT p99", "p99")],
                x_label="asked req/s",
                y_label="ms",
                is_log_y=True,
            ),
        }
    )
    yield page.table("Rungs", _HEADER, _rows(found))
    yield page.definitions(found.rungs[0].report.definitions)


def _latency(found: Saturation, label: str, point: str) -> Series:
    summaries = [(rung.rate, rung.report.measured.latency_ms.get("ttft")) for rung in found.rungs]
    points = [(rate, getattr(summary, point)) for rate, summary in summaries if summary]
    return Series(label, [rate for rate, _ in points], [value for _, value in points])
