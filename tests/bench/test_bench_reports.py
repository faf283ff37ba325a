import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from rich.console import Console

from extproc.bench.experiments.compare import compare, comparison_markdown
from extproc.bench.judge.verdict import FaultReason, VerdictInputs, build_verdict
from extproc.bench.measure import metrics
from extproc.bench.measure.groups import cut_timeline
from extproc.bench.measure.metrics import Counts, RunMetrics, Throughput, Tokens
from extproc.bench.measure.stats import Stats
from extproc.bench.record import RunResult, Window
from extproc.bench.report import report
from extproc.bench.report.headline import headlines, name_part, summary_text
from extproc.bench.report.outputs import REPORTS, csv_table, print_verdict
from extproc.bench.report.run_page import html_report
from extproc.bench.report.vllm import vllm_json, vllm_text
from extproc.bench.spec.tree import Slo
from tests.bench.synthetic import failed, record, result, spec, steady
from tests.stack.browser import check_file, find_chromium
from tests.tables import table


def stats(mean: float, p50: float, p99: float) -> Stats:
    return Stats(8000, mean, 0, 0, 0, p50, 0, 0, 0, p99, 0, 0)


def published_report() -> RunMetrics:
    """KubeAI's published cell: prefix hash, 800 requests at once."""
    return RunMetrics(
        window=Window(0.0, 104.67),
        counts=Counts(8000, 8000, 8000, 0, {}),
        throughput=Throughput(76.43, 76.43, 63594.68, 5813.11, 514),
        tokens=Tokens(6656338, 608447, {}, None, None),
        goodput=None,
        latency_ms={
            "ttft_sent": stats(280.20, 239.80, 1260.53),
            "tpot": stats(86.55, 91.13, 139.47),
            "itl": stats(85.78, 77.35, 272.04),
        },
    )


# Trailing blanks are part of the layout: values are left in ten columns. `·` stands for a blank
# here.
PUBLISHED = (Path(__file__).parent / "data" / "published.txt").read_text().replace("·", " ")


def test_vllm_text_is_byte_for_byte_the_published_layout_with_goodput_where_limits_are_set() -> (
    None
):
    limited = vllm_text(replace(published_report(), goodput=metrics.Goodput(10, 0.1, 1.5)))

    assert vllm_text(published_report()).encode() == PUBLISHED.encode()
    assert "Request goodput (req/s):                 1.50      \n" in limited


def test_vllm_text_of_a_run_has_the_figures_of_the_whole_run_from_the_sending() -> None:
    lines = vllm_text(report.build(steady(100, sent_s=None)).whole).splitlines()
    sent = vllm_text(report.build(steady(100)).whole).splitlines()

    assert "Mean TTFT (ms):                          nan       " in lines
    assert "Successful requests:                     100       " in sent
    assert "Benchmark duration (s):                  11.40     " in sent
    assert "Median TPOT (ms):                        100.00    " in sent


VLLM_KEYS = """
date backend model_id tokenizer_id num_prompts request_rate burstiness max_concurrency duration
completed failed total_input_tokens total_output_tokens request_throughput request_goodput output_throughput
total_token_throughput input_lens output_lens ttfts itls start_times generated_texts errors
"""


def test_vllm_json_has_vllms_keys_and_an_entry_per_request() -> None:
    run = result([record(0, 0.0), failed(1, 1.0)])

    fields = json.loads(vllm_json(run, report.build(run).whole))

    summaries = [
        f"{point}_{name}_ms"
        for name in ("ttft", "tpot", "itl", "e2el")
        for point in ("mean", "median", "std", "p90", "p95", "p99")
    ]
    assert "the role" in fields.pop("itl_definition"), "the ITL is not vLLM's, and no word says so"
    assert (list(fields), fields["ttfts"]) == ([*VLLM_KEYS.split(), *summaries], [0.5, None])
    assert fields["itls"][0] == pytest.approx([0.1] * 10)
    assert (fields["errors"], fields["completed"], fields["failed"]) == (["", "timeout"], 1, 1)
    assert fields["mean_e2el_ms"] == pytest.approx(1500)


def test_report_survives_a_round_trip_with_its_schema_and_the_servers_hit_rate() -> None:
    said = report.build(result([record(0, 0.0), failed(1, 1.0)]))
    fields = json.loads(REPORTS["report.json"](steady(), report.build(steady())))

    assert report.decode_report(report.encode_report(said)) == said
    assert fields["schema"] == "extproc-bench-report/1"
    assert fields["server_hit_rate"] == pytest.approx(0.6)


ENCODED = report.encode_report(report.build(steady(4)))


@table(
    ("text", "fault"),
    [
        (b"{}", "missing required field"),
        (b"nonsense", "malformed"),
        (b"\xff\xfe", "not a benchmark report"),
        (ENCODED.replace(b"report/1", b"report/2"), "this version reads"),
        (ENCODED.replace(b'"seed": 0', b'"seed": "seven"'), "Expected `int"),
        (ENCODED.replace(b'"caches": [', b'"caches": {}, "old": ['), "Expected `array"),
    ],
)
def test_foreign_file_is_refused_as_a_report(text: bytes, fault: str) -> None:
    with pytest.raises(report.ReportError, match=fault):
        report.decode_report(text)


def test_csv_has_a_row_per_request_and_leaves_missing_figures_empty() -> None:
    text = csv_table(result([record(0, 0.0), failed(1, 1.0)]))
    rows = list(csv.DictReader(io.StringIO(text)))

    assert [row["ttft_ms"] for row in rows] == ["500.0", ""]
    assert [row["chunks"] for row in rows] == ["11", "0"]
    assert rows[1]["failure"] == "timeout"


