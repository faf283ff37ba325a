"""Tables inside a test: many rows, one case."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import pytest

F = TypeVar("F", bound=Callable[..., Any])


def table(
    names: str | Sequence[str],
    rows: Iterable[Any],
    *,
    ids: Iterable[Any] | Callable[[Any], object] | None = None,
) -> Callable[[F], F]:
    """As `pytest.mark.parametrize` in one case, for rows that need nothing fresh; a failure names its row."""
    fields = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [_values(row, len(fields)) for row in rows]
    labels = [ids(case[0]) for case in cases] if callable(ids) else list(ids or range(len(cases)))

    def decorate(test: F) -> F:
        def each() -> Iterable[tuple[object, dict[str, Any]]]:
            return zip(
                labels, (dict(zip(fields, case, strict=True)) for case in cases), strict=True
            )

        @functools.wraps(test)
        async def run_async(*args: Any, **kwargs: Any) -> None:
            for label, row in each():
                try:
                    await test(*args, **kwargs, **row)
                except BaseException as error:
                    error.add_note(f"in the row {label}: {row!r:.1000}")
                    raise

        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            for label, row in each():
                try:
                    test(*args, **kwargs, **row)
                except BaseException as error:
                    error.add_note(f"in the row {label}: {row!r:.1000}")
                    raise

        wrapper: Any = run_async if inspect.iscoroutinefunction(test) else run
        signature = inspect.signature(test)
        rest = [parameter for name, parameter in signature.parameters.items() if name not in fields]
        wrapper.__signature__ = signature.replace(parameters=rest)
        return cast("F", wrapper)

    return decorate


def _values(row: Any, count: int) -> tuple[Any, ...]:
    if isinstance(row, type(pytest.param())):
        return tuple(row.values)
    return (row,) if count == 1 else tuple(row)
