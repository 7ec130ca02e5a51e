#!/bin/sh
# One call on a GPU machine, from the repository's root: what secret steps cost there, and whether they are right.
# Look at: all tests pass (tests/gpu/test_gpu_exact.py, test_gpu_secret.py, test_gpu_step.py are the ones that changed);
# MLP 50 × 48 secret ≤ 1.5 ms; ResNet-18 16 × 25 secret ÷ seeded ≤ 1.3; the last table: where a secret ResNet step goes.
set -x
export PYTHONPATH=src:benchmarks:tests
python -m pytest -n 0 -q -x --maxfail=5 tests/gpu/test_gpu_secret.py tests/gpu/test_gpu_exact.py tests/gpu/test_gpu_step.py 2>&1 | tail -40
python benchmarks/bench.py --only secret --device cuda --turns 10 --out "${OUT:-build}/secret.json"
python - <<'PY'
import ours, torch
from bench import MLP, RESNET
from torch.profiler import ProfilerActivity, profile
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
for work in (MLP.but(device="cuda"), RESNET.but(device="cuda")):
    with ours.engine(work, seed=None) as training:
        step = ours.stepper(training)
        for _ in range(6):
            step()
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
            for _ in range(5):
                step()
            torch.cuda.synchronize()
        print(p.key_averages().table(sort_by="self_device_time_total", row_limit=18, max_name_column_width=70))
PY
