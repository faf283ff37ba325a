"""Tables that others have published, judged by their means and drawn as a sweep's page.

KubeAI's tables are in `data/` and in the simulator's package; `extproc simulate fleet --preset
seed-000 --csv` writes one in the same columns. `python -m tests.benchmarks.published TABLE.csv
--output page.html`.
"""

import argparse
import csv
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.resources import files
from math import nan
from pathlib import Path

from extproc.bench.experiments.sweep_rows import OWN_COLUMNS, PUBLISHED_COLUMNS, SweepRow
from extproc.bench.experiments.sweep_table import gather, sweep_html, sweep_markdown
from extproc.bench.judge.verdict import (
    CLIENT_LIMITED,
    DOUBTFUL,
    INVALID,
    VALID,
    FaultReason,
    RunVerdict,
    VerdictInputs,
    build_verdict,
)
from extproc.bench.spec.tree import Limits, Load

DATA = Path(__file__).parent / "data"
CELLS_8XL4 = Path(str(files("extproc.simulator.fleet"))) / "kubeai-8xl4.csv"
TABLES = (CELLS_8XL4, DATA / "kubeai-8xl4-laptop.csv", DATA / "kubeai-k6.csv")
_TEXTS = frozenset({"strategy", "dataset", "repeat", "verdict"})
# Without these there is nothing to judge or to draw.
_NEEDED = frozenset({"max_concurrency", "requests", "duration_s"})


class PublishedError(Exception):
    """A table lacks a column or holds something that is no number."""


def read_table(path: Path) -> list[SweepRow]:
    return read_published(path.read_bytes().decode("utf-8", "replace").splitlines())


def read_published(lines: Iterable[str]) -> list[SweepRow]:
    """Reads CSV with the published columns, and ours if there are some; raises `PublishedError`.

    A row without a verdict gets one by its means, see `judge_row`.
    """
    reader = csv.DictReader(lines)
    missing = set(PUBLISHED_COLUMNS) - set(reader.fieldnames or ())
    if missing:
        raise PublishedError(f"the table lacks columns: {', '.join(sorted(missing))}")
    return [_read_row(fields) for fields in reader]


def _read_row(fields: Mapping[str, str]) -> SweepRow:
    named = [name for name in (*PUBLISHED_COLUMNS, *OWN_COLUMNS) if name not in _TEXTS]
    try:
        figures = {name: float(text) for name in named if (text := fields.get(name))}
        repeat = int(fields.get("repeat") or 1)
    except ValueError as error:
        raise PublishedError(
            f"the row {list(fields.values())} holds something that is no number: {error}"
        ) from None
    if missing := _NEEDED - set(figures):
        raise PublishedError(f"the row {list(fields.values())} lacks {', '.join(sorted(missing))}")
    figures.setdefault("in_flight", estimate_in_flight(figures))
    verdict = parse_verdict(fields.get("verdict") or VALID)
    load = Load(
        concurrency=int(figures.pop("max_concurrency")), req_rate=figures.pop("request_rate", None)
    )
    row = SweepRow(fields["strategy"], load, figures, verdict, fields.get("dataset") or "", repeat)
    return row if fields.get("verdict") else replace(row, verdict=judge_row(row))


def parse_verdict(text: str) -> RunVerdict:
    """Reads a verdict's text; another text than ours is of a kind of its own."""
    kinds = () if text in {VALID, DOUBTFUL} else tuple(text.removeprefix(INVALID).split(", "))
    return RunVerdict(not kinds, text, (), (), VerdictInputs(), kinds, has_doubts=text == DOUBTFUL)


def estimate_in_flight(figures: Mapping[str, float]) -> float:
    """The mean in flight by Little's law, a request lasting TTFT and a gap per token; else `nan`."""
    latency_ms = figures.get("e2e_mean_ms", nan)
    if "e2e_mean_ms" not in figures and {"ttft_mean_ms", "itl_mean_ms"} <= set(figures):
        tokens = figures["output_tokens"] / figures["requests"]
        latency_ms = figures["ttft_mean_ms"] + figures["itl_mean_ms"] * (tokens - 1)
    return figures["requests"] / figures["duration_s"] * latency_ms / 1000


def judge_row(row: SweepRow) -> RunVerdict:
    """Judges a published result, of which only means are known.

    A client on time would have had a known number in flight (`on_time_in_flight`). Far fewer means
    that the client did not ask as often as it says.
    """
    requests = int(row.figures["requests"])
    throughput, in_flight = requests / row.figures["duration_s"], row.figures["in_flight"]
    figures = VerdictInputs(achieved_rps=throughput, in_flight=in_flight)
    rate = row.load.req_rate
    if rate is None:
        return build_verdict((), (), figures)
    expected = on_time_in_flight(rate, row.load.concurrency, requests, throughput)
    figures = replace(figures, offered_rps=rate, on_time_in_flight=expected)
    reasons = []
    # Without latencies the comparison with NaN is false: nothing speaks against the client.
    if in_flight < Limits().in_flight * expected:
        text = (
            f"{in_flight:.0f} in flight by Little's law where {rate:.0f} req/s on time would "
            f"have had {expected:.0f}: the client sent about {throughput:.1f} req/s"
        )
        reasons.append(FaultReason(CLIENT_LIMITED, text))
    return build_verdict(reasons, (), figures)


def on_time_in_flight(rate: float, cap: float, count: int, throughput: float) -> float:
    """Returns the mean in flight of a client that asks on time, if the server answers evenly.

    A fluid model: requests in flight grow at `rate - throughput` until the cap or the last request,
    stay there while requests are left, then fall at `throughput`.
    """
    if rate <= throughput:
        return 0.0
    grow_s = min(cap / (rate - throughput), count / rate)
    peak = grow_s * (rate - throughput)
    drain_s = peak / throughput
    hold_s = count / throughput - grow_s - drain_s
    return peak * (grow_s / 2 + hold_s + drain_s / 2) / (grow_s + hold_s + drain_s)


def draw_tables(folder: Path) -> list[Path]:
    """Draws a page of each published table into a folder."""
    pages = []
    for table in TABLES:
        pages.append(folder / f"{table.stem}.html")
        pages[-1].write_text(sweep_html(gather(table.stem, read_table(table))), "utf-8")
    return pages


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.published")
    parser.add_argument("table", metavar="TABLE.csv", type=Path)
    parser.add_argument("--output", type=Path, required=True, help="the page, an HTML file")
    parser.add_argument("--baseline", help="what others are compared with (default: the first)")
    parser.add_argument("--title", help="what the page is about (default: the table's name)")
    options = parser.parse_args()
    rows = read_table(options.table)
    drawn = gather(options.title or options.table.stem, rows, baseline=options.baseline)
    print(sweep_markdown(drawn), end="")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(sweep_html(drawn), "utf-8")


if __name__ == "__main__":
    main()
