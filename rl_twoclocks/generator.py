"""`python -m rl_twoclocks.generator run=<name> url=redis://...`: collect for a learner elsewhere."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from rl_twoclocks.cli import run_plain
from rl_twoclocks.config import Config, ConfigError
from rl_twoclocks.config_commands import GeneratorCommandConfig

if TYPE_CHECKING:
    from rl_twoclocks.collect.generator import Generator
    from rl_twoclocks.collect.redis_queue import RedisQueue

Result = TypeVar("Result")


def main() -> None:
    """Run the command; exit codes are in `rl_twoclocks.cli`."""
    run_plain("generator", GeneratorCommandConfig, generate)


def generate(command: GeneratorCommandConfig) -> None:
    """Collect slices until the run has been over for `patience` seconds.

    Raises:
        ConfigError: there is no such run, or its configuration cannot be used here.
        WorkerError: the server is away for longer than `patience`.
    """
    from rl_twoclocks.collect.patience import end_with_parent
    from rl_twoclocks.collect.redis_queue import LIFE, RedisQueue, address

    if command.parent is not None:
        end_with_parent()
    signal.signal(signal.SIGTERM, _leave)
    # A learner handles the terminal's Ctrl-C itself and ends the generators that it started.
    signal.signal(signal.SIGINT, signal.SIG_IGN if command.parent else _leave)
    torch.set_num_threads(1)
    queue = RedisQueue(address(command.url), command.run, command.patience)
    _say(command, f"waits for {queue.url}, at most {command.patience:g} seconds")
    text = _wait(queue.find, lambda waited: waited > command.patience)
    if text is None:
        raise ConfigError(f"no run {command.run!r} on {queue.url}: is its learner running?")
    while text is not None and not _orphaned(command):
        told = _told(queue, text)
        _say(command, f"collects {told['task']}, environments: {told['envs']}")
        _collect(queue, told, command)
        _say(command, f"waits for the learner to go on, at least {command.patience:g} seconds")

        def gone(waited: float) -> bool:
            # A server that was started anew hears of the run when its learner next wants a slice.
            left = _orphaned(command) or waited > LIFE
            return left or (waited > command.patience and queue.over())

        # Over; or the learner was started anew, perhaps with slices of another size.
        text = _wait(queue.find, gone)


def _told(queue: RedisQueue, text: str) -> dict[str, Any]:
    """What the learner says of the run.

    Raises:
        WorkerError: something else lies there.
    """
    from rl_twoclocks.envs import WorkerError

    try:
        told = json.loads(text)
        whole = {"steps": int(told["steps"]), "envs": int(told["envs"]), "life": int(told["life"])}
        return whole | {"config": told["config"], "task": told["config"]["task"]["name"]}
    except (ValueError, TypeError, KeyError) as error:
        raise WorkerError(queue.foreign("config", repr(error))) from error


def _collect(queue: RedisQueue, told: dict[str, Any], command: GeneratorCommandConfig) -> None:
    """Collect for one sitting of the learner, until it is over."""
    from rl_twoclocks.collect.generator import Generator
    from rl_twoclocks.collect.messages import RefusedError, pack_slice, unpack_policy
    from rl_twoclocks.configure import validate
    from rl_twoclocks.envs import WorkerError

    config = validate(told["config"], Config)
    # Numbers are given out anew by a server that was started anew: they must not repeat episodes.
    life = told["life"] + (os.getpid() << 20) + (time.time_ns() & 0xFFFFF)
    generator = Generator(config, queue.join(), told["envs"], told["steps"], life)
    slots, drops = config.collect.slots, config.collect.when_full == "drop"
    try:
        obeyed: dict[str, Any] | None = None
        while not _orphaned(command) and (news := queue.news()) is not None:
            version, orders = news
            if orders != obeyed:
                _obey(generator, orders, obeyed)
                obeyed = orders
            if version != generator.behaviour.version and (message := queue.policy()) is not None:
                try:
                    generator.take(unpack_policy(message, generator.behaviour.published()))
                except RefusedError as error:
                    raise WorkerError(queue.foreign("policy", str(error))) from error
            if generator.behaviour.version < 0:
                # A server that was started anew does not have the policy yet.
                time.sleep(0.005)
                continue
            frames = pack_slice(generator.slice())
            stamp = generator.behaviour.version
            while not _send(queue, frames, stamp, slots, drops and bool(orders.get("drop"))):
                if _orphaned(command) or (news := queue.news()) is None:
                    return
                # What else is new comes before the next slice.
                orders = orders | {"drop": news[1].get("drop")}
                time.sleep(0.005)
    finally:
        generator.close()


def _send(queue: RedisQueue, frames: bytes, stamp: int, slots: int, drop: bool) -> bool:
    """Send a slice if there is room for it.

    Asked first where room is waited for: a slice is not sent over and over to a full queue. Another
    generator may take the room meanwhile.
    """
    there_is_room = drop or queue.room(slots)
    return there_is_room and queue.push(frames, stamp, slots, "drop" if drop else "wait")


def _obey(generator: Generator, orders: dict[str, Any], before: dict[str, Any] | None) -> None:
    """Carry out what is new among the learner's orders; episodes of a fresh generator are new ones."""
    if before is not None and orders.get("episodes") != before.get("episodes"):
        generator.begin_new_episodes(orders["episodes"])
    noise = orders.get("noise")
    if noise != (before or {}).get("noise"):
        generator.set_noise(None if noise is None else (torch.tensor(noise[0]), noise[1]))


def _say(command: GeneratorCommandConfig, text: str) -> None:
    """Tell whoever started this process; a learner shows its generators itself."""
    if command.parent is None:
        print(f"{command.run:<10} {text}", flush=True)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _orphaned(command: GeneratorCommandConfig) -> bool:
    """Whether the learner that started this process is gone."""
    return command.parent is not None and os.getppid() != command.parent


def _wait(ask: Callable[[], Result | None], gone: Callable[[float], bool]) -> Result | None:
    """What the server says of the run; waits for it, for learner and generators start in any order.

    Args:
        ask: the server.
        gone: whether so many seconds are enough.
    """
    from rl_twoclocks.collect.patience import WakingClock

    clock = WakingClock()
    while (answer := ask()) is None and not gone(clock.now()):
        time.sleep(0.1)
    return answer


if __name__ == "__main__":
    main()
