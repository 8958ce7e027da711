"""Capture and restore the exact state of one simulator, as plain data.

Known: gymnasium's MuJoCo and classic-control environments, and any environment that has
`state_dict()` and `load_state_dict()` of its own. Everything else answers None: the checkpoint then
states an episode boundary.
"""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

_CLASSIC = (
    "CartPoleEnv",
    "PendulumEnv",
    "AcrobotEnv",
    "MountainCarEnv",
    "Continuous_MountainCarEnv",
)


_LAGGING = ("xpos", "xipos")


def capture(env: gym.Env) -> dict[str, Any] | None:
    """Return the state as plain values and tensors, or None if it cannot be had exactly."""
    elapsed = None
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, TimeLimit):
            elapsed = int(layer._elapsed_steps or 0)
        elif not isinstance(layer, (OrderEnforcing, PassiveEnvChecker)):
            return None
        layer = layer.env
    simulator = _capture_simulator(layer)
    if simulator is None:
        return None
    rng = json.dumps(layer.np_random.bit_generator.state, default=_plain)
    return {"elapsed": elapsed, "rng": rng, "simulator": simulator}


def restore(env: gym.Env, state: dict[str, Any]) -> None:
    """Put a captured state back into an environment that has been reset once."""
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, TimeLimit):
            layer._elapsed_steps = state["elapsed"]
        layer = layer.env
    layer.np_random.bit_generator.state = json.loads(state["rng"])
    simulator = state["simulator"]
    if _is_mujoco(layer):
        import mujoco

        spec = mujoco.mjtState.mjSTATE_INTEGRATION
        mujoco.mj_setState(layer.model, layer.data, simulator["physics"].numpy(), spec)
        # Everything derived from positions and velocities, which observations read.
        mujoco.mj_forward(layer.model, layer.data)
        mujoco.mj_setState(layer.model, layer.data, simulator["physics"].numpy(), spec)
        # These lag one step behind after a step, and rewards of Ant and Humanoid read them so.
        for field in _LAGGING:
            getattr(layer.data, field)[:] = simulator[field].numpy()
    elif hasattr(layer, "load_state_dict"):
        layer.load_state_dict(simulator["own"])
    else:
        layer.state = simulator["state"].numpy().copy()
        if hasattr(layer, "steps_beyond_terminated"):
            layer.steps_beyond_terminated = None


def _capture_simulator(env: Any) -> dict[str, Any] | None:
    if _is_mujoco(env):
        import mujoco

        spec = mujoco.mjtState.mjSTATE_INTEGRATION
        physics = np.empty(mujoco.mj_stateSize(env.model, spec))
        mujoco.mj_getState(env.model, env.data, physics, spec)
        lagging = {f: torch.from_numpy(getattr(env.data, f).copy()) for f in _LAGGING}
        return {"physics": torch.from_numpy(physics), **lagging}
    if hasattr(env, "state_dict") and hasattr(env, "load_state_dict"):
        return {"own": env.state_dict()}
    if type(env).__name__ in _CLASSIC and type(env).__module__.startswith("gymnasium."):
        return {"state": torch.from_numpy(np.array(env.state))}
    return None


def _is_mujoco(env: Any) -> bool:
    return type(env).__module__.startswith("gymnasium.envs.mujoco") and hasattr(env, "data")


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else int(value)
