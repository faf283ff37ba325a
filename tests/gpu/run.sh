#!/bin/bash
# run.sh OUT [OPTION …]: the proof from an unpacked kit, packed for the way back. Options are those of proof.py.
out=${1:?} kit=${KIT:-/tmp/kit}
mkdir -p "$out"
PYTHONUNBUFFERED=1 python3 "$kit/tests/gpu/proof.py" --kit "$kit" --out /tmp/gpu-proof --product "$kit/router" \
  --packages "$kit/vllm" "${@:2}" 2>&1 | tee "$out/log.txt"
cp /tmp/gpu-proof/results.json "$out/"
tar -C /tmp -czf "$out/run.tgz" gpu-proof
