"""Prepared datasets that are kept, so that a later run asks the same."""

from pathlib import Path
from typing import Any

import pytest

from extproc.bench.datasets.conversation import ChatTurn, Conversation, TurnMessage
from extproc.bench.datasets.dataset_cache import DatasetCache, zip_dataset
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import build_workload, name_dataset
from extproc.bench.spec.tree import Spec
from extproc.errors import SettingsError

SHAPES: list[dict[str, Any]] = [
    {"req_rate": 20, "duration": 10, "dataset": "synthetic"},
    {"req_rate": 20, "total_prompts": 100, "dataset": {"name": "random", "input_tokens": 8}},
    {"vus": 3, "total_prompts": 20, "dataset": {"name": "shared-prefix"}},
]


def spec_of(shape: dict[str, Any], seed: int = 0) -> Spec:
    return Spec.model_validate({"endpoint": "x", "seed": seed, "performance": {"traffic-shape": shape}})


@pytest.mark.parametrize("shape", SHAPES)
def test_run_with_a_kept_dataset_is_the_run_that_prepared_it(shape: dict[str, Any], tmp_path: Path) -> None:
    spec, shelf = spec_of(shape), DatasetCache((tmp_path / "claim",))
    prepared = build_workload(spec, build_registry(), shelf)
    assert [path.name for path in (tmp_path / "claim").iterdir()] == [f"{name_dataset(spec)}.jsonl.gz"]

    assert build_workload(spec, build_registry(), shelf) == prepared
    assert build_workload(spec, build_registry()) == prepared


def test_what_is_kept_is_asked_whatever_would_be_drawn_today(tmp_path: Path) -> None:
    spec, shelf = spec_of(SHAPES[1]), DatasetCache((tmp_path,))
    kept = (Conversation((ChatTurn((TurnMessage("user", "as drawn by an older version"),), 5),)),)
    shelf.keep(name_dataset(spec), kept)

    assert build_workload(spec, build_registry(), shelf).conversations == kept


def test_folders_are_looked_through_in_order_and_the_last_one_keeps(tmp_path: Path) -> None:
    """An object that cannot be written comes first, a claim last."""
    fixed, claim = tmp_path / "fixed", tmp_path / "claim"
    spec, other, shelf = spec_of(SHAPES[1]), spec_of(SHAPES[1], seed=1), DatasetCache((fixed, claim))
    DatasetCache((fixed,)).keep(name_dataset(spec), build_workload(spec, build_registry()).conversations)
    for each in (spec, other):
        build_workload(each, build_registry(), shelf)

    assert [path.name for path in claim.iterdir()] == [f"{name_dataset(other)}.jsonl.gz"]
    assert len(list(fixed.iterdir())) == 1


def test_dataset_is_named_by_all_that_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[]")
    shape = {**SHAPES[0], "dataset": {"name": "share-gpt", "path": str(path)}}
    names = [name_dataset(spec_of(each)) for each in (*SHAPES, shape)]
    path.write_text("[ ]")
    names += [name_dataset(spec_of(shape)), name_dataset(spec_of(SHAPES[0], seed=1))]

    assert len(set(names)) == len(names)
    assert name_dataset(spec_of(SHAPES[0]).model_copy(update={"processes": 7})) == names[0]


def test_same_dataset_is_the_same_file() -> None:
    conversations = build_workload(spec_of(SHAPES[1]), build_registry()).conversations

    assert zip_dataset(conversations) == zip_dataset(conversations)


@pytest.mark.parametrize("data", [b"", b"text", zip_dataset(())[:-5]])
def test_broken_dataset_is_told_by_its_name(data: bytes, tmp_path: Path) -> None:
    spec = spec_of(SHAPES[1])
    path = tmp_path / f"{name_dataset(spec)}.jsonl.gz"
    path.write_bytes(data)

    with pytest.raises(SettingsError, match=path.name):
        build_workload(spec, build_registry(), DatasetCache((tmp_path,)))


def test_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SettingsError, match="file"):
        build_workload(spec_of(SHAPES[1]), build_registry(), DatasetCache((tmp_path / "file" / "claim",)))
