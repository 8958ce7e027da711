"""Synchronous collection: TorchRL's Collector, one rollout of U frames per policy version."""

from __future__ import annotations

from torchrl.collectors import Collector

from rl_twoclocks.collect.behaviour import BehaviourPolicy
from rl_twoclocks.config import CollectConfig
from rl_twoclocks.envs import BatchedEnv


def make_collector(
    env: BatchedEnv, policy: BehaviourPolicy, frames_per_batch: int, config: CollectConfig
) -> Collector:
    """Build the collector; it yields batches [N, T] for ever, and the loop decides when to stop.

    Trajectory numbers are off: the window is one grid over environments and time, in which ends and
    cuts are flags.
    """
    return Collector(
        env,
        policy,
        frames_per_batch=frames_per_batch,
        total_frames=-1,
        reset_at_each_iter=config.reset_each_rollout,
        # All on the CPU as far as the collector is concerned; the policy moves its own inputs.
        # Left to infer devices, it would copy every TensorDict at every step.
        policy_device="cpu",
        env_device="cpu",
        storing_device="cpu",
        # What comes from a GPU has been waited for by the policy.
        no_cuda_sync=True,
        track_traj_ids=False,
        trust_policy=True,
        auto_register_policy_transforms=False,
    )
