"""Listeners of the shared Envoy that differ from the shipped one: how each sends bodies to the service."""

from collections.abc import Mapping
from typing import Final

from tests.stack.gateway import Edit, Tree, ext_proc_filter


def in_mode(mode: str, **fields: object) -> Edit:
    def edit(tree: Tree) -> None:
        config = ext_proc_filter(tree)
        config["processing_mode"]["request_body_mode"] = mode
        if mode == "FULL_DUPLEX_STREAMED":
            config["processing_mode"]["request_trailer_mode"] = "SEND"
        config.update(fields)

    return edit


MODES: Final[Mapping[str, Edit]] = {
    "partial": in_mode("BUFFERED_PARTIAL"),
    "streamed": in_mode("STREAMED"),
    "full_duplex": in_mode("FULL_DUPLEX_STREAMED"),
}
