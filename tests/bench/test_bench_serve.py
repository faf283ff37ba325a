"""`extproc bench serve`: the published runs by their own arguments, and a plain no to all others."""

from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from click.testing import CliRunner, Result

from extproc.bench.commands import bench
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import build_workload
from extproc.bench.spec.section import find_tokenizer
from extproc.bench.spec.tree import Spec, parse_spec
from extproc.errors import SettingsError
from tests.tables import table

SEEDS = Path(__file__).with_name("data") / "seed_jobs.yaml"


def serve(*arguments: object) -> Result:
    return CliRunner().invoke(bench, ["serve", *map(str, arguments)])


def read_prompts(spec: Spec) -> list[tuple[str, int]]:
    """The requests, in order: the text and the tokens its answer may have."""
    made = build_workload(spec, build_registry()).conversations
    return [(each.turns[0].messages[0].content, each.turns[0].output_tokens) for each in made]


@pytest.fixture
def sharegpt(tmp_path: Path) -> Path:
    """Twelve conversations of four messages, each with its number, and one that is too short."""

    def say(row: int, turn: int) -> dict[str, str]:
        return {"from": ("human", "gpt")[turn % 2], "value": f"{turn} of {row} " + "word " * (8 + row)}

    rows = [{"conversations": [say(row, turn) for turn in range(4)]} for row in range(12)]
    path = tmp_path / "sharegpt.json"
    path.write_bytes(orjson.dumps([*rows, {"conversations": [{"from": "human", "value": "alone"}]}]))
    return path


@pytest.mark.parametrize("job", yaml.safe_load(SEEDS.read_text()), ids=lambda job: str(job["name"]))
def test_arguments_of_the_published_jobs_work_unchanged(job: dict[str, Any], sharegpt: Path) -> None:
    """Only the path of the file is another one here."""
    done = serve(*job["args"], f"--dataset-path={sharegpt}", "--print-spec")
    spec = parse_spec(done.stdout)
    shape, expected = spec.traffic, job["means"]

    assert (shape.req_rate, shape.max_concurrency, shape.total_prompts, shape.dataset.max_prompts) == (
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
    done = serve(*base, "--max-conversations=5", "--num-prompts=20", "--print-spec")
    spec = parse_spec(done.stdout)
    asked = read_prompts(spec)

    assert len(asked) == 5
    assert sorted(text.count("User: ") for text, _ in asked) == [1, 1, 1, 2, 2]
    assert build_workload(spec, build_registry()).total == 20


@table("flag", ["--burstiness=2", "--percentile-metrics", "--save-result", "extra"])
def test_every_other_flag_is_refused_in_one_line(flag: str) -> None:
    done = serve("--base-url=http://h", "--model=m", "--dataset-path=f", flag)

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


def test_command_measures_and_writes_vllms_file(null_server: int, sharegpt: Path, tmp_path: Path) -> None:
    base = (f"--base-url=http://127.0.0.1:{null_server}", "--model=m", f"--dataset-path={sharegpt}")
    done = serve(*base, "--num-prompts=5", "--request-rate=20", "--output", tmp_path / "out")

    assert "Successful requests:                     5" in done.stdout
    assert orjson.loads((tmp_path / "out" / "vllm.json").read_bytes())["completed"] == 5
