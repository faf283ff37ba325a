"""The seam between datasets and the preprocessor, and what readers of local files share."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import orjson

from extproc.bench.datasets.conversation import Conversation
from extproc.bench.spec.section import SpecSection
from extproc.bench.spec.traffic import Dataset
from extproc.errors import SettingsError

Source = Callable[[Dataset, int, np.random.Generator], list[Conversation]]
"""Yields conversations for a dataset section; generators make enough for that many requests."""

Entry = Mapping[str, object]


def require_path(dataset: Dataset, options: type[SpecSection] = SpecSection) -> Path:
    """Returns the local file of a dataset; nothing is ever downloaded.

    Raises `SettingsError` without one, pydantic's `ValidationError` for options it does not have.
    """
    options.model_validate(dataset.options)
    if dataset.path is None:
        raise SettingsError(f"dataset {dataset.name}: give the path of a local file")
    return dataset.path


def read_rows(path: Path) -> Iterator[Entry]:
    """Yields the objects of a JSON list or of JSON lines; raises `SettingsError` with the place."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    if data.lstrip()[:1] == b"[":
        yield from _check_rows(path, _load(path, data, "the file"))
        return
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            yield from _check_rows(path, [_load(path, line, f"line {number}")])


def read_text(row: Entry, field: str) -> str:
    """Returns a field's text; empty if it is missing or no text."""
    value = row.get(field)
    return value if isinstance(value, str) else ""


def read_objects(row: Entry, field: str) -> list[Entry]:
    """Returns the objects in a field's list; empty if there is none."""
    value = row.get(field)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _load(path: Path, data: bytes, where: str) -> object:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise SettingsError(f"{path}: {where} is not JSON: {error}") from None


def _check_rows(path: Path, rows: object) -> Iterable[Entry]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SettingsError(f"{path}: rows must be JSON objects")
    return rows
