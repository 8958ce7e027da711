#!/usr/bin/env bash
# Train Pong and Breakout for 10M decisions (40M frames of the game) on one CUDA GPU.
#
#     bash scripts/atari_gpu.sh                          # both, seed 1; uses .venv/bin/python, else python3
#     SEED=2 GAMES=pong FRAMES=1000000 bash scripts/atari_gpu.sh
#     LIMIT=540 OUT=/data/atari bash scripts/atari_gpu.sh
#
# OUT (default runs/atari_gpu) keeps runs, checkpoints and metrics. LIMIT is in seconds for each game: at
# the limit the state is saved, and the same command goes on from there. Further words are overrides of
# all runs, e.g. `collect=sync` where envpool is not installed.
# Exit codes: 0 all games have used up their frames, 1 not yet, or something failed; 2 no CUDA device.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -z "${PYTHON:-}" ]; then
	PYTHON=python3
	[ ! -x .venv/bin/python ] || PYTHON=.venv/bin/python
fi
GAMES=${GAMES:-pong breakout}
FRAMES=${FRAMES:-10000000}
SEED=${SEED:-1}
LIMIT=${LIMIT:-86400}
OUT=${OUT:-runs/atari_gpu}

"$PYTHON" -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else 2)' || exit $?
unfinished=()
for game in $GAMES; do
	place=$OUT/$game/seed$SEED
	mkdir -p "$place"
	printf '\n== %s, seed %s, %s frames\n' "$game" "$SEED" "$FRAMES"
	# Frames go to the GPU once a round, and every minibatch's stacks are gathered there.
	timeout --signal=TERM --kill-after=60 "$LIMIT" "$PYTHON" -m rl_twoclocks.train \
		task="$game" seed="$SEED" total_frames="$FRAMES" optim.anneal_frames="$FRAMES" \
		device=cuda collect=envpool collect.vectorization=async collect.device=cuda \
		logger=jsonl logger.display=plain run_dir="$place" "$@" || unfinished+=("$game (exit $?)")
	[ ! -f "$place/result.json" ] || cat "$place/result.json"
done
if [ "${#unfinished[@]}" -gt 0 ]; then
	printf '\nUNFINISHED: %s\n' "${unfinished[@]}" >&2
	exit 1
fi
