"""A socket that sends nothing."""

from collections.abc import Sequence
from typing import Any

import msgspec


class Recorder:
    """Stands in for a socket; keeps what would have been sent."""

    def __init__(self) -> None:
        self.frames: list[Sequence[bytes]] = []

    def send_multipart(self, msg_parts: Sequence[bytes]) -> None:
        self.frames.append(msg_parts)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [
            event for _, _, payload in self.frames for event in msgspec.msgpack.decode(payload)[1]
        ]
