"""Files of other tools, as they are: inference-perf's configuration, Mooncake's traces, published runs."""

import json
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest
import yaml

from extproc.bench.datasets.conversation import ChatTurn
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import Workload, build_workload
from extproc.bench.spec.section import find_tokenizer
from extproc.bench.spec.tree import Spec, parse_spec
from extproc.errors import SettingsError
from tests.bench.running import call
from tests.stack.ports import free_ports
from tests.stack.simulators import Simulators
from tests.tables import table

CONFIGURATION = Path(__file__).with_name("data") / "inference-perf.yaml"
TRACE = [(0, 700, [1, 2]), (100, 900, [1, 3]), (300, 40, [4]), (300, 512, ["a1"])]


def change(section: str, **fields: Any) -> str:
    """The configuration with other fields in a section, as YAML."""
    tree = yaml.safe_load(CONFIGURATION.read_text())
    tree[section] |= fields
    return yaml.safe_dump(tree)


def work_out(text: str) -> tuple[Spec, Workload, list[ChatTurn]]:
    spec = parse_spec(text)
    work = build_workload(spec, build_registry())
    return spec, work, [conversation.turns[0] for conversation in work.conversations]


def test_ladder_of_groups_is_asked_as_it_says(caplog: pytest.LogCaptureFixture) -> None:
    """Twenty prompts in groups of five, gone through again; a pause of a tenth of a second between steps."""
    spec, work, prompts = work_out(CONFIGURATION.read_text())
    starts = [
        sum(low <= at < high for at in work.starts_s or ())
        for low, high in ((0, 1), (1, 1.1), (1.1, 2.1))
    ]

    assert (spec.target.model, spec.target.api.name, spec.target.is_streaming) == (
        *("llama", "vllm-completions", True),
    )
    assert sorted(Counter(turn.messages[0].content for turn in prompts).values()) == [5, 5, 5, 5]
    assert {len(turn.messages[0].content) for turn in prompts} == {60 * 4}
    assert {turn.output_tokens for turn in prompts} == {7}
    assert all(5 <= len(turn.messages[1].content) / 4 <= 15 for turn in prompts)
    assert (starts[1], spec.traffic.duration) == (0, 2.1)
    assert 5 < starts[0] < starts[2] < 80
    assert parse_spec(call("init", "--from", CONFIGURATION).stdout) == spec
    for said in ("load.num_workers", "report", "storage", "Qwen/Qwen3-32B (not on this machine"):
        assert said in caplog.text


@table(
    ("text", "faults"),
    [
        (
            change("load", sweep={"type": "linear"}),
            ["load.sweep: not done here: `extproc bench saturate`"],
        ),
        (
            change("load", type="trace_session_replay", stages=[{"concurrent_sessions": 2}]),
            ["load.type: trace_session_replay is not done here: a spec has sessions as"],
        ),
        (
            change("data", type="shareGPT", path="x"),
            ["data.type: shareGPT is not done here: a spec has it as `dataset: {name: share-gpt"],
        ),
        (change("load", surge=1), ["load.surge: not done here: no such key is known"]),
        (
            change("load", type="concurrent"),
            ["load: a stage of type concurrent has concurrency_level and num"],
        ),
        (
            change("api", type="embeddings", slo_unit="s"),
            ["api.type: 'embeddings' is none", "api.slo_unit: not"],
        ),
        (change("server", api_key="k"), ["server.api_key: not done here: no key stands in a file"]),
        (
            change("data", shared_prefix={"enable_multi_turn_chat": True}),
            ["data.shared_prefix.enable_multi_turn_chat: not done here: prompts stand alone"],
        ),
    ],
)
def test_key_that_is_not_done_is_refused_by_its_name_and_line(text: str, faults: list[str]) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_spec(text)
    for line, fault in zip(str(refused.value).splitlines(), sorted(faults), strict=True):
        assert line.startswith("spec:")
        assert fault in line


def test_other_loads_and_data_become_their_own(tmp_path: Path) -> None:
    """One stage, a closed loop, lengths by their distributions, and those of an Azure trace."""
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,12,4\n")
    lengths = {
        "type": "lognormal",
        "mean": 50,
        "std_dev": 50,
        "min": 1,
        "max": 4000,
        "total_count": 9,
    }
    drawn = {"input_distribution": lengths, "output_distribution": {"std": 0, "mean": 20}}
    stage = [{"concurrency_level": 3, "num_requests": 800}]
    closed = yaml.safe_load(change("load", type="concurrent", stages=stage))
    one, _, _ = work_out(change("load", stages=[{"rate": 5, "duration": 30}]))
    spec, work, prompts = work_out(yaml.safe_dump({**closed, "data": {"type": "random", **drawn}}))
    traced = {"type": "random", "trace": {"file": str(trace)}}
    _, _, (row,) = work_out(yaml.safe_dump({**closed, "data": traced}))

    assert (one.traffic.shape.name, one.traffic.req_rate, one.traffic.duration) == (
        "constant",
        5,
        30,
    )
    assert (spec.traffic.vus, work.total, {turn.output_tokens for turn in prompts}) == (
        3,
        800,
        {20},
    )
    assert fmean(len(turn.messages[0].content) / 4 for turn in prompts) == pytest.approx(
        50, rel=0.15
    )
    assert row.output_tokens == 4


