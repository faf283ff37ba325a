"""What workers may tell of their metrics."""

from prometheus_client.core import Metric

from extproc.router.service.exposition import _expose
from extproc.router.workers.view.admin import parse
from extproc.router.workers.view.totals import Totals

SUMS = ("counter", "histogram", "summary")


def scrape(data: bytes) -> None:
    """Two workers tell anything, one after the other: it is read and can be written, and no sum goes back."""
    first, _, second = data.partition(b"\0")
    totals, before = Totals(), dict[object, float]()
    for worker, body in (("a", first), ("b", second), ("a", second), ("b", first)):
        families = parse(body)
        if families is None:
            continue
        merged = totals.merge({worker: families})
        _expose(merged, "", is_zipped=False)
        now = _sums(merged)
        assert all(now[place] >= before[place] for place in now.keys() & before.keys())
        before |= now


def _sums(families: list[Metric]) -> dict[object, float]:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        if family.type in SUMS
        for sample in family.samples
    }
