"""Rollouts from generators behind a Redis server, on this machine or on others."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from tensordict import TensorDict

from rl_twoclocks.cli import BAD_CONFIG, NOT_FINITE
from rl_twoclocks.collect.behaviour import BehaviourPolicy
from rl_twoclocks.collect.generator import example_slice
from rl_twoclocks.collect.messages import (
    RefusedError,
    largest_message,
    pack_policy,
    unpack_slice,
)
from rl_twoclocks.collect.patience import WakingClock
from rl_twoclocks.collect.redis_queue import (
    URL_VARIABLE,
    QueueState,
    RedisQueue,
    address,
)
from rl_twoclocks.collect.source import Noise, Stop, never
from rl_twoclocks.config import Config
from rl_twoclocks.configure import assign
from rl_twoclocks.envs import NonFiniteError, WorkerError
from rl_twoclocks.rundir import directory, plain
from rl_twoclocks.seeding import stream_seed

Answer = TypeVar("Answer")
POLL = 0.002
"""Seconds between two looks into an empty queue."""
KEPT = 64
"""Published versions that are remembered at least."""
LOOK = 1.0
"""Seconds between two looks at local generators while a slice is waited for."""


def name_of(config: Config) -> str:
    """The name of a run; where none was given, one that no other run directory has, on any machine."""
    if config.collect.redis.run:
        return config.collect.redis.run
    place = directory(config)
    digest = hashlib.sha256(owner_of(config).encode()).hexdigest()[:8]
    # Letters that a command line takes as they are.
    readable = re.sub(r"[^\w.-]+", "-", f"{place.parent.name}-{place.name}", flags=re.ASCII)
    return f"{readable}-{digest}"


def owner_of(config: Config) -> str:
    """What the learner of a run directory is known by, on any machine."""
    return f"{platform.node()}:{directory(config)}"


def queue_of(config: Config) -> RedisQueue:
    """The learner's client for a run; nothing is sent yet."""
    url = address(config.collect.redis.url)
    return RedisQueue(url, name_of(config), config.collect.patience, owner_of(config))


def generator_command(config: Config) -> str:
    """What to type on a machine that is to collect for this run."""
    return f"python -m rl_twoclocks.generator {assign('run', name_of(config))} url=..."


@dataclass
class Local:
    """A generator that was started here."""

    process: subprocess.Popen
    heard: float
    """When it last sent a slice, or asked for room."""
    sent: int = 0
    """The number of that message."""


class Orders(NamedTuple):
    """What generators do besides collecting."""

    episodes: int | None = None
    """A number; with another one, new episodes are begun in all environments."""
    noise: tuple[list[float], int] | None = None
    """Deviations of observation noise, and the seed of its stream."""
    drop: bool = False
    """Whether a full queue may be dropped from."""


