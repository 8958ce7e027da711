"""The contenders of the speed benchmark: Stable-Baselines3, TorchRL's recipe and this project.

Every contender does the same work: HalfCheetah-v5, 8 environments, 2,048 frames a round, 10 passes
over them in minibatches of 64, a 64x64 tanh actor and critic, on one thread of one core.
`scripts/benchmark.py` starts each in a fresh interpreter and reads its peak memory, so libraries
are imported inside the functions: nobody pays for a rival's.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ENV_ID = "HalfCheetah-v5"
NUM_ENVS = 8
FRAMES_PER_BATCH = 2048
MINIBATCH_SIZE = 64
UPDATE_EPOCHS = 10
GAMMA, GAE_LAMBDA, CLIP_EPSILON, LEARNING_RATE = 0.99, 0.95, 0.2, 3e-4  # SB3's and TorchRL's alike


@dataclass(frozen=True)
class Row:
    """Speed of one contender over the measured rounds."""

    rounds: int
    """Measured rounds, warm-up left out."""
    collect_fps: float
    """Frames per second of collecting alone, median over rounds."""
    update_seconds: float
    """Seconds of all passes over the frames of a round, median over rounds."""
    e2e_fps: float
    """Frames per second of wall time, from the first measured round to the end of the last."""
    outside_seconds: float
    """Seconds of the whole call outside all rounds: imports, building, shutting down."""


@dataclass
class Round:
    """Times of one round, seconds."""

    frames: int
    collect: float
    update: float
    wall: float


def summarize(
    rounds: list[Round], warmup_frames: int, total_seconds: float, frames: int = FRAMES_PER_BATCH
) -> Row:
    """Reduce the rounds after warm-up to one row.

    Args:
        rounds: All rounds in order, warm-up included.
        warmup_frames: Rounds that end within the first `warmup_frames` frames are left out.
        total_seconds: Wall time of the whole call.
        frames: Of a round whose update is told; rounds of another size are scaled to it.

    Raises:
        ValueError: If no round is left after warm-up.
    """
    seen, measured = 0, []
    for entry in rounds:
        seen += entry.frames
        if seen > warmup_frames:
            measured.append(entry)
    if not measured:
        raise ValueError(f"{seen} frames were run, all within the warm-up of {warmup_frames}")
    return Row(
        rounds=len(measured),
        collect_fps=statistics.median(r.frames / r.collect for r in measured),
        update_seconds=statistics.median(r.update * frames / r.frames for r in measured),
        e2e_fps=sum(r.frames for r in measured) / sum(r.wall for r in measured),
        outside_seconds=total_seconds - sum(r.wall for r in rounds),
    )


class Stopwatch:
    """Time rounds of collecting and updating; a round ends where the next one begins."""

    def __init__(self, frames: int = FRAMES_PER_BATCH) -> None:
        self.frames = frames
        self.born = time.perf_counter()
        self.starts: list[float] = []
        self.collect: list[float] = []
        self.update: list[float] = []

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Time the block as collecting; its start is the start of a round."""
        self.starts.append(time.perf_counter())
        yield
        self.collect.append(time.perf_counter() - self.starts[-1])

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Time the block as the round's update."""
        start = time.perf_counter()
        yield
        self.update.append(time.perf_counter() - start)

    def rounds(self) -> list[Round]:
        """Close the last round now and return all of them."""
        ends = [*self.starts[1:], time.perf_counter()]
        return [
            Round(self.frames, collect, update, end - start)
            for collect, update, start, end in zip(
                self.collect, self.update, self.starts, ends, strict=True
            )
        ]


def run_sb3(rounds: int, warmup: int, *, normalize: bool) -> Row:
    """Run Stable-Baselines3's PPO with its default hyper-parameters on a `DummyVecEnv`.

    GAE is computed at the end of `collect_rollouts`, so SB3's GAE is inside its collect time and
    outside its update time. `make_vec_env` adds the `Monitor` that SB3 needs to report returns.

    Args:
        normalize: Wrap the environments in `VecNormalize` (observations and rewards).
    """
    watch = Stopwatch()
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    class TimedPPO(PPO):
        def collect_rollouts(self, *args, **kwargs):
            with watch.collecting():
                return super().collect_rollouts(*args, **kwargs)

        def train(self):
            with watch.updating():
                super().train()

    envs = make_vec_env(ENV_ID, n_envs=NUM_ENVS, seed=0)
    if normalize:
        envs = VecNormalize(envs)
    agent = TimedPPO(
        "MlpPolicy",
        envs,
        n_steps=FRAMES_PER_BATCH // NUM_ENVS,
        batch_size=MINIBATCH_SIZE,
        n_epochs=UPDATE_EPOCHS,
        device="cpu",
        seed=0,
    )
    agent.learn(total_timesteps=(rounds + warmup) * FRAMES_PER_BATCH)
    timed = watch.rounds()
    envs.close()
    return summarize(timed, warmup * FRAMES_PER_BATCH, time.perf_counter() - watch.born)


