"""Programs that are not ours, run to their end."""

import asyncio
import shutil

import pytest

GRPC = ("-H", "content-type: application/grpc", "-H", "te: trailers")


async def run_program(*command: str) -> str:
    """Returns what a program prints; it must end well."""
    if shutil.which(command[0]) is None:
        pytest.fail(f"{command[0]} is missing: .ci/run names the packages")
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    return output.decode(errors="replace")
