"""What the operator's tests share with the benchmark's."""

from tests.bench.conftest import null_server

__all__ = ["null_server"]
