"""What an object holds, seen from outside: whatever its fields are called, and whichever come to it."""

import gc
from collections import deque
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType

_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, bytes, bytearray, memoryview)


def reach(root: object) -> Iterator[object]:
    """Everything that `root` refers to, itself among it, but no classes and no code."""
    seen, waiting = set[int](), [root]
    while waiting:
        found = waiting.pop()
        if id(found) not in seen and not isinstance(found, _CODE):
            seen.add(id(found))
            yield found
            waiting += gc.get_referents(found)


def size_of(root: object) -> int:
    """How many entries all its containers have, and bytes its buffers."""
    return sum(len(found) for found in reach(root) if isinstance(found, _CONTAINERS))
