#!/bin/bash
# receive.sh FOLDER: takes a part, in any order; with the last one it unpacks the kit and says whether it loads here.
set -euo pipefail
store=${STORE:-/tmp/kit-parts} kit=${KIT:-/tmp/kit}
mkdir -p "$store"
(cd "$1" && sha256sum -c --quiet sum)
mv "$1"/piece-* "$store/"
count=$(ls "$store" | head -1 | sed 's/.*-of-//') have=$(ls "$store" | wc -l)
echo "part $have of $count"
[ "$have" = "$count" ] || exit 0
mkdir -p "$kit"
for n in $(seq "$count"); do cat "$store/piece-$n-of-$count"; done |
  python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.stdin.buffer), sys.stdout.buffer, 1 << 20)' | tar -C "$kit" -x
rm -rf "$store"
chmod +x "$kit/router/envoy/_bin/envoy"
timeout 40 python3 -m compileall -q -j 0 "$kit/vllm" "$kit/router" >/dev/null 2>&1 || true  # on all cores, once
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader || true
"$kit/router/envoy/_bin/envoy" --version 2>&1 | grep -o 'version:.*'
PYTHONPATH=$kit/router python3 -m extproc --version
PYTHONPATH=$kit/vllm HF_HUB_OFFLINE=1 timeout 120 python3 - <<'P'
import torch
import vllm._C_stable_libtorch
from vllm.vllm_flash_attn import flash_attn_interface as attention
print("torch", torch.__version__, "CUDA", torch.cuda.is_available(), "FlashAttention 3", attention.FA3_AVAILABLE)
P
