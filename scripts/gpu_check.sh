#!/usr/bin/env bash
# What must hold on one CUDA GPU, in at most 8 minutes; the package must be installed.
#
#     bash scripts/gpu_check.sh                  # uses .venv/bin/python, else python3
#     PYTHON=/path/to/python bash scripts/gpu_check.sh
#
# Exit codes: 0 all passed, 1 something failed (named at the end), 2 there is no CUDA device.
# OUT names a folder for the runs and speed.json; by default a temporary one, removed at the end.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -z "${PYTHON:-}" ]; then
	PYTHON=python3
	[ ! -x .venv/bin/python ] || PYTHON=.venv/bin/python
fi
if [ -z "${OUT:-}" ]; then
	OUT=$(mktemp -d)
	trap 'rm -rf "$OUT"' EXIT
fi
mkdir -p "$OUT"
export WANDB_MODE=disabled
failed=()

# step NAME SECONDS COMMAND...: run a command under a time limit and remember whether it failed.
# What earlier steps have left of their time is added to it.
due=0
step() {
	local name=$1 limit code=0
	due=$((due + $2 + 5))
	limit=$((due - SECONDS - 5))
	shift 2
	printf '\n== %s (at most %s s)\n' "$name" "$limit"
	timeout --kill-after=5 "$limit" "$@" || code=$?
	[ "$code" -ne 124 ] || echo "error: $name took more than $limit s" >&2
	[ "$code" -eq 0 ] || failed+=("$name (exit $code)")
	return "$code"
}

printf '== versions and device\n'
due=45
timeout --kill-after=5 40 "$PYTHON" scripts/gpu_check.py versions
code=$?
[ "$code" -ne 2 ] || exit 2
[ "$code" -eq 0 ] || failed+=("versions (exit $code): is the package installed?")

# The limits add up to less than 8 minutes, the 40 s above and 5 s each to end included.
step "agreement of CPU and GPU" 50 "$PYTHON" scripts/gpu_check.py agreement "$OUT"
step "pytest -m gpu" 130 "$PYTHON" -m pytest -m gpu tests/test_gpu.py
step "training, cpu" 35 "$PYTHON" scripts/gpu_check.py train "$OUT" cpu
step "training, cuda" 55 "$PYTHON" scripts/gpu_check.py train "$OUT" cuda
step "training, cuda compiled" 55 "$PYTHON" scripts/gpu_check.py train "$OUT" cuda-compiled
step "training, cuda graphs" 60 "$PYTHON" scripts/gpu_check.py train "$OUT" cuda-graphs

printf '\n== speed\n'
timeout --kill-after=5 10 "$PYTHON" scripts/gpu_check.py speed "$OUT" || failed+=("speed")

if [ "${#failed[@]}" -gt 0 ]; then
	printf '\nFAILED: %s\n' "${failed[@]}" >&2
	exit 1
fi
printf '\nall passed\n'