@pytest.mark.slow
def test_configuration_and_trace_are_run_against_a_simulated_endpoint(tmp_path: Path) -> None:
    """The trace at its own times: the second prompt finds the block of 512 tokens that the first one left."""
    trace, (port,) = tmp_path / "toolagent_trace.jsonl", free_ports(1)
    fields = ("timestamp", "input_length", "hash_ids")
    rows = [dict(zip(fields, row, strict=True), output_length=2) for row in TRACE]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    url = f"http://127.0.0.1:{port}"
    file = tmp_path / "config.yaml"
    file.write_text(change("server", base_url=url))

    def run(*arguments: object) -> dict[str, Any]:
        output = tmp_path / f"out-{len(arguments)}"
        call("run", *arguments, "--output", output, "--quiet", "--allow-client-limited")
        report: dict[str, Any] = json.loads((output / "report.json").read_bytes())
        return report

    with Simulators(
        tmp_path, range(port, port + 1), "--model", "llama", "--speed", "20"
    ) as endpoint:
        endpoint.wait_ready()
        ladder = run(file)
        replayed = run("--url", url, "--trace", trace)

    counts, tokens = ladder["whole"]["counts"], ladder["whole"]["tokens"]
    assert counts["completed"] == counts["offered"] > 20
    assert tokens["output"] == 7 * counts["completed"]
    assert [phase["name"] for phase in ladder["phases"]] == ["1: 20 req/s", "2: 40 req/s"]
    assert replayed["whole"]["counts"]["completed"] == 4
    assert replayed["whole"]["tokens"]["output"] == 8


SEEDS = Path(__file__).with_name("data") / "seed_jobs.yaml"


def read_prompts(spec: Spec) -> list[tuple[str, int]]:
    """The requests, in order: the text and the tokens its answer may have."""
    made = build_workload(spec, build_registry()).conversations
    return [(each.turns[0].messages[0].content, each.turns[0].output_tokens) for each in made]


@pytest.fixture
def sharegpt(tmp_path: Path) -> Path:
    """Twelve conversations of four messages, each with its number, and one that is too short."""

    def say(row: int, turn: int) -> dict[str, str]:
        return {
            "from": ("human", "gpt")[turn % 2],
            "value": f"{turn} of {row} " + "word " * (8 + row),
        }

    rows = [{"conversations": [say(row, turn) for turn in range(4)]} for row in range(12)]
    path = tmp_path / "sharegpt.json"
    path.write_bytes(
        msgspec.json.encode([*rows, {"conversations": [{"from": "human", "value": "alone"}]}])
    )
    return path


@pytest.mark.parametrize("job", yaml.safe_load(SEEDS.read_text()), ids=lambda job: str(job["name"]))
def test_arguments_of_the_published_jobs_work_unchanged(
    job: dict[str, Any], sharegpt: Path
) -> None:
    """Only the path of the file is another one here."""
    done = call("serve", *job["args"], f"--dataset-path={sharegpt}", "--print-spec")
    spec = parse_spec(done.stdout)
    shape, expected = spec.traffic, job["means"]

    assert (
        shape.req_rate,
        shape.max_concurrency,
        shape.total_prompts,
        shape.dataset.max_prompts,
    ) == (
        expected["rate"],
        expected["cap"],
        expected["prompts"],
        expected["distinct"],
    )
    assert (shape.arrivals, spec.seed) == ("poisson", 12345)
    assert spec.base_url == expected["url"]
    assert len(read_prompts(spec)) == 24  # two questions each, all within the limit


def test_prompts_are_whole_conversations_that_begin_again(sharegpt: Path) -> None:
    base = ("--base-url=http://h", "--model=m", f"--dataset-path={sharegpt}")
    done = call("serve", *base, "--max-conversations=5", "--num-prompts=20", "--print-spec")
    spec = parse_spec(done.stdout)
    asked = read_prompts(spec)

    assert done.stderr == "tokenizer m: not on this machine: four bytes are a token\n"
    assert len(asked) == 5
    assert sorted(text.count("User: ") for text, _ in asked) == [1, 1, 1, 2, 2]
    assert build_workload(spec, build_registry()).total == 20


@table("flag", ["--burstiness=2", "--percentile-metrics", "--save-result", "extra"])
def test_every_other_flag_is_refused_in_one_line(flag: str) -> None:
    done = call("serve", "--base-url=http://h", "--model=m", "--dataset-path=f", flag)

    assert isinstance(done.exception, SettingsError)
    assert str(done.exception) == (
        f"{flag.partition('=')[0]} is not supported; use vLLM's own `vllm bench serve`, "
        "or a spec: docs/how-to/benchmark.md"
    )


def test_tokenizer_is_found_by_path_folder_and_in_the_hubs_cache(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    file = folder / "tokenizer.json"
    file.touch()

    assert find_tokenizer(str(file), {}) == file
    assert find_tokenizer(str(folder), {}) == file
    assert find_tokenizer("org/name", {"HF_HUB_CACHE": str(tmp_path / "hub")}) == file
    assert find_tokenizer("org/name", {"HF_HOME": str(tmp_path)}) == file
    assert find_tokenizer("org/other", {"HF_HOME": str(tmp_path)}) is None


def test_command_measures_and_writes_vllms_file(
    null_server: int, sharegpt: Path, tmp_path: Path
) -> None:
    base = (f"--base-url=http://127.0.0.1:{null_server}", "--model=m", f"--dataset-path={sharegpt}")
    done = call(
        "serve", *base, "--num-prompts=5", "--request-rate=20", "--output", tmp_path / "out"
    )

    assert "Successful requests:                     5" in done.stdout
    assert msgspec.json.decode((tmp_path / "out" / "vllm.json").read_bytes())["completed"] == 5
