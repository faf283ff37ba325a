"""Plants faults in our HTTP/2, one at a time, and says who finds each, and after how many inputs.

    python -m tests.slow.fuzz.planted [--runs N]

Each fault goes into a copy of the package. First the fuzzer looks for it, from its seeds alone; if that
finds nothing, the tests do. Exit status 1 if a fault stays unfound.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[3]
PURE_ROOMS = ("frames", "streams", "flow", "headers", "messages", "bounds")


class Fault(NamedTuple):
    """What is wrong, and the words of `extproc/router/wire` that make it so."""

    name: str
    room: str
    right: str
    wrong: str


FAULTS = (
    Fault(
        "padding may be as long as its frame",
        "faults",
        "payload[0] >= len(payload)",
        "payload[0] > len(payload)",
    ),
    Fault("the cache outlives its table", "headers", "if not is_lasting:", "if False:"),
    Fault(
        "an entry pushed out by its equal is no change",
        "headers",
        "else None) is newest",
        "else None) == newest",
    ),
    Fault(
        "a trace is cut out wherever it seems to be",
        "headers",
        "            decoder.decode(cut.front, raw=True)\n",
        "            pass\n",
    ),
    Fault("a form where there is a table", "headers", "if decoder.header_table.maxsize or any(", "if any("),
    Fault("a form of a name that comes twice", "headers", "names.count(name) != 1", "False"),
    Fault("a form outlives its table", "headers", "            self._forms.clear()\n", ""),
    Fault("a trace's values have no bound", "headers", "> form.room", "> 1_000_000"),
    Fault(
        "a trace's values may be anything", "headers", "all(map(_VALUE.fullmatch, values.values()))", "True"
    ),
    Fault("a trace with a state is one without", "headers", "self.back, len(self.values)", "self.back, 0"),
    Fault("a late header block is not decoded", "incoming", "self._heads.pass_over(block)", "pass"),
    Fault("trailers are not decoded", "headers", "fields, _ = self._decode(block)", "fields = []"),
    Fault("a stream's window is not counted", "outgoing", "            stream.send_window -= size\n", ""),
    Fault(
        "the connection's window is not counted",
        "outgoing",
        "            self._send_window -= len(part)\n",
        "",
    ),
    Fault(
        "a window never falls below zero",
        "connection",
        "stream.send_window += change",
        "stream.send_window = max(0, stream.send_window + change)",
    ),
    Fault(
        "a window past its limit is taken",
        "incoming",
        "elif stream.send_window > frames.MAX_WINDOW:",
        "elif stream.send_window > 2**32:",
    ),
    Fault("a stream stays blocked for ever", "outgoing", "self._blocked[stream.id] = stream", "pass"),
    Fault(
        "our own window is opened too late",
        "incoming",
        "if stream.receive_window <= self",
        "if 4 * stream.receive_window < -self",
    ),
    Fault(
        "padding is not counted against our window",
        "incoming",
        "stream.receive_window -= size",
        "stream.receive_window -= len(payload)",
    ),
    Fault(
        "SETTINGS are acknowledged after the DATA that they allow",
        "connection",
        "            self._set(name, value)\n",
        "            self._set(name, value)\n"
        "            [self._send_queued(each) for each in list(self.streams.values()) if each.queue]\n",
    ),
    Fault("a smaller table is not answered", "connection", "self._table_update = TABLE_OF_NOTHING", "pass"),
    Fault(
        "a call ends before all is sent",
        "outgoing",
        "is None:\n            self._end(stream)",
        "is None or True:\n            self._end(stream)",
    ),
    Fault("an id that was reset stays late", "incoming", "        self._late.pop(stream_id, None)\n", ""),
    Fault("a stream that we end first is not late", "outgoing", "self._remember_late(stream.id)", "pass"),
    Fault(
        "even ids open streams",
        "incoming",
        "elif stream_id > self._last_id and stream_id & 1:",
        "elif stream_id > self._last_id:",
    ),
    Fault(
        "DATA may follow the client's end",
        "incoming",
        "  # \u00a75.1, half-closed (remote)\n            return\n",
        "\n",
    ),
    Fault(
        "trailers need not end their stream",
        "incoming",
        "elif is_end and is_well_formed:",
        "elif is_well_formed:",
    ),
    Fault(
        "one CONTINUATION too many",
        "incoming",
        "block.frames > self._limits.continuations",
        "block.frames > self._limits.continuations + 1",
    ),
    Fault("another stream's CONTINUATION", "connection", "or stream_id != self._block.stream_id", ""),
    Fault(
        "a prefix in pieces loses its place",
        "messages",
        "end = place + PREFIX_BYTES - len(self._kept)",
        "end = place + PREFIX_BYTES",
    ),
    Fault(
        "half a prefix is no message",
        "messages",
        "return self._size < 0 and not self._kept",
        "return self._size < 0",
    ),
    Fault(
        "a whole message may be too long",
        "incoming",
        "if 0 <= size <= self._limits.message_bytes and",
        "if 0 <= size and",
    ),
    Fault(
        "a cancelled call keeps its part of the budget",
        "outgoing",
        "            stream.reader.close()\n",
        "",
    ),
    Fault(
        "a skipped message keeps its part of the budget",
        "messages",
        "self._is_skipped = True\n            self._budget.give(len(self._kept))",
        "self._is_skipped = True",
    ),
    Fault(
        "unsent bytes keep their part of the budget",
        "outgoing",
        "            self._budget.give(sum(map(len, stream.queue)))\n",
        "",
    ),
    Fault(
        "a stream too many is taken",
        "incoming",
        "len(self.streams) >= self._limits.streams",
        "len(self.streams) > self._limits.streams",
    ),
    Fault(
        "GOAWAY takes back what it said", "connection", "min(self._last_id, self._final_id)", "self._last_id"
    ),
    Fault("silence is never asked", "connection", "now_s - self._heard_s > limits.idle_s", "False"),
    Fault(
        "streams that we are made to reset are not counted",
        "incoming",
        "self._count_early_reset()\n        self.reset(stream, code)",
        "pass\n        self.reset(stream, code)",
    ),
    Fault(
        "a call is told as closed twice",
        "outgoing",
        "        self.events.append(Closed(stream))\n",
        "        self.events += [Closed(stream), Closed(stream)]\n",
    ),
    Fault(
        "a frame's last byte is waited for in vain",
        "connection",
        "            if end > len(data):",
        "            if end >= len(data):",
    ),
)


def found_by_fuzzing(place: Path, target: str, runs: int) -> str | None:
    """Runs the fuzzer in a copy; returns who found the fault when."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.slow.fuzz.seeds",
            "--target",
            target,
            "--runs",
            str(runs),
            "--findings",
            "1",
        ],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=3_600,
        check=False,
    )
    stated = re.search(rf"{target}: ([\d,]+) runs, .* 1 findings", run.stdout)
    if stated:
        return f"{target}, input {stated[1]}"
    # The fault may break more than a run: then that is how it is found.
    return f"{target}, at once" if run.returncode else None


