"""What is kept of responses, and for how long."""

import pytest

from extproc.simulator.http.refusals import Refusal
from extproc.simulator.http.store import ResponseStore, StoredResponse


def test_the_oldest_go_when_there_are_too_many_or_they_are_too_long() -> None:
    store = ResponseStore(most=3, most_characters=100)
    for number in range(5):
        store.add(f"resp_{number}", StoredResponse({}, (), 10))
    kept = len(store)
    store.add("resp_long", StoredResponse({"id": "resp_long"}, (), 95))

    assert (3, 1) == (kept, len(store))
    assert {"id": "resp_long"} == store.find("resp_long").body
    with pytest.raises(Refusal, match="Response with id 'resp_4' not found"):
        store.find("resp_4")
