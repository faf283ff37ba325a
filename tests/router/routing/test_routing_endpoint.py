"""Addresses: canonical, and nothing else."""

import pytest

from extproc.errors import AddressError
from extproc.router.routing.endpoint import (
    Endpoint,
    canonical_location,
    join_address,
    parse_address,
    parse_target,
)
from tests.tables import table


@table(
    ("text", "canonical"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000"),
        (" 10.0.0.1:8000 ", "10.0.0.1:8000"),
        ("[FD00:0:0::1]:8000", "[fd00::1]:8000"),
    ],
)
def test_an_address_has_one_form(text: str, canonical: str) -> None:
    assert parse_address(text) == canonical


@table(
    "text",
    [
        *("", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:-1", "10.0.0.1:٣"),
        *("10.0.0.1:123456", "vllm:80", "fd00::1:80", "[10.0.0.1]:80", "[fd00::1]"),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        parse_address(text)


def test_an_address_and_a_target_have_two_parts() -> None:
    endpoint = Endpoint("pod", join_address("fd00::1", 8000))

    assert (endpoint.ip, endpoint.port) == ("fd00::1", 8000)
    assert parse_target(" vllm-headless.default.svc:8000 ") == ("vllm-headless.default.svc", 8000)


@table(
    "text",
    [
        *("vllm", ":80", "vllm:", "vllm:http", "vllm:0", "vllm:65536"),
        *("vllm:" + "9" * 5_000, "a:b:1", "10.0.0.1:80"),
    ],
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        parse_target(text)


@table(
    ("text", "canonical"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("FD00:0::3", "fd00::3"),
        ("[FD00:0::3]", "fd00::3"),
        ("[FD00:0::3]:80", "[fd00::3]:80"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_location_has_one_spelling(text: str, canonical: str) -> None:
    assert canonical_location(text) == canonical
