#!/usr/bin/env bash
# Every test marked `gpu` and every GPU benchmark, in under nine minutes, into one JSON file.
#
#   scripts/gpu_checks.sh [FOLDER] [options of gpu_checks.py]     FOLDER: where results go; $OUT, or gpu_checks, by default
#
# PYTHON names an interpreter (by default .venv/bin/python, else python3), WHEELS a folder of wheels that are installed first, without a network.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$([[ -x $root/.venv/bin/python ]] && echo "$root/.venv/bin/python" || echo python3)}
folder=${OUT:-gpu_checks}
if [[ $# -gt 0 && $1 != -* ]]; then
  folder=$1
  shift
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
if [[ -n ${WHEELS:-} ]]; then
  "$python" -m pip install -q --no-index --no-deps --no-compile --target "$scratch/site" "$WHEELS"/*.whl
  export PYTHONPATH=$PYTHONPATH:$scratch/site
fi
# Threads that spin while they wait take the cores from those that step environments.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} OMP_WAIT_POLICY=PASSIVE
# Worlds are compiled once for all sections, and nothing is left behind.
export ENTITY_GYM_CACHE_DIR=${ENTITY_GYM_CACHE_DIR:-$scratch/compiled}

if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "gpu_checks.sh: $python has no torch; name one that has, PYTHON=..., or install it" >&2
  exit 2
fi
mkdir -p "$folder"
code=0
"$python" "$root/scripts/gpu_checks.py" --output "$folder" "$@" || code=$?
"$python" "$root/scripts/gpu_report.py" "$folder/results.json" >"$folder/report.md"
cat "$folder/report.md"
exit "$code" # 1 where a test has failed, or a section has not come to its end
