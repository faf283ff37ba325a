"""JSON from other servers into typed values."""

from typing import TypeVar

import msgspec

from extproc.errors import ExtprocError

T = TypeVar("T")


class Unreadable(ExtprocError):
    """Bytes are not the JSON that was asked for."""


def decode_json(data: bytes | msgspec.Raw, type_: type[T]) -> T:
    """Decodes JSON into `type_`, skipping what it does not declare. Raises `Unreadable` and nothing else."""
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(str(error)) from error
    except RecursionError:
        raise Unreadable("nested too deeply") from None