def test_verdict_is_printed_with_its_reasons_literally() -> None:
    file = io.StringIO()
    verdict = build_verdict(
        [FaultReason("client-limited", "[red] lag")], ["a remark"], VerdictInputs()
    )

    print_verdict(replace(report.build(steady(10)), verdict=verdict), Console(file=file, width=80))

    for part in ("invalid: client-limited", "[red] lag", "a remark"):
        assert part in file.getvalue()


def hostile() -> RunResult:
    """Names from outside must not become markup."""
    return result(
        [record(index, index / 10, endpoint="<script>alert(1)</script>") for index in range(30)]
    )


def test_html_has_words_for_its_figures_and_folds_the_tables_that_few_read() -> None:
    run = hostile()
    page = html_report(run, report.build(run)).partition("<summary>Spec")[0]

    assert re.findall(r"ttft_sent|e2e_sent|ntpot|littles|lag p99|_s</td>", page) == []
    assert page.partition("<details")[0].count("<table>") <= 5
    assert "requests began late by, p99" in page.partition("<details")[2]


def test_html_escapes_what_servers_say() -> None:
    page = html_report(hostile(), report.build(hostile()))

    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_html_shows_goodput_and_says_where_there_is_nothing_to_plot() -> None:
    empty = result([], duration_s=1.0)
    base = spec()
    performance = base.performance.model_copy(update={"slo": Slo(ttft_ms=600)})
    limited = result(steady(20).records, of=base.model_copy(update={"performance": performance}))

    assert "Nothing to plot." in html_report(empty, report.build(empty))
    assert "100.0 %" in html_report(limited, report.build(limited))


@pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed")
@pytest.mark.parametrize(
    "run", [steady(300), hostile(), result([failed(0, 0.0)])], ids=["good", "hostile", "failed"]
)
async def test_html_opens_without_console_message_or_network_request(
    run: RunResult, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text(html_report(run, report.build(run)), "utf-8")

    await check_file(path, tmp_path, "Time to first token, distribution")


@table("is_capped", [False, True])
def test_terminal_page_and_comparison_show_the_same_figures_of_the_same_part(
    is_capped: bool,
) -> None:
    """The first half waits four times as long: with a warm-up it is not in any of them, with a cap in all."""
    waits = [2.0 if index < 60 else 0.5 for index in range(120)]
    made = [
        record(
            index,
            index / 10,
            first_token_s=index / 10 + wait,
            chunk_s=[index / 10 + wait],
            end_s=index / 10 + 3,
        )
        for index, wait in enumerate(waits)
    ]
    traffic = {"max_concurrency": 50} if is_capped else {}
    run = result(made, duration_s=15.0, window=Window(6.0, 12.0), of=spec(**traffic))
    said = report.build(run)
    terminal, page = summary_text(said), html_report(run, said)
    comparison = comparison_markdown(compare([said], [said]))

    assert headlines(said)["TTFT median"] == ("1.25 s" if is_capped else "500.0 ms")
    for heading, value in headlines(said).items():
        if heading != "failed, of the whole run" and value != "–":  # noqa: RUF001  # as reports have it
            assert f"{heading:.<30}: {value}\n" in terminal
            assert value in page
            row = next(
                (line for line in comparison.splitlines() if line.startswith(f"| {heading} ")), None
            )
            assert row is None or row.split("|")[2].strip() == value
    assert len(comparison.splitlines()) <= 6 + 8
    assert name_part(said) in terminal
    assert name_part(said).capitalize() in page
    assert name_part(said) in comparison


SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "benchmark-report.schema.json"
# What the first version wrote: whoever kept it must be able to read and compare it.
EARLIER = Path(__file__).parent / "data" / "report-1.json"


def test_published_schema_is_that_of_the_reports_and_an_earlier_one_is_read() -> None:
    """A field that changes its meaning or goes needs a new number in `report.SCHEMA`."""
    schema, text = json.loads(SCHEMA.read_text()), EARLIER.read_bytes()
    said = report.decode_report(text)

    assert schema == json.loads(json.dumps(report.json_schema()))
    jsonschema.validate(json.loads(text), schema)
    assert (said.name, said.whole.counts.completed, said.server_hit_rate) == ("benchmark", 100, 0.6)
    assert said.steady.latency_ms["ttft"].mean == pytest.approx(500)
    assert said.phases == ()


def test_slices_hold_the_rates_the_latencies_and_what_was_in_flight() -> None:
    run = steady(1200)
    at = cut_timeline(run.records, run.info.duration_s, run.info.offered_until_s)

    assert at.at_s.size == 60
    # The slice in which the schedule ends is no lower than the others.
    assert np.nanmin(at.asked_rps) == pytest.approx(10, rel=0.05)
    assert np.median(at.completed_rps) == pytest.approx(10, rel=0.05)
    assert np.median(at.in_flight) == 15
    assert at.ttft_p99_ms[5] == pytest.approx(500)


def test_rates_add_up_to_the_requests_and_a_slice_without_any_has_no_latency() -> None:
    due = [record(index, index / 7) for index in range(300)] + [
        failed(index, index) for index in range(5)
    ]
    at, empty = cut_timeline(due, 45.0), cut_timeline([], 0.0)

    assert at.asked_rps.sum() * (at.at_s[1] - at.at_s[0]) == pytest.approx(305)
    assert np.isnan(cut_timeline([record(index, 0.0) for index in range(40)], 30.0).ttft_p50_ms[-1])
    assert (empty.at_s.size, empty.asked_rps.tolist()) == (1, [0.0])
