"""A run in four kilobytes: what a Pod leaves as its last words, and an operator reads. Pure.

Kubernetes keeps 4,096 bytes of what a container writes to its termination log, and cuts what is
beyond.
"""

from collections.abc import Iterable, Mapping

import msgspec

from extproc.bench.report.headline import read_figures
from extproc.bench.report.report import Report

_MOST_BYTES = 4096
_FAULTS, _REMARKS, _WORDS = 8, 8, 200
_SHOWN = (
    *(
        "req_per_s",
        "total_tok_per_s",
        "output_tok_per_s",
        "ttft_mean_ms",
        "ttft_median_ms",
        "ttft_p99_ms",
    ),
    *(
        "tpot_median_ms",
        "itl_mean_ms",
        "e2e_median_ms",
        "e2e_p99_ms",
        "hit_rate",
        "goodput",
        "failed",
    ),
    "total_tok_per_dollar",
)


class Brief(msgspec.Struct, frozen=True):
    """The verdict and the headline figures; a figure that the run does not have is left out."""

    title: str
    is_good: bool
    faults: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    figures: dict[str, float] = msgspec.field(default_factory=dict)


def brief_report(said: Report) -> Brief:
    figures = {name: value for name, value in read_figures(said).items() if name in _SHOWN}
    ttft = said.measured.latency_ms.get("ttft")
    if ttft is not None:
        figures["ttft_p95_ms"] = ttft.p95
    return build_brief(said.title, said.is_good, said.faults, said.verdict.remarks, figures)


def build_brief(
    title: str,
    is_good: bool,
    faults: Iterable[str],
    remarks: Iterable[str],
    figures: Mapping[str, float | None],
) -> Brief:
    return Brief(
        title=_cut(title),
        is_good=is_good,
        faults=tuple(map(_cut, faults))[:_FAULTS],
        remarks=tuple(map(_cut, remarks))[:_REMARKS],
        figures={name: round(value, 6) for name, value in figures.items() if value is not None},
    )


def encode_brief(brief: Brief) -> bytes:
    """Writes one line that is kept whole: remarks go first, then faults, the last ones first."""
    while len(text := msgspec.json.encode(brief)) > _MOST_BYTES:
        if brief.remarks:
            brief = msgspec.structs.replace(brief, remarks=brief.remarks[:-1])
        else:
            brief = msgspec.structs.replace(brief, faults=brief.faults[:-1])
    return text


def decode_brief(text: str) -> Brief | None:
    """Reads one; `None` for other last words, as a Pod leaves that fell over."""
    try:
        return msgspec.json.decode(text, type=Brief)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def _cut(text: str) -> str:
    return text if len(text) <= _WORDS else f"{text[: _WORDS - 1]}…"
