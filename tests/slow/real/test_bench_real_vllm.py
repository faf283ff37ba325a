"""`extproc bench serve` beside `vllm bench serve` of a real vLLM 0.32.0 on one server: `make test-vllm`.

What a busy machine cannot change is asserted: the prompts, their order, the tokens, and that our definitions
make vLLM's summary of vLLM's own requests. The clients' own times are printed as ratios.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from extproc.bench.measure import metrics
from extproc.bench.published.vllm_result import read_vllm_result, rebuild_run
from extproc.bench.report.serve import serve_json
from extproc.bench.spec.serve import translate
from extproc.bench.spec.serve_arguments import parse_arguments
from extproc.bench.spec.tree import Slo
from tests.slow.real.process import ENVIRONMENT, run_vllm
from tests.stack.ports import free_ports

DIRECTORY = os.environ.get("REAL_VLLM")
pytestmark = [
    pytest.mark.real_vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not DIRECTORY, reason="REAL_VLLM names no vLLM: run `make test-vllm`"),
]
WORDS = ("import", "return", "class", "value", "yield", "except", "module", "string", "number", "object")
LATENCIES = ("ttft", "tpot", "itl", "e2el")
FIGURES = (
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    *(f"{point}_{name}_ms" for name in LATENCIES for point in ("mean", "median", "p90")),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    with run_vllm(Path(DIRECTORY or ""), free_ports(1)[0], log) as url:
        yield url


@pytest.fixture(scope="module")
def arguments(server: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What both are given: a ShareGPT file, shuffled by a seed, answers of 32 tokens, four at a time."""
    random = Random(5)
    rows = [
        {
            "conversations": [
                {"from": who, "value": " ".join(random.choices(WORDS, k=random.randint(20, 120)))}
                for who in ("human", "gpt")
            ]
        }
        for _ in range(60)
    ]
    dataset = tmp_path_factory.mktemp("dataset") / "sharegpt.json"
    dataset.write_bytes(orjson.dumps(rows))
    model = Path(DIRECTORY or "").absolute() / "model"
    return (
        f"--backend openai --base-url {server} --model tiny --tokenizer {model} --dataset-name sharegpt "
        f"--dataset-path {dataset} --num-prompts 50 --sharegpt-output-len 32 --ignore-eos --seed 7 "
        "--max-concurrency 4 --temperature 0 --goodput e2el:1000 --percentile-metrics ttft,tpot,itl,e2el "
        "--metric-percentiles 90 --save-result --save-detailed --disable-tqdm"
    )


def measure(command: list[str], arguments: str, folder: Path, name: str) -> dict[str, Any]:
    """Runs one of the two and returns its result file; the lists in it are as long as the run."""
    whole = [*command, "bench", "serve", *shlex.split(arguments)]
    whole += ["--result-dir", str(folder), "--result-filename", name]
    done = subprocess.run(whole, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False)
    # Ours says by its status that the machine was busy.
    assert done.returncode in {0, 3}, done.stdout + done.stderr
    said: dict[str, Any] = orjson.loads((folder / name).read_bytes())
    return said


@pytest.fixture(scope="module")
def pairs(
    arguments: str, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Ours and theirs by turns, three times, each time beginning with the other."""
    folder = tmp_path_factory.mktemp("results")
    clients = {
        "ours": [sys.executable, "-m", "extproc"],
        "theirs": [str(Path(DIRECTORY or "").absolute() / "venv/bin/vllm")],
    }
    rounds = []
    for round_ in range(3):
        order = sorted(clients, reverse=bool(round_ % 2))
        said = {who: measure(clients[who], arguments, folder, f"{who}-{round_}.json") for who in order}
        rounds.append((said["ours"], said["theirs"]))
    return rounds


def test_prompts_and_tokens_are_vllms_request_by_request(
    pairs: list[tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    for ours, theirs in pairs:
        assert ours["input_lens"] == theirs["input_lens"]
        assert ours["output_lens"] == theirs["output_lens"] == [32] * 50
        assert (ours["completed"], ours["failed"]) == (theirs["completed"], theirs["failed"]) == (50, 0)
        for name in ("total_input_tokens", "total_output_tokens", "max_concurrency", "burstiness", "backend"):
            assert ours[name] == theirs[name], name


def test_keys_of_the_result_file_are_vllms(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    ours, theirs = pairs[0]

    # Audio alone has a real-time factor.
    assert set(theirs) - set(ours) == {"rtfx"}
    assert set(ours) <= set(theirs)


def test_vllms_requests_measured_by_us_have_vllms_figures(
    pairs: list[tuple[dict[str, Any], dict[str, Any]]], arguments: str, tmp_path: Path
) -> None:
    telling = translate(parse_arguments(shlex.split(arguments)), {}).telling
    for _, theirs in pairs:
        path = tmp_path / "theirs.json"
        path.write_bytes(orjson.dumps(theirs))
        run = rebuild_run(read_vllm_result(path), "theirs")
        whole = metrics.measure(run.records, metrics.whole_run(run), Slo())
        again = orjson.loads(serve_json(run, whole, telling))
        for name in (*FIGURES, "request_goodput", "max_output_tokens_per_s", "max_concurrent_requests"):
            assert again[name] == pytest.approx(theirs[name], rel=1e-3, abs=0.05), name


def test_ratios_of_the_two_clients_are_shown(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Both took turns on a machine with other work: the server's own speed changed between them, too."""
    for name in FIGURES:
        ratios = [ours[name] / theirs[name] for ours, theirs in pairs if theirs[name]]
        print(f"{name:24} {' '.join(f'{ratio:.3f}' for ratio in ratios)}")  # noqa: T201

    assert all(said[name] > 0 for pair in pairs for said in pair for name in ("mean_ttft_ms", "mean_e2el_ms"))
