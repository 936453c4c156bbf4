#!/bin/bash
# Settings, a log of its own, and the program behind a pipe.
set -euo pipefail
cd "$(dirname "$0")"
export OMP_NUM_THREADS=1
mkdir -p out
echo "training on $(hostname) with $*"
python -u train.py --out out "$@" 2>&1 | tee -a out/train.log
echo "all done"