def found_by_tests(place: Path) -> str | None:
    rooms = [f"tests/router/wire/test_wire_{room}.py" for room in PURE_ROOMS]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *rooms],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.search(r"^FAILED \S+::(\w+)", run.stdout, re.MULTILINE)
    return failed[1] if failed else None


def plant(fault: Fault, place: Path) -> None:
    for part in ("extproc", "tests/router/wire", "tests/slow/fuzz", "tests/conftest.py", "pyproject.toml"):
        source, copy = ROOT / part, place / part
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    path = place / "extproc" / "wire" / f"{fault.room}.py"
    text = path.read_text()
    assert text.count(fault.right) == 1, f"{fault.name}: its words are there {text.count(fault.right)} times"
    path.write_text(text.replace(fault.right, fault.wrong))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20_000, help="of the fuzzer, for each fault and target")
    parser.add_argument("--only", default="", help="faults with these words in their names")
    options = parser.parse_args()
    table = Table("fault", "found by", title="planted faults")
    is_unfound = False
    for fault in FAULTS:
        if options.only not in fault.name:
            continue
        with tempfile.TemporaryDirectory() as directory:
            plant(fault, Path(directory))
            finder = (
                found_by_fuzzing(Path(directory), "http2", options.runs)
                or found_by_fuzzing(Path(directory), "blocks", options.runs)
                or found_by_fuzzing(Path(directory), "honest", options.runs // 10)
                or found_by_tests(Path(directory))
            )
        table.add_row(fault.name, finder or "nobody")
        sys.stderr.write(f"{fault.name}: {finder or 'nobody'}\n")
        is_unfound |= finder is None
    Console().print(table)
    sys.exit(is_unfound)


if __name__ == "__main__":
    main()
