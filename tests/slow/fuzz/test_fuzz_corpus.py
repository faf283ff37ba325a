"""Every input that ever was a finding, and arbitrary ones, keep the targets' promises."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.slow.fuzz.http2 import RULES, http2
from tests.slow.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
INPUTS = sorted(path for path in CORPUS.glob("*/*") if path.is_file())


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_input_of_the_corpus_is_no_finding(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_every_rule_about_http2_is_needed() -> None:
    """Each difference from the reference that is meant ends some conversation of the corpus."""
    used = {http2(path.read_bytes()) for path in INPUTS if path.parent.name == "http2"}

    assert {*RULES} == used - {None}


@pytest.mark.parametrize("target", TARGETS)
def test_arbitrary_input_is_no_finding(target: str) -> None:
    @given(st.binary(max_size=200))
    def run(data: bytes) -> None:
        TARGETS[target](data)

    run()
