import importlib.util
from pathlib import Path
from typing import Any

import pytest

from extproc.bench.commands import bench
from extproc.bench.experiments.plan import ClientHost, plan
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import build_workload
from extproc.bench.processors.collector import collect_stream
from extproc.bench.record import Record
from extproc.bench.spec.tree import parse_spec
from tests.bench.manual import DOCS, blocks

LARGE = ClientHost(cores=16, ports=60_000, files=100_000)


@pytest.mark.parametrize("text", blocks("yaml"), ids=range(len(blocks("yaml"))))
def test_every_spec_in_the_manual_can_be_run(text: str) -> None:
    spec = parse_spec(text)

    assert plan(spec, build_workload(spec, build_registry()), LARGE, latency_s=2).faults == ()


def test_processor_in_the_manual_speaks_its_api(tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text(blocks("python")[0])
    registry = build_registry()
    module = import_module_from(tmp_path / "triton.py")
    module.register(registry)
    record, stream = Record(0, 0, 0, 0.0), b'data: {"text_output": "he"}\n\ndata: {"text_output": "llo"}\n\n'
    collect_stream(record, [(1.0, stream)], module.Triton())

    assert (record.failure, record.text) == (None, "hello")
    assert "triton" in registry.clients


def import_module_from(path: Path) -> Any:
    """A plugin as a spec names it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_is_in_the_manual() -> None:

    assert {name for name in bench.commands if f"extproc bench {name} " not in DOCS} == set()