def make_torchrl_env():
    """Build TorchRL's wrapper of gymnasium's batched environment, with the recipe's transforms.

    On the same core its Collector is about 1.6 times as fast with this as with a `SerialEnv` of 8.
    """
    import gymnasium
    from torchrl.envs import (
        ClipTransform,
        Compose,
        DoubleToFloat,
        GymWrapper,
        RewardSum,
        StepCounter,
        TransformedEnv,
        VecNorm,
    )

    # TorchRL resets the finished sub-environments itself; gymnasium's default mode is refused.
    envs = gymnasium.make_vec(
        ENV_ID,
        num_envs=NUM_ENVS,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED},
    )
    return TransformedEnv(
        GymWrapper(envs, device="cpu"),
        Compose(
            VecNorm(in_keys=["observation"], decay=0.99999, eps=1e-2, new_api=False),
            ClipTransform(in_keys=["observation"], low=-10, high=10),
            RewardSum(),
            StepCounter(),
            DoubleToFloat(in_keys=["observation"]),
        ),
    )


def make_torchrl_models(env):
    """Build the recipe's actor (TanhNormal, state-independent scale) and critic."""
    import torch
    from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
    from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator

    action_spec = env.action_spec_unbatched
    num_obs = env.observation_spec["observation"].shape[-1]
    num_actions = action_spec.shape[-1]
    bounds = {"low": action_spec.space.low, "high": action_spec.space.high}

    def mlp(num_outputs: int, gain: float) -> torch.nn.Module:
        network = MLP(num_obs, num_outputs, num_cells=[64, 64], activation_class=torch.nn.Tanh)
        for layer in network.modules():
            if isinstance(layer, torch.nn.Linear):
                torch.nn.init.orthogonal_(layer.weight, gain)
                torch.nn.init.zeros_(layer.bias)
        return network

    scale = AddStateIndependentNormalScale(num_actions, scale_lb=1e-8)
    actor = ProbabilisticActor(
        TensorDictModule(
            torch.nn.Sequential(mlp(num_actions, 1.0), scale), ["observation"], ["loc", "scale"]
        ),
        in_keys=["loc", "scale"],
        spec=env.full_action_spec_unbatched,
        distribution_class=TanhNormal,
        distribution_kwargs={**bounds, "tanh_loc": False},
        return_log_prob=True,
    )
    return actor, ValueOperator(mlp(1, 0.01), in_keys=["observation"])


