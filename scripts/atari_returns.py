"""Train one Atari game with this project and with Stable-Baselines3, for equal frames, and compare.

    python scripts/atari_returns.py --frames 1_000_000 --seeds 1 2 3

Both have the settings of `scripts/atari_speed.py`: PPO's paper on Atari, 8 environments x 128 decisions,
3 passes, minibatches of 256, rates and clip range falling linearly (ours to a thousandth, theirs to 0).
Judged is the last policy, actions sampled, `--episodes` whole games on seeds of their own, raw scores;
each on the wrappers that it was trained with.

One row per contender and seed goes to `--out`: mean and deviation of the games, and the wall time of
training. Rows that are there already are kept and not run again. A time limit would let the faster one
learn from more: choose `--frames` so that both fit into the time that there is.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import rows as kept
import torch

import rl_twoclocks
from rl_twoclocks.collect import BehaviourPolicy
from rl_twoclocks.config import CollectConfig, Config
from rl_twoclocks.envs import make_env
from rl_twoclocks.evaluate import evaluate, for_evaluation
from rl_twoclocks.record import checkpoint
from rl_twoclocks.seeding import env_seeds
from rl_twoclocks.state import learned

RUN = ("game", "contender", "seed", "frames", "games", "overrides")
"""What a row is known by."""
Played = tuple[list[float], float]
"""Scores of whole games, and seconds of training."""


def configuration(args: argparse.Namespace, seed: int) -> Config:
    """This project's run."""
    place = args.runs / args.game / f"seed{seed}"
    words = [f"task={args.game}", f"seed={seed}", f"total_frames={args.frames}", "eval=off"]
    words += [f"run_dir={place}", "logger=jsonl", "logger.display=plain", *args.overrides]
    return rl_twoclocks.compose(words)


def ours(args: argparse.Namespace, seed: int) -> Played:
    """Train, or go on with, this project's run, and play."""
    config = configuration(args, seed)
    result = rl_twoclocks.train(config)
    saved = checkpoint.load(Path(str(result.checkpoint)))
    n = min(args.episodes, 10)
    seeds = env_seeds(seed, "evaluation", n)
    env = make_env(for_evaluation(config.task), CollectConfig(), n, seeds)
    policy = BehaviourPolicy.fresh(config, env, torch.Generator().manual_seed(seed))
    policy.publish(*learned(config, policy, saved), version=0)
    played = evaluate(lambda seen: policy.act(seen)[0], env, args.episodes, seeds)
    env.close()
    assert played is not None
    return played.returns, result.wall_seconds


def sb3(args: argparse.Namespace, seed: int) -> Played:
    """Train Stable-Baselines3's PPO, and play."""
    import ale_py
    import gymnasium as gym
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecFrameStack

    gym.register_envs(ale_py)
    name = args.game.title().replace("_", "")
    envs = VecFrameStack(make_atari_env(f"{name}NoFrameskip-v4", n_envs=8, seed=seed), 4)
    agent = PPO(
        "CnnPolicy",
        envs,
        n_steps=128,
        batch_size=256,
        n_epochs=3,
        learning_rate=lambda left: 2.5e-4 * left,
        clip_range=lambda left: 0.1 * left,
        ent_coef=0.01,
        device="cpu",
        seed=seed,
    )
    started = time.perf_counter()
    agent.learn(args.frames)
    seconds = time.perf_counter() - started
    envs.close()
    # Raw scores of whole games: `evaluate_policy` reads them from SB3's Monitor.
    games = VecFrameStack(
        make_atari_env(f"{name}NoFrameskip-v4", n_envs=min(args.episodes, 10), seed=10_000 + seed),
        4,
    )
    scores, _ = evaluate_policy(
        agent, games, args.episodes, deterministic=False, return_episode_rewards=True
    )
    games.close()
    return [float(score) for score in scores], seconds


CONTENDERS: dict[str, Callable[[argparse.Namespace, int], Played]] = {"ours": ours, "sb3": sb3}


def measure(name: str, args: argparse.Namespace, seed: int) -> dict[str, object]:
    """Train and evaluate one contender on one seed."""
    scores, seconds = CONTENDERS[name](args, seed)
    overrides = " ".join(args.overrides) if name == "ours" else ""
    command = f"python scripts/atari_returns.py --game {args.game} --frames {args.frames}"
    return {
        "game": args.game,
        "contender": name,
        "seed": seed,
        "frames": args.frames,
        "return_mean": f"{np.mean(scores):.6g}",
        "return_std": f"{np.std(scores):.6g}",
        "games": len(scores),
        "overrides": overrides,
        "seconds": f"{seconds:.6g}",
        "command": f"{command} --episodes {args.episodes}"
        + (f" -- {overrides}" if overrides else ""),
    }


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--game", default="pong", help="as in task=<game>")
    add("--frames", type=int, default=1_000_000, help="decisions of each run")
    add("--seeds", type=int, nargs="+", default=[1, 2, 3])
    add("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    add("--episodes", type=int, default=10, help="whole games after training")
    add("--runs", type=Path, default=Path("runs/atari_returns"), help="runs of this project")
    add("--out", type=Path, default=Path("docs/benchmarks/atari_returns.csv"))
    add("overrides", nargs="*", help="overrides of this project's runs, after --")
    args = parser.parse_args(argv)
    if args.episodes > 10 and args.episodes % 10:
        # They are played ten at a time, by both contenders.
        parser.error(f"--episodes {args.episodes}: above 10 it must be a multiple of 10")
    return args


def main(argv: list[str] | None = None) -> int:
    """Run what the file does not have yet."""
    args = parse_args(argv)
    torch.set_num_threads(1)
    done = kept.keys(kept.read(args.out), RUN)
    for seed in args.seeds:
        for name in args.contenders:
            overrides = " ".join(args.overrides) if name == "ours" else ""
            run = (args.game, name, str(seed), str(args.frames), str(args.episodes), overrides)
            if run in done:
                continue
            row = measure(name, args, seed)
            print(row, flush=True)
            kept.merge(args.out, [row], RUN)
    return 0


if __name__ == "__main__":
    sys.exit(main())
