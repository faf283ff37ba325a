"""AIPerf's importer reads a recorded trace as it is."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.router.recording.traced import Rows, record_pool
from tests.router.routing.fleet import Fleet, words

AIPERF = shutil.which("aiperf")
# Its importer's own reader, and the rule by which it cuts the last block: by --isl-block-size, which the row names.
READ = """
import json, sys
from aiperf.dataset.loader.models import MooncakeTrace
from aiperf.dataset.loader.mooncake_trace import MooncakeTraceDatasetLoader as Loader
for line in open(sys.argv[1]):
    row = json.loads(line)
    assert Loader.can_load(row), row
    trace = MooncakeTrace.model_validate(row)
    last = trace.input_length - trace.block_size * (len(trace.hash_ids) - 1)
    print(json.dumps([trace.timestamp, trace.output_length, 0 < last <= 16]))
"""


@pytest.mark.skipif(AIPERF is None, reason="needs `aiperf` on the PATH (pip install aiperf)")
def test_aiperf_imports_a_recorded_trace(tmp_path: Path) -> None:
    fleet, rows, path = Fleet(), Rows(), tmp_path / "trace.jsonl"
    record_pool(fleet, rows)
    for size in (1, 511, 512, 3_000):
        pick = fleet.pick(words("asks", size))
        fleet.clock.now_s += 1
        pick.release()
    path.write_bytes(b"".join(rows.files[0]))
    python = Path(str(AIPERF)).resolve().with_name("python")

    said = subprocess.run([python, "-c", READ, path], capture_output=True, text=True, check=True)
    read = [json.loads(line) for line in said.stdout.splitlines()]

    assert [(at, fits) for at, _, fits in read] == [(1_000 * n, True) for n in range(4)]
