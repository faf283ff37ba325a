"""Fleet runs as text and as CSV: KubeAI's columns, then what explains them."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from io import StringIO

from extproc.simulator.fleet.summary import TOLERANCE, Elastic, Latency, Summary

_RESULT = (
    "strategy",
    "seed",
    "requests",
    "failed",
    "asked req/s",
    "offered req/s",
    "served req/s",
    "output tok/s",
    "tok/s",
)
# What fits a terminal; `--csv` and `--json` have every figure.
_LATENCIES = (
    "TTFT to first arm's",
    "TTFT mean",
    "median",
    "p90",
    "p99",
    "TPOT mean",
    "p99",
    "ITL p99",
)
DEFINITIONS = """TTFT: from the sending of a request to its first token; E2E: to its last. ITL: between two tokens.
TPOT: a token after the first, by request. mean, median, pNN: of the requests. hit rate: cached tokens of all prompt
tokens, 0 to 1. tok/s: prompt and output tokens a second, of what ended in the window."""
_FLEET = f"""{DEFINITIONS}
asked: by the schedule; offered: due in the window; served: ended in it. preempted: how often an engine set a request
back for want of memory. reasons: requests, by why their endpoint was picked. TTFT to first arm's: the mean TTFT
divided by that of the first arm of the same seed, without a unit; below 1 is sooner. TTFT from due: from when the
request should have been sent.
"""
_ELASTIC_TERMS = """ready: endpoints, the fewest and the most; endpoint-s ready: their seconds together; held: also of
those that start or drain, which are paid for. SLO s missed: seconds with more than 5 % of the requests late.
reaction: from a rise of the load until more endpoints were ready; recovery: to the end of the last missed second.
"""
_CACHE = ("strategy", "seed", "hit rate", "preempted", "TTFT from due mean ms", "reasons")
_ELASTIC = (
    *("strategy", "seed", "ready", "reaction s", "recovery s", "SLO s missed"),
    *("endpoint-s ready", "held", "TTFT from due mean ms", "p95 ms"),
)


def render_summaries(summaries: Sequence[Summary]) -> str:
    """Lays out runs, one line of each table per run. Latencies are milliseconds."""
    first, firsts = summaries[0], {run.seed: run for run in reversed(summaries)}
    tables = (
        [_RESULT, *map(_result, summaries)],
        [
            ("latency, ms", "seed", *_LATENCIES),
            *(_latencies(run, firsts[run.seed]) for run in summaries),
        ],
        [_CACHE, *map(_cache, summaries)],
        *([[_ELASTIC, *map(_take, summaries)]] if first.elastic else []),
    )
    window = (
        f"All figures are of what was due between {first.start_s:.0f} and {first.end_s:.0f} s.\n"
    )
    return (
        window
        + "\n".join(map(lay_out, tables))
        + f"\n{_FLEET}{_ELASTIC_TERMS if first.elastic else ''}"
        + "".join(f"\nWARNING  {line}\n" for line in warn(summaries))
    )


def warn(summaries: Sequence[Summary]) -> list[str]:
    """Returns what makes these runs less than they look."""
    found = [
        f"{run.strategy}, seed {run.seed}: {fault}" for run in summaries for fault in run.warnings
    ]
    # Where turns follow answers, a slow strategy is offered less: its latencies flatter it.
    for seed in dict.fromkeys(run.seed for run in summaries):
        offered = [run.offered_rps for run in summaries if run.seed == seed]
        if max(offered) > (1 + TOLERANCE) * min(offered):
            found.append(
                f"seed {seed}: the offered loads differ by more than 3 %: latencies do not compare"
            )
    return found


def write_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """One line per row under the union of their columns."""
    text = StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, [*columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def flatten(summary: Summary) -> dict[str, object]:
    """Returns a run's figures by name, one number or text each."""
    return dict(_flat(summary))


def _flat(summary: Summary) -> Iterator[tuple[str, object]]:
    for name, value in ((field.name, getattr(summary, field.name)) for field in fields(summary)):
        if isinstance(value, Latency | Elastic):
            yield from (
                (f"{name}_{field.name}", getattr(value, field.name)) for field in fields(value)
            )
        elif name == "reasons":
            yield name, " ".join(f"{reason}={count}" for reason, count in summary.reasons.items())
        elif name != "elastic":
            yield name, value


def lay_out(rows: Sequence[Sequence[str]]) -> str:
    """Aligns columns: the first to the left, the others to the right; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(cells)
        )
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    return "".join(f"{line.rstrip()}\n" for line in (lines[0], "-" * len(lines[0]), *lines[1:]))


def _result(run: Summary) -> Sequence[str]:
    rates = (
        run.asked_rps,
        run.offered_rps,
        run.served_rps,
        run.output_tok_per_s,
        run.total_tok_per_s,
    )
    counts = (str(run.seed), str(run.requests), str(run.failed))
    return (run.strategy, *counts, *(f"{rate:.2f}" for rate in rates))


def _latencies(run: Summary, first: Summary) -> Sequence[str]:
    """Figures of a run, and its mean TTFT as a share of that of the first arm with the same seed."""
    ratio = f"{run.ttft.mean_ms / first.ttft.mean_ms:.2f}" if first.ttft.mean_ms else "-"
    ttft = (run.ttft.mean_ms, run.ttft.median_ms, run.ttft.p90_ms, run.ttft.p99_ms)
    tokens = (run.tpot.mean_ms, run.tpot.p99_ms, run.itl.p99_ms)
    return (run.strategy, str(run.seed), ratio, *(f"{value:.1f}" for value in (*ttft, *tokens)))


def _cache(run: Summary) -> Sequence[str]:
    reasons = ", ".join(f"{reason} {count}" for reason, count in run.reasons.items())
    figures = (f"{run.hit_rate:.3f}", str(run.preemptions), f"{run.ttft_due.mean_ms:.2f}")
    return (run.strategy, str(run.seed), *figures, reasons)


def _take(run: Summary) -> Sequence[str]:
    """How a run took its spike, and what its endpoints cost."""
    took = run.elastic
    if took is None:
        return (run.strategy, str(run.seed), *["-"] * (len(_ELASTIC) - 2))
    return (
        run.strategy,
        str(run.seed),
        str(took.least) if took.least == took.most else f"{took.least}-{took.most}",
        *(
            "-" if seconds is None else f"{seconds:.0f}"
            for seconds in (took.reaction_s, took.recovery_s)
        ),
        str(took.slo_seconds_missed),
        *(f"{seconds:.0f}" for seconds in (took.ready_seconds, took.held_seconds)),
        *(f"{value:.2f}" for value in (run.ttft_due.mean_ms, run.ttft_due.p95_ms)),
    )
