"""`extproc bench serve`: vLLM's arguments, what they become, and what is told in vLLM's words."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import orjson
import pytest
import yaml
from click.testing import CliRunner

from extproc.bench.commands import bench
from extproc.bench.datasets.conversation import Conversation
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import build_workload
from extproc.bench.measure import metrics
from extproc.bench.report.serve import name_result_file, serve_json, serve_text
from extproc.bench.spec.serve import Serve, find_tokenizer, translate
from extproc.bench.spec.serve_arguments import HARMLESS, REFUSED, parse_arguments
from extproc.bench.spec.tree import Slo, Spec
from extproc.errors import SettingsError
from tests.bench.synthetic import failed, record, result

SEEDS = Path(__file__).with_name("data") / "seed_jobs.yaml"
# The order of vLLM 0.32's table, all latencies asked for.
LABELS = (
    "Successful requests:",
    "Failed requests:",
    "Maximum request concurrency:",
    "Request rate configured (RPS):",
    "Benchmark duration (s):",
    "Total input tokens:",
    "Total generated tokens:",
    "Request throughput (req/s):",
    "Request goodput (req/s):",
    "Output token throughput (tok/s):",
    "Peak output token throughput (tok/s):",
    "Peak concurrent requests:",
    "Total token throughput (tok/s):",
    "Mean TTFT (ms):",
    "Median TTFT (ms):",
    "P99 TTFT (ms):",
    "Mean TPOT (ms):",
    "Median TPOT (ms):",
    "P99 TPOT (ms):",
    "Mean ITL (ms):",
    "Median ITL (ms):",
    "P99 ITL (ms):",
    "Mean E2EL (ms):",
    "Median E2EL (ms):",
    "P99 E2EL (ms):",
)


def serve(text: str, **environment: str) -> Serve:
    return translate(parse_arguments(shlex.split(text)), environment)


def traffic(text: str) -> dict[str, Any]:
    tree = serve(text).spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    shape: dict[str, Any] = tree["performance"]["traffic-shape"]
    return shape


def prompts(spec: Spec) -> list[tuple[str, int]]:
    """What is asked, in order: the text and the tokens its answer may have."""
    workload = build_workload(spec, build_registry())
    made: Sequence[Conversation] = workload.conversations
    return [(c.turns[0].messages[0].content, c.turns[0].output_tokens) for c in made]


@pytest.fixture
def sharegpt(tmp_path: Path) -> Path:
    """Twelve conversations of four messages, told apart by their number, and one that is too short."""
    rows = [
        {
            "conversations": [
                {
                    "from": "human" if turn % 2 == 0 else "gpt",
                    "value": f"{turn} of {row} " + "word " * (8 + row),
                }
                for turn in range(4)
            ]
        }
        for row in range(12)
    ]
    path = tmp_path / "sharegpt.json"
    path.write_bytes(orjson.dumps([*rows, {"conversations": [{"from": "human", "value": "alone"}]}]))
    return path


@pytest.mark.parametrize("job", yaml.safe_load(SEEDS.read_text()), ids=lambda job: str(job["name"]))
def test_arguments_of_the_published_jobs_work_unchanged(job: dict[str, Any], sharegpt: Path) -> None:
    """Only the path of the file is another one here."""
    arguments = [str(argument) for argument in job["args"]]
    asked = translate(
        parse_arguments([*arguments, f"--dataset-path={sharegpt}"]), {"HF_HOME": str(sharegpt.parent)}
    )
    shape, expected = asked.spec.traffic, job["means"]

    assert (shape.req_rate, shape.max_concurrency, shape.total_prompts, shape.dataset.max_prompts) == (
        expected["rate"],
        expected["cap"],
        expected["prompts"],
        expected["distinct"],
    )
    assert (shape.arrivals, asked.spec.seed) == ("poisson", 12345)
    assert asked.spec.base_url == expected["url"]
    assert asked.spec.target.path == "/v1/completions"
    assert len(prompts(asked.spec)) == 24  # two questions each, all within the limit


def test_kubeais_prompts_are_whole_conversations_that_begin_again(sharegpt: Path) -> None:
    spec = serve(
        f"--dataset-name sharegpt --dataset-path {sharegpt} --max-conversations 5 --num-prompts 20"
    ).spec
    asked = prompts(spec)

    assert len(asked) == 5
    assert sorted(text.count("User: ") for text, _ in asked) == [1, 1, 1, 2, 2]
    assert build_workload(spec, build_registry()).asked == 20


def test_prompts_of_sharegpt_are_vllms_in_vllms_order(sharegpt: Path) -> None:
    """The first question of each conversation, shuffled as Python does, the answer's length beside it."""
    rows = list(range(12))
    Random(7).shuffle(rows)
    asked = prompts(serve(f"--dataset-name sharegpt --dataset-path {sharegpt} --num-prompts 9 --seed 7").spec)

    assert [int(text.split()[2]) for text, _ in asked] == rows[:9]
    assert asked[0][1] == -(-len(f"1 of {rows[0]} " + "word " * (8 + rows[0])) // 4)


def test_fewer_prompts_than_asked_for_are_drawn_again(sharegpt: Path) -> None:
    asked = prompts(
        serve(
            f"--dataset-name sharegpt --dataset-path {sharegpt} --num-prompts 30 --sharegpt-output-len 5"
        ).spec
    )

    assert len(asked) == 30
    assert len(set(asked)) == 12
    assert {tokens for _, tokens in asked} == {5}


def test_custom_prompts_come_with_one_length_or_their_own(tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_bytes(
        b"".join(orjson.dumps({"prompt": f"p{i}", "output_tokens": i + 1}) + b"\n" for i in range(3))
    )
    base = f"--dataset-name custom --dataset-path {path} --num-prompts 3 --disable-shuffle"

    assert prompts(serve(base).spec) == [("p0", 256), ("p1", 256), ("p2", 256)]
    assert prompts(serve(f"{base} --custom-output-len=-1").spec) == [("p0", 1), ("p1", 2), ("p2", 3)]


def test_each_prefix_is_repeated_equally_often() -> None:
    asked = prompts(
        serve(
            "--dataset-name prefix_repetition --num-prompts 20 --prefix-repetition-num-prefixes 4 "
            "--prefix-repetition-prefix-len 8 --prefix-repetition-suffix-len 4"
        ).spec
    )
    prefixes = [text[:32] for text, _ in asked]

    assert len(set(prefixes)) == 4
    assert {prefixes.count(prefix) for prefix in prefixes} == {5}
    assert len({text for text, _ in asked}) == 20
    assert prefixes != sorted(prefixes)


def test_random_prompts_share_a_prefix_and_spread_around_a_length() -> None:
    asked = prompts(
        serve(
            "--num-prompts 200 --random-input-len 100 --random-output-len 10 --random-prefix-len 5 "
            '--random-range-ratio \'{"input": 0.2, "output": 0}\''
        ).spec
    )
    sizes = [len(text) // 4 - 5 for text, _ in asked]

    assert len({text[:20] for text, _ in asked}) == 1
    assert (min(sizes), max(sizes)) == (80, 120)
    assert {tokens for _, tokens in asked} == {10}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--request-rate inf", {"req-rate": "inf"}),
        ("--request-rate 5", {"req-rate": 5.0, "arrivals": "poisson"}),
        ("--request-rate 5 --burstiness 0.5", {"req-rate": 5.0, "arrivals": "gamma", "burstiness": 0.5}),
        ("--request-rate 5 --burstiness inf", {"req-rate": 5.0}),
        ("--max_concurrency 3", {"req-rate": "inf", "max-concurrency": 3}),
    ],
)
def test_rates_and_caps_are_vllms(arguments: str, expected: dict[str, object]) -> None:
    shape = traffic(f"--num-prompts 4 {arguments}")
    shape["req-rate"] = "inf" if shape["req-rate"] in {None, float("inf"), "Infinity"} else shape["req-rate"]

    assert {name: shape[name] for name in expected} == expected
    assert set(shape) == {*expected, "dataset", "total-prompts"}


@pytest.mark.parametrize(
    ("arguments", "api", "body"),
    [
        ("", "openai-completions", {"ignore_eos": True}),
        ("--backend vllm --dataset-name prefix_repetition", "openai-completions", {}),
        ("--dataset-name prefix_repetition --ignore-eos", "openai-completions", {"ignore_eos": True}),
        (
            "--temperature 0 --top-k 5",
            "openai-completions",
            {"temperature": 0.0, "top_k": 5, "ignore_eos": True},
        ),
        (
            '--extra-body \'{"temperature": 1, "x": 2}\' --temperature 0',
            "openai-completions",
            {"temperature": 1, "x": 2, "ignore_eos": True},
        ),
        ("--logprobs 3", "openai-completions", {"ignore_eos": True, "logprobs": 3}),
        ("--backend openai-chat --endpoint /v1/chat/completions", "openai-chat", {"ignore_eos": True}),
        ("--backend openai-responses --endpoint /v1/responses", "openai-responses", {"ignore_eos": True}),
        ("--backend tgi --endpoint /generate_stream", "tgi", {}),
    ],
)
def test_backends_and_sampling_are_vllms(arguments: str, api: str, body: dict[str, object]) -> None:
    target = serve(arguments).spec.target

    assert (target.api.name, target.body) == (api, body)


def test_names_headers_and_keys_reach_the_server() -> None:
    spec = serve(
        "--host ::1 --port 9 --model org/big --served-model-name big --header a=b c=d=e",
        OPENAI_API_KEY="secret",
    ).spec

    assert spec.base_url == "http://[::1]:9"
    assert (spec.target.model, spec.target.headers) == ("big", {"a": "b", "c": "d=e"})
    assert spec.target.api_key_env == "OPENAI_API_KEY"


@pytest.mark.parametrize("flag", REFUSED)
def test_flags_that_would_mean_another_benchmark_are_refused(flag: str) -> None:
    name = flag.replace("_", "-")
    with pytest.raises(SettingsError, match=f"--{name}: not done here"):
        serve(f"--{name} 1")


@pytest.mark.parametrize("flag", HARMLESS)
def test_flags_that_change_nothing_are_warned_of(flag: str) -> None:
    name = flag.replace("_", "-")

    assert any(warning.startswith(f"--{name} does nothing") for warning in serve(f"--{name}").warnings)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--backend openai-embeddings", "does not generate text"),
        ("--backend openai-chat", "ends in chat/completions"),
        ("--backend tgi --endpoint /generate_stream --temperature 1", "takes no sampling"),
        ("--dataset-name hf --dataset-path x", "no such dataset"),
        ("--dataset-name sonnet", "no such dataset"),
        ("--dataset-name sharegpt", "needs a local file"),
        ("--dataset-path x", "reads no --dataset-path"),
        ("--max-conversations 5", "sharegpt only"),
        ("--hf-split train", "--hf-split: of a dataset"),
        ("--percentile-metrics ttft,speed", "no speed"),
        ("--goodput ttft", "METRIC:MILLISECONDS"),
        ("--goodput itl:5", "METRIC:MILLISECONDS"),
        ("--header a", "KEY=VALUE"),
        ("--num-prompts 0", "1 or more"),
        ("--no-such-flag", "unrecognized arguments"),
        ("--random-range-ratio 1.0", "below 1"),
        ("--metric-percentiles 101", "from 0 to 100"),
        ("--extra-body [1]", "no JSON object"),
        ("--max-concurrency 0", "greater than 0"),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_reason(arguments: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        serve(arguments)


def test_tokenizer_is_found_by_path_folder_and_in_the_hubs_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub/models--org--name/snapshots/abc"
    snapshot.mkdir(parents=True)
    file = snapshot / "tokenizer.json"
    file.write_text("{}")

    assert find_tokenizer(str(file), {}) == file
    assert find_tokenizer(str(snapshot), {}) == file
    assert find_tokenizer("org/name", {"HF_HOME": str(tmp_path)}) == file
    assert find_tokenizer("org/other", {"HF_HOME": str(tmp_path)}) is None


def told(arguments: str, records: list[Any]) -> tuple[str, dict[str, Any]]:
    run = result(records, duration_s=10.0)
    whole = metrics.measure(run.records, metrics.whole_run(run), Slo())
    telling = serve(arguments).telling
    return serve_text(run, whole, telling), orjson.loads(serve_json(run, whole, telling))


def test_text_has_vllms_labels_in_vllms_order() -> None:
    text, _ = told(
        "--max-concurrency 4 --request-rate 2 --goodput ttft:100 --percentile-metrics ttft,tpot,itl,e2el",
        [record(0, 0.0), failed(1, 1.0)],
    )
    lines = text.splitlines()

    assert [line[:40].rstrip() for line in lines if not line.startswith(("=", "-"))] == list(LABELS)
    assert {len(line) for line in lines if line.startswith(("=", "-"))} == {50}
    assert lines[0] == "============ Serving Benchmark Result ============"


def test_figures_are_vllms_by_hand() -> None:
    """Two requests overlap by a second; TTFT 0.5 s, ten gaps of 0.1 s, the end with the last chunk."""
    _, said = told(
        "--goodput ttft:600 e2el:1400 --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,99.9",
        [
            record(0, 0.0),
            record(1, 0.5, first_token_s=1.3, chunk_s=[1.3 + i / 10 for i in range(11)], end_s=2.4),
        ],
    )

    assert (said["completed"], said["failed"], said["request_throughput"]) == (2, 0, pytest.approx(0.2))
    assert (said["mean_ttft_ms"], said["p99.9_ttft_ms"]) == (pytest.approx(650), pytest.approx(799.7))
    assert (said["mean_tpot_ms"], said["mean_itl_ms"]) == (pytest.approx(100), pytest.approx(100))
    assert said["mean_e2el_ms"] == pytest.approx((1500 + 1800) / 2)
    assert said["request_goodput"] == 0  # both last longer than 1.4 s
    assert said["max_concurrent_requests"] == 2
    assert said["max_output_tokens_per_s"] == 13  # 6 of the first and 7 of the second, from 1 to 2 s
    assert "ttfts" not in said


def test_latencies_begin_where_vllms_do_before_the_request_is_encoded_and_connected() -> None:
    """Taken up at 0.1 s, written at 0.3 s: vLLM reads its clock before it opens a connection."""
    _, said = told(
        "--save-detailed --percentile-metrics ttft,e2el --goodput ttft:300",
        [record(0, 0.0, started_s=0.1, sent_s=0.3)],
    )

    assert said["mean_ttft_ms"] == pytest.approx(400)
    assert said["mean_e2el_ms"] == pytest.approx(1400)
    assert (said["ttfts"], said["latencies"]) == ([pytest.approx(0.4)], [pytest.approx(1.4)])
    assert (said["start_times"], said["request_goodput"]) == ([0.1], 0)


def test_details_and_metadata_are_saved_on_request() -> None:
    _, said = told("--save-detailed --metadata tp=1 team=blue", [record(0, 0.0), failed(1, 1.0)])

    assert (said["tp"], said["team"]) == ("1", "blue")
    assert said["ttfts"] == [0.5, None]
    assert said["errors"] == ["", "timeout"]
    assert said["latencies"][0] == pytest.approx(1.5)


def test_run_without_answers_tells_nan_and_null() -> None:
    text, said = told("", [failed(0, 0.0)])

    assert f"{'Mean TTFT (ms):':<40} {'nan':<10}" in text
    assert said["mean_ttft_ms"] is None


def test_result_file_is_named_as_vllm_names_it() -> None:
    telling = serve("--request-rate 5 --max-concurrency 3 --model org/big").telling

    assert (
        name_result_file(telling, "big", "20261122-120000")
        == "openai-5.0qps-concurrency3-big-20261122-120000.json"
    )


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(bench, ["serve", *arguments])


def test_command_measures_prints_and_saves(null_server: int, tmp_path: Path) -> None:
    """The first prompt is asked until it is answered, then twice to warm up, then comes the run."""
    done = invoke(
        *shlex.split(
            f"--host 127.0.0.1 --port {null_server} --model m --num-prompts 6 --random-input-len 4 "
            "--random-output-len 3 --max-concurrency 2 --ready-check-timeout-sec 5 --num-warmups 2 "
            f"--save-result --append-result --result-dir {tmp_path} --result-filename r.json "
            f"--output {tmp_path}/all --disable-tqdm --allow-client-limited"
        )
    )
    said = orjson.loads((tmp_path / "r.json").read_bytes())

    assert done.exit_code == 0, done.output
    assert "Successful requests:                     6" in done.stdout
    assert (said["completed"], said["total_output_tokens"]) == (6, 18)
    assert (tmp_path / "all/report.html").exists()


def test_command_fails_for_a_server_that_is_not_there(tmp_path: Path) -> None:
    done = invoke(
        *shlex.split(
            "--port 1 --model m --num-prompts 3 --random-input-len 4 --disable-tqdm --random-output-len 1"
        )
    )

    assert done.exit_code == 3
    assert "Failed requests:                         3" in done.stdout


def test_command_prints_a_spec_that_bench_run_reads(tmp_path: Path) -> None:
    done = invoke("--print-spec", "--num-prompts=5", "--request-rate=inf", "--max-concurrency=2", "--model=m")
    tree = yaml.safe_load(done.stdout)

    assert Spec.model_validate(tree) == serve("--num-prompts 5 --max-concurrency 2 --model m").spec


def test_help_lists_vllms_arguments() -> None:
    assert "--percentile-metrics" in invoke("--help").stdout


def test_unknown_dataset_exits_with_2() -> None:
    done = CliRunner().invoke(bench, ["serve", "--dataset-name", "hf"])

    assert isinstance(done.exception, SettingsError)


def test_percentiles_are_of_all_values() -> None:
    """The 50th percentile and the median are one figure."""
    records = [record(i, float(i), first_token_s=i + 0.1 * (i + 1)) for i in range(9)]
    _, said = told("--metric-percentiles 50", records)

    assert said["p50_ttft_ms"] == said["median_ttft_ms"] == pytest.approx(float(np.arange(1, 10)[4]) * 100)
