"""Train Stable-Baselines3's PPO with its zoo's settings, under the protocol of `scripts/learning.py`.

    python scripts/sb3_returns.py --tasks halfcheetah hopper --seeds 1 2 3

Settings are those that RL Baselines3 Zoo names as tuned (hyperparams/ppo.yml, HalfCheetah-v4 and
Hopper-v4; it has none for v5), with its normalisation of observations and rewards, on version 5 of the
tasks. Judged is the last policy: 10 deterministic episodes on evaluation seeds of their own, the same
ones as of this project's runs. One row per task and seed goes to docs/benchmarks/returns.csv under
`clocks` sb3; rows that are there are not made again. One thread: for two cores, start it once per task.
"""

from __future__ import annotations

import argparse
import sys
import time

import gymnasium as gym
import numpy as np
import rows as kept
import torch
from learning import OUT, RUN
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rl_twoclocks.seeding import env_seeds

TUNED = {
    "halfcheetah": {
        "batch_size": 64,
        "gamma": 0.98,
        "learning_rate": 2.0633e-5,
        "ent_coef": 0.000401762,
        "clip_range": 0.1,
        "n_epochs": 20,
        "gae_lambda": 0.92,
        "max_grad_norm": 0.8,
        "vf_coef": 0.58096,
    },
    "hopper": {
        "batch_size": 32,
        "gamma": 0.999,
        "learning_rate": 9.80828e-5,
        "ent_coef": 0.00229519,
        "clip_range": 0.2,
        "n_epochs": 5,
        "gae_lambda": 0.99,
        "max_grad_norm": 0.7,
        "vf_coef": 0.835671,
    },
}
NETWORK = {
    "log_std_init": -2,
    "ortho_init": False,
    "activation_fn": torch.nn.ReLU,
    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}
ENVS = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5"}
EPISODES = 10


def measure(task: str, seed: int, frames: int) -> dict[str, object]:
    """Train one task with one seed, and evaluate the last policy."""
    envs = VecNormalize(DummyVecEnv([lambda: gym.make(ENVS[task])]), gamma=TUNED[task]["gamma"])
    started = time.perf_counter()
    agent = PPO(
        "MlpPolicy",
        envs,
        n_steps=512,
        policy_kwargs=NETWORK,
        device="cpu",
        seed=seed,
        **TUNED[task],
    )
    agent.learn(frames)
    seconds = time.perf_counter() - started
    returns = [episode(agent, envs, task, s) for s in env_seeds(seed, "evaluation", EPISODES)]
    return {
        "task": task,
        "clocks": "sb3",
        "seed": seed,
        "frames": frames,
        "return_mean": float(np.mean(returns)),
        "return_std": float(np.std(returns)),
        "episodes": EPISODES,
        "wall_seconds": round(seconds, 1),
        "command": f"python scripts/sb3_returns.py --tasks {task} --seeds {seed} --frames {frames}",
    }


def episode(agent: PPO, envs: VecNormalize, task: str, seed: int) -> float:
    """Return of one deterministic episode, in the units of the environment."""
    env = gym.make(ENVS[task])
    seen, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        action, _ = agent.predict(envs.normalize_obs(seen), deterministic=True)
        seen, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        over = terminated or truncated
    env.close()
    return total


def main() -> int:
    """Run what returns.csv does not have yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=list(TUNED), choices=list(TUNED))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--frames", type=int, default=1_000_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed in args.seeds:
        for task in args.tasks:
            done = kept.keys(kept.read(OUT / "returns.csv"), RUN)
            if (task, "sb3", str(seed), str(args.frames)) not in done:
                row = measure(task, seed, args.frames)
                print(row, flush=True)
                kept.merge(OUT / "returns.csv", [row], RUN)
    return 0


if __name__ == "__main__":
    sys.exit(main())