def run_torchrl(rounds: int, warmup: int, *, compiled: bool) -> Row:
    """Run PPO as TorchRL's own recipe builds it (`sota-implementations/ppo/ppo_mujoco.py`).

    Like the recipe: GAE anew in every pass, two Adam optimizers grouped into one, no gradient
    clipping. Kinder to it than the recipe: no learning-rate annealing, no progress bar.

    Args:
        compiled: Compile the update (loss, backward, Adam). The policy stays eager, unlike in the
            recipe: compiled it is slower at this size.
    """
    watch = Stopwatch()
    import torch
    from tensordict import TensorDict
    from torchrl._utils import compile_with_warmup
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
    from torchrl.objectives import ClipPPOLoss, group_optimizers
    from torchrl.objectives.value.advantages import GAE

    torch.manual_seed(0)
    env = make_torchrl_env()
    actor, critic = make_torchrl_models(env)
    collector = Collector(
        env,
        actor,
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=(rounds + warmup) * FRAMES_PER_BATCH,
        device="cpu",
        max_frames_per_traj=-1,
        auto_register_policy_transforms=False,  # the recipe's transforms, no more
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(FRAMES_PER_BATCH, compilable=compiled),
        sampler=SamplerWithoutReplacement(),
        batch_size=MINIBATCH_SIZE,
        compilable=compiled,
    )
    advantage = GAE(gamma=GAMMA, lmbda=GAE_LAMBDA, value_network=critic, average_gae=False)
    loss_module = ClipPPOLoss(
        actor_network=actor,
        critic_network=critic,
        clip_epsilon=CLIP_EPSILON,
        loss_critic_type="l2",
        entropy_coeff=0.0,
        critic_coeff=0.25,
        normalize_advantage=True,
    )
    optimizer = group_optimizers(
        torch.optim.Adam(actor.parameters(), lr=LEARNING_RATE, eps=1e-5),
        torch.optim.Adam(critic.parameters(), lr=LEARNING_RATE, eps=1e-5),
    )

    def update(batch: TensorDict) -> TensorDict:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_module(batch)
        (loss["loss_critic"] + loss["loss_objective"] + loss["loss_entropy"]).backward()
        optimizer.step()
        return loss.detach().select("loss_critic", "loss_entropy", "loss_objective")

    if compiled:
        update = compile_with_warmup(update, warmup=1)
    losses = TensorDict(batch_size=[UPDATE_EPOCHS, FRAMES_PER_BATCH // MINIBATCH_SIZE])
    batches = iter(collector)
    for _ in range(rounds + warmup):
        with watch.collecting():
            data = next(batches)
        done = data["next", "done"]
        if done.any():  # the recipe's report of the round; it costs next to nothing
            data["next", "episode_reward"][done].mean().item()
        with watch.updating():
            for epoch in range(UPDATE_EPOCHS):
                with torch.no_grad():
                    data = advantage(data)
                buffer.extend(data.reshape(-1))
                for index, batch in enumerate(buffer):
                    losses[epoch, index] = update(batch)
        collector.update_policy_weights_()
    timed = watch.rounds()
    collector.shutdown()
    return summarize(timed, warmup * FRAMES_PER_BATCH, time.perf_counter() - watch.born)


def run_ours(overrides: list[str], rounds: int, warmup: int) -> Row:
    """Run this project's trainer in this process and read the times it recorded.

    A round's time is the wall time from one record to the next, so that logging, checkpoints and all
    else is in it. Rounds may be of any size: warm-up is counted in frames.

    Args:
        overrides: Hydra overrides on top of those that every contender of ours has.
    """
    born = time.perf_counter()
    import rl_twoclocks

    # compile=true: left at auto, a run this short may judge that compiling does not pay.
    # A governor might drop passes: the work is to be equal.
    base = ["task=halfcheetah", "device=cpu", "compile=true", "logger=jsonl", "eval=off"]
    base += ["interventions=observe"]
    base.append(f"total_frames={(rounds + warmup) * FRAMES_PER_BATCH}")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        run_dir = Path(folder) / "run"
        rl_twoclocks.train(rl_twoclocks.compose([*base, f"run_dir={run_dir}", *overrides]))
        timed = recorded_rounds(run_dir / "metrics.jsonl")
    return summarize(timed, warmup * FRAMES_PER_BATCH, time.perf_counter() - born)


def recorded_rounds(metrics: Path) -> list[Round]:
    """Read the rounds' times out of a run's metrics."""
    timed, frames_before, wall_before = [], 0, 0.0
    for record in map(json.loads, metrics.read_text().splitlines()):
        frames = int(record["frames"])  # counted from the start of the run
        collect, update = record["time/collect_seconds"], record["time/update_seconds"]
        wall = record["time/wall_seconds"]
        timed.append(Round(frames - frames_before, collect, update, wall - wall_before))
        frames_before, wall_before = frames, wall
    return timed


# The default configuration, W&B (offline here) included. It evaluates 10 episodes and saves once per
# 100,000 frames of a 1M run; in a run this short the same density is 2 episodes per 20,480 frames.
DEFAULT_DENSITY = [
    "logger=wandb",
    "eval=default",
    "eval.every_frames=20480",
    "eval.episodes=2",
    "eval.num_envs=2",
    "checkpoint.every_frames=20480",
]

CONTENDERS: dict[str, Callable[[int, int], Row]] = {
    "ours-classic": lambda r, w: run_ours(["clocks=classic", "num_envs=8"], r, w),
    "ours-classic-envpool": lambda r, w: run_ours(
        ["clocks=classic", "num_envs=8", "collect.backend=envpool"], r, w
    ),
    "ours-default": lambda r, w: run_ours(DEFAULT_DENSITY, r, w),
    "sb3": lambda r, w: run_sb3(r, w, normalize=False),
    "sb3-vecnormalize": lambda r, w: run_sb3(r, w, normalize=True),
    "torchrl": lambda r, w: run_torchrl(r, w, compiled=False),
    "torchrl-compiled": lambda r, w: run_torchrl(r, w, compiled=True),
}
