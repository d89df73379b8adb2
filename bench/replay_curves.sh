#!/bin/sh
# The curves of docs/guides/replay-for-llms.md, on one GPU: sh bench/replay_curves.sh FOLDER [PART]
#
# together  two learning rates, three modes, three seeds at once, for the reward by generated
#           tokens; they share the GPU, so their times say nothing
# alone     one seed of each mode by itself, for the reward by time
# small     on-policy with train steps half as large, so with as many as replay takes
#
# Without PART all three: about 12 minutes on an H200.
set -e
root=$(cd "$(dirname "$0")/.." && pwd)
part=$2
mkdir -p "$1"
cd "$1"
export PYTHONPATH="$root/src" OMP_NUM_THREADS=1
train() { python3 "$root/examples/grpo_tiny.py" "$@"; }
is() { [ "${part:-$1}" = "$1" ]; }

train --short --tokens 1000 --out "$(mktemp -d)" >/dev/null # compiles what all of them load
if is together; then
    train --device cuda --compare --seeds 3 --parallel 9 --rate 1e-4 --out rate-1e-4 &
    train --device cuda --compare --seeds 3 --parallel 9 --rate 3e-4 --out rate-3e-4
    wait
fi
if is alone; then
    train --device cuda --compare --out alone
fi
if is small; then
    for rate in 1e-4 3e-4; do
        train --device cuda --mode on-policy --groups 32 --seeds 3 --parallel 3 --rate $rate \
            --out small-$rate &
    done
    wait
fi