class RedisSource:
    """The learner's end of the queue.

    Slices come from processes that need not be trusted: what does not fit is refused and counted.
    Generators that this process started and that die or hang are started again, up to `max_restarts`
    times. The server is waited for in `next` alone: what could not be said while it was away is said
    there.
    """

    def __init__(
        self,
        config: Config,
        behaviour: BehaviourPolicy,
        update_frequency: int,
        frames: int,
        restarts: int = 0,
    ) -> None:
        """Announce the run, and start generators here if `collect.redis.spawn` says so."""
        self.config, self.collect = config, config.collect
        envs = config.num_envs // config.collect.workers
        steps = update_frequency // config.num_envs
        self.example = example_slice(config, envs, steps)
        self.name = name_of(config)
        self.url = address(config.collect.redis.url)
        self.queue = queue_of(config)
        self.largest = largest_message(self.example)
        # What generators need to know, and the frames so far: their episodes must be new ones.
        told = {"config": plain(config), "steps": steps, "envs": envs, "life": frames}
        self.told = json.dumps(told)
        self.policy = behaviour.published()
        self.versions = {self.policy.version}
        """All that were ever published and may still be learnt from."""
        self.orders = Orders()
        self.said = self.policy.version
        self.unsaid = self.undropped = False
        """What the server, which was away, does not know yet; what it still has to drop."""
        self.stream = random.Random(stream_seed(config.seed, "order of slices", frames))
        self.restarts = restarts
        self.refused = self.lost = self.uncounted = 0
        self.why_refused = ""
        self.clock = WakingClock()
        self.local: list[Local] = []
        self.opened = False
        # A server that is away is waited for in `next`, which a signal can end.
        self._now(self._open)

    def _open(self) -> None:
        self.queue.open(self.told, self.policy.version, pack_policy(self.policy))
        self.opened = True
        if self.collect.redis.spawn:
            self.local = [self._start() for _ in range(self.collect.workers)]

    def next(
        self, version: int, max_staleness: int | None, should_stop: Stop = never
    ) -> tuple[TensorDict, int] | None:
        """Wait for as many slices as make a rollout.

        Raises:
            WorkerError: no server or no slice for `collect.patience` seconds, or local
                generators died more often than `max_restarts` allows.
            NonFiniteError: a local generator saw an observation or reward that is not finite.
        """
        self.queue.should_stop = should_stop
        # Also where nothing has to be waited for, because the others are fast enough.
        self._look_after()
        taken: list[TensorDict] = []
        heard = looked = self.clock.now()
        oldest = None if max_staleness is None else version - max_staleness
        while True:
            if should_stop():
                return None
            per_round = self.collect.workers
            wanted = per_round - len(taken)
            try:
                if not self.opened:
                    self._open()
                    # With what has been ordered meanwhile.
                    self.unsaid, heard = True, self.clock.now()
                if self.unsaid or self.undropped:
                    self._make_up()
                order, draw = self.collect.order, self.stream.randrange(2**31)
                found = self.queue.take(
                    wanted, version, max_staleness, order, draw, per_round, self.largest
                )
                if found is None:
                    # The server was started anew and knows nothing: generators wait for this.
                    self._announce()
                    heard, self.lost = self.clock.now(), 0
                    continue
            except WorkerError:
                if should_stop():
                    return None
                raise
            messages, expired = found
            # More than the queue holds at most cannot have been slices.
            honest = min(expired, self.collect.slots)
            self._drop(honest)
            self._refuse("too old, and more than the queue has room for", expired - honest)
            for message in messages:
                try:
                    taken.append(unpack_slice(message, self.example, self.versions, oldest))
                    heard = self.clock.now()
                except RefusedError as error:
                    self._refuse(str(error))
            if len(taken) == self.collect.workers:
                break
            # Also while messages come that have to be refused: they may never end.
            if self._look_after():
                heard = self.clock.now()
            if self.local and self.clock.now() - looked > LOOK:
                looked = self.clock.now()
                if (state := self._now(self.queue.readings)) is not None:
                    self._end_hung(state)
            # Local ones that hang are found out by the second look after their patience.
            late = 2 * LOOK if self.local else 0.0
            if self.clock.now() - heard > self.collect.patience + late:
                raise WorkerError(self._silence())
            if len(messages) < wanted:
                time.sleep(POLL)
        rollout: TensorDict = torch.cat(taken, dim=0)  # type: ignore[assignment]
        if (state := self._now(self.queue.readings)) is not None:
            self._drop(max(state.lost - self.lost, 0))
            self.lost = state.lost
            self._end_hung(state)
        frames, self.uncounted = self.uncounted, 0
        return rollout, frames + rollout.numel()

    @property
    def given(self) -> int:
        """Of the policy on the server."""
        return self.said

    def publish(self, behaviour: BehaviourPolicy) -> None:
        """Broadcast the policy; generators take it before their next slice."""
        self.policy = behaviour.published()
        self.versions.add(self.policy.version)
        if (limit := self.collect.max_staleness) is not None:
            # With `lag_mode=ring` the policy that acts may be older than the one before it.
            newest = max(self.versions)
            self.versions = {v for v in self.versions if newest - v <= 2 * limit + KEPT}
        self._say()

    def learnt(self) -> None:
        """Generators may drop from a full queue from now on."""
        if self.collect.when_full == "drop" and not self.orders.drop:
            self.orders = self.orders._replace(drop=True)
            self._say()

    def begin_new_episodes(self, seed: int, index: int) -> None:
        """Let generators reset their environments after the slice under way."""
        self.orders = self.orders._replace(episodes=index)
        self._say()

    def set_noise(self, noise: Noise | None) -> None:
        """Let generators add noise to their observations, or stop."""
        told = None if noise is None else (noise[0].tolist(), noise[1])
        if told != self.orders.noise:
            self.orders = self.orders._replace(noise=told)
            self._say()

    def discard(self) -> int:
        """Drop what waits."""
        dropped = self._now(self.queue.drop_all)
        self.undropped = dropped is None
        self._drop(dropped or 0)
        frames, self.uncounted = self.uncounted, 0
        return frames

    def _drop(self, slices: int) -> None:
        self.uncounted += slices * self.example.numel()

    def readings(self) -> dict[str, float]:
        """Slices waiting, messages refused, local generators started again."""
        state = self._now(self.queue.readings)
        return {
            "collect/waiting": float(state.waiting if state else 0),
            "collect/refused": float(self.refused),
            "collect/restarts": float(self.restarts),
        }

    def close(self) -> None:
        """Take the run off the server and end the generators that were started here."""
        for generator in self.local:
            generator.process.terminate()
        for generator in self.local:
            try:
                generator.process.wait(5)
            except subprocess.TimeoutExpired:
                generator.process.kill()
                generator.process.wait()
        self.local = []
        self.queue.close()

    # -- inside --------------------------------------------------------------------------------

    def _now(self, ask: Callable[[], Answer]) -> Answer | None:
        """What the server says; None where it is away, which `next` will notice."""
        with contextlib.suppress(WorkerError), self.queue.at_once():
            return ask()
        return None

    def _say(self) -> None:
        """Announce, now or in `next`."""
        self.unsaid = self.opened and self._now(self._announce) is None

    def _make_up(self) -> None:
        """Say and drop what could not be said and dropped; waits for the server."""
        if self.undropped:
            self._drop(self.queue.drop_all())
        self._announce()
        self.unsaid = self.undropped = False

    def _refuse(self, why: str, messages: int = 1) -> None:
        if messages:
            self.refused, self.why_refused = self.refused + messages, why

    def _announce(self) -> bool:
        orders = json.dumps(self.orders._asdict())
        self.queue.announce(self.told, self.policy.version, pack_policy(self.policy), orders)
        self.said = self.policy.version
        return True

    def _start(self) -> Local:
        words = [
            assign("run", self.name),
            f"patience={self.collect.patience}",
            f"parent={os.getpid()}",
        ]
        command = [sys.executable, "-m", "rl_twoclocks.generator", *words]
        # Not on the command line, where every user of the machine could read its password.
        process = subprocess.Popen(command, env=os.environ | {URL_VARIABLE: self.url})
        return Local(process, self.clock.now())

    def _end_hung(self, state: QueueState) -> None:
        """Kill local generators that neither give anything nor ask for room, whatever the others do."""
        for generator in self.local:
            sent = state.sent.get(generator.process.pid, 0)
            if sent != generator.sent:
                generator.sent, generator.heard = sent, self.clock.now()
            elif self.clock.now() - generator.heard > self.collect.patience:
                generator.process.kill()

    def _look_after(self) -> bool:
        """Start local generators that have died again; return whether there were any."""
        restarts = self.restarts
        for i, process in enumerate(generator.process for generator in self.local):
            if process.poll() is None:
                continue
            # Another start would end alike. Its own words stand above, for it shares our stderr.
            if process.returncode == NOT_FINITE:
                raise NonFiniteError(f"generator {i}: a number of its environment is not finite")
            if process.returncode == BAD_CONFIG:
                raise WorkerError(f"generator {i} cannot run the configuration")
            self.restarts += 1
            if self.restarts > self.collect.max_restarts:
                raise WorkerError(
                    f"generator {i} ended (exit code {process.returncode}) and "
                    f"collect.max_restarts={self.collect.max_restarts} restarts are used up"
                )
            self.local[i] = self._start()
        return self.restarts > restarts

    def _silence(self) -> str:
        text = f"no slice for {self.collect.patience:g} seconds from {self.queue.url}"
        if self.refused:
            text += f"; {self.refused} messages were refused, the last one: {self.why_refused}"
        if not self.collect.redis.spawn:
            text += f"; start generators: {generator_command(self.config)}"
        return text
