import pytest

from tests.cluster.harness import RecordingSink


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()
