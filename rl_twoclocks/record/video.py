"""A video of one episode, rendered without a display."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_twoclocks.collect import BehaviourPolicy
from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.display import without_display
from rl_twoclocks.envs import BatchedEnv, make_env
from rl_twoclocks.evaluate import LONGEST, for_evaluation, under_changed_conditions
from rl_twoclocks.rundir import whole_file
from rl_twoclocks.seeding import env_seeds, stream_seed
from rl_twoclocks.state import learned


def record_episode(config: Config, state: dict[str, Any], path: Path) -> int:
    """Write an MP4 of the first episode of an evaluation; return its number of frames.

    As in an evaluation, an episode that does not end is left after `LONGEST` decisions.

    Args:
        config: of the evaluation: its seed, its conditions, and whether the policy acts by its mode.
        state: a loaded checkpoint.
        path: of the MP4.

    Raises:
        ConfigError: the environment cannot be rendered here.
    """
    import imageio

    seed = config.seed if config.eval.seed is None else config.eval.seed
    env = drawable(config, seed)
    for torn in path.parent.glob(f".partial-*-{path.name}"):
        # Of a process that was killed while it wrote.
        if not Path(f"/proc/{torn.name.split('-')[1]}").exists():
            torn.unlink(missing_ok=True)
    try:
        noise = None
        if not config.eval.deterministic:
            noise = torch.Generator().manual_seed(stream_seed(seed, "evaluation noise"))
        policy = BehaviourPolicy.fresh(config, env, noise)
        parameters, normalizer = learned(config, policy, state)
        policy.publish(parameters, normalizer, version=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        fps = _fps(env)
        with (
            whole_file(path) as partial,
            imageio.get_writer(partial, fps=fps, macro_block_size=2) as writer,
        ):
            return _play(env, policy, writer)
    finally:
        env.close()


def drawable(config: Config, seed: int = 0) -> BatchedEnv:
    """One environment of an evaluation that gives pictures.

    Raises:
        ConfigError: there is none.
    """
    without_display()
    task = for_evaluation(under_changed_conditions(config).task)
    task = task.model_copy(update={"kwargs": task.kwargs | {"render_mode": "rgb_array"}})
    collect = config.collect.model_copy(update={"backend": "gymnasium", "vectorization": "sync"})
    try:
        return make_env(task, collect, 1, env_seeds(seed, "evaluation", 1))
    except ConfigError as error:
        if "render_mode" not in str(error):
            raise
        raise ConfigError(
            f"{task.env_id} cannot draw: it has to take render_mode='rgb_array', and render() to give "
            "an image [height, width, 3]"
        ) from error


@torch.no_grad()
def _play(env: BatchedEnv, policy: BehaviourPolicy, writer: Any) -> int:
    state, count, done = env.reset(), 0, False
    while not done and count < LONGEST:
        writer.append_data(_picture(env))
        state.set("action", policy.act(state.get("observation"), env.begun)[0])
        stepped, state = env.step_and_maybe_reset(state)
        done = bool(stepped.get(("next", "done")).any())
        count += 1
    return count


def _picture(env: BatchedEnv) -> np.ndarray:
    assert env.backend.envs is not None
    try:
        picture = env.backend.envs[0].render()
    except (RuntimeError, ImportError, AttributeError) as error:
        raise ConfigError(
            f"{error} (without a display, MUJOCO_GL=egl has to be set first)"
        ) from error
    if not isinstance(picture, np.ndarray):
        raise ConfigError("the environment gives no picture for render_mode=rgb_array")
    return picture


def _fps(env: BatchedEnv) -> float:
    assert env.backend.envs is not None
    return float(env.backend.envs[0].metadata.get("render_fps", 30))
