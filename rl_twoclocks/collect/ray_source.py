"""Rollouts from actors on a Ray cluster: each runs a generator, with TorchRL's collector inside."""

from __future__ import annotations

import contextlib
import functools
import random
import signal
import threading
import time
from typing import Any

import ray
import torch
from tensordict import TensorDict

from rl_twoclocks.collect.behaviour import BehaviourPolicy, Published
from rl_twoclocks.collect.generator import Generator, example_slice
from rl_twoclocks.collect.patience import WakingClock
from rl_twoclocks.collect.source import Noise, Stop, choose, never
from rl_twoclocks.config import Config
from rl_twoclocks.envs import NonFiniteError, WorkerError
from rl_twoclocks.seeding import stream_seed


class Actor:
    """A generator that is told its policy with every slice that it is asked for.

    It is made with the first call: what an actor's constructor raises reaches nobody as it is.
    """

    def __init__(self, *arguments: Any) -> None:
        """Take the generator's arguments."""
        self.arguments = arguments

    @functools.cached_property
    def generator(self) -> Generator:
        """The generator."""
        return Generator(*self.arguments)

    def order(self, what: str, argument: Any) -> None:
        """Call a method of the generator."""
        getattr(self.generator, what)(argument)

    def collect(self, published: Published) -> tuple[int, dict[str, Any]]:
        """A slice as plain arrays, and its version."""
        if published.version != self.generator.behaviour.version:
            self.generator.take(published)
        frames = self.generator.slice()
        version = self.generator.behaviour.version
        return version, {key: value.numpy() for key, value in frames.items()}


class RaySource:
    """One actor per worker; every actor has one slice under way and at most `slots` wait.

    A node or actor that dies, or gives nothing for `collect.patience` seconds, is replaced, with other
    episodes, up to `collect.max_restarts` times.
    """

    def __init__(
        self,
        config: Config,
        behaviour: BehaviourPolicy,
        update_frequency: int,
        frames: int,
        restarts: int = 0,
    ) -> None:
        """Join the cluster at `collect.ray_address`, or start one on this machine."""
        self.config, self.collect = config, config.collect
        self.envs = config.num_envs // config.collect.workers
        self.steps = update_frequency // config.num_envs
        self.life = frames
        self.example = example_slice(config, self.envs, self.steps)
        self.mine = not ray.is_initialized()
        if self.mine:
            # Ray would handle SIGTERM itself, and leave without saving anything.
            handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
            ray.init(
                # Without an address Ray would join whatever cluster it finds on this machine.
                address=config.collect.ray_address or "local",
                log_to_driver=False,
                include_dashboard=False,
                configure_logging=False,
            )
            if threading.current_thread() is threading.main_thread():
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        self.stream = random.Random(stream_seed(config.seed, "order of slices", frames))
        self.uncounted = 0
        self.restarts = restarts
        self.noise: Noise | None = None
        self.published = behaviour.published()
        self.policy, self.version = ray.put(self.published), self.published.version
        self.actors: dict[int, Any] = {}
        self.pending: dict[Any, int] = {}
        self.told: dict[Any, int] = {}
        """Orders under way, and to which actor."""
        self.clock = WakingClock()
        self.asked: dict[int, float] = {}
        """When each actor was asked for the slice that it owes."""
        self.idle: set[int] = set()
        self.waiting: list[tuple[int, TensorDict]] = []
        for index in range(config.collect.workers):
            self._start(index)

    def next(
        self, version: int, max_staleness: int | None, should_stop: Stop = never
    ) -> tuple[TensorDict, int] | None:
        """Wait for as many slices as there are workers, near enough to the learner's version.

        Raises:
            WorkerError: an actor raised, or more of them died than `max_restarts` allows; or the
                cluster is gone.
            NonFiniteError: an actor saw an observation or reward that is not finite.
        """
        try:
            if self.published.version != self.version:
                self.policy, self.version = ray.put(self.published), self.published.version
            return self._next(version, max_staleness, should_stop)
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise WorkerError(f"the Ray cluster does not answer: {error}") from error

    def _next(
        self, version: int, max_staleness: int | None, should_stop: Stop
    ) -> tuple[TensorDict, int] | None:
        taken: list[TensorDict] = []
        frames, self.uncounted = self.uncounted, 0
        heard = self.clock.now()
        while True:
            restarts = self.restarts
            self._gather()
            # Who was started again has the time that all have.
            heard = self.clock.now() if self.restarts > restarts else heard
            per_round = self.collect.workers
            wanted = per_round - len(taken)
            stamps = [stamp for stamp, _ in self.waiting]
            order = self.collect.order
            good, too_old = choose(
                stamps, wanted, per_round, version, max_staleness, order, self.stream
            )
            taken += [self.waiting[i][1] for i in good]
            old = sum(self.waiting[i][1].numel() for i in too_old)
            frames += old
            gone = {*good, *too_old}
            self.waiting = [pair for i, pair in enumerate(self.waiting) if i not in gone]
            self._keep_busy()
            if len(taken) == self.collect.workers:
                break
            if should_stop():
                self.uncounted = frames
                return None
            heard = self.clock.now() if good else heard
            if self.clock.now() - heard > self.collect.patience:
                patience = f"collect.patience={self.collect.patience:g}"
                raise WorkerError(f"no actor has sent a slice to use for {patience} seconds")
            ray.wait(list(self.pending), num_returns=1, timeout=1.0)
        rollout: TensorDict = torch.cat(taken, dim=0)  # type: ignore[assignment]
        return rollout, frames + rollout.numel()

    @property
    def given(self) -> int:
        """Of the policy that goes out with the next slice that is asked for."""
        return self.published.version

    def publish(self, behaviour: BehaviourPolicy) -> None:
        """Note the policy; actors are told it with the next slice that they are asked for."""
        self.published = behaviour.published()

    def learnt(self) -> None:
        """Nothing to do: an actor is asked for a slice where there is room for it."""

    def begin_new_episodes(self, seed: int, index: int) -> None:
        """Reset all environments after the slice under way."""
        self._tell("begin_new_episodes", index)

    def set_noise(self, noise: Noise | None) -> None:
        """Let every actor add noise to its observations, or stop."""
        if noise is None and self.noise is None:
            return
        self.noise = noise
        self._tell("set_noise", noise)

    def discard(self) -> int:
        """Drop what waits."""
        old = sum(frames.numel() for _, frames in self.waiting)
        self.waiting.clear()
        old, self.uncounted = old + self.uncounted, 0
        return old

    def readings(self) -> dict[str, float]:
        """Slices waiting, actors started again."""
        return {
            "collect/waiting": float(len(self.waiting)),
            "collect/restarts": float(self.restarts),
        }

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        for actor in self.actors.values():
            # Of a cluster that is gone there is nothing to end.
            with contextlib.suppress(Exception):
                ray.kill(actor)
        self.actors.clear()
        self.pending.clear()
        if self.mine and ray.is_initialized():
            ray.shutdown()

    # -- inside --------------------------------------------------------------------------------

    def _start(self, index: int) -> None:
        life = self.life + self.restarts
        remote = ray.remote(Actor).options(num_cpus=1, max_concurrency=1)
        self.actors[index] = remote.remote(self.config, index, self.envs, self.steps, life)
        if self.noise is not None:
            self._order(index, "set_noise", self.noise)
        self._ask(index)

    def _tell(self, what: str, argument: Any) -> None:
        for index in self.actors:
            # Of a cluster that is gone `next` will say so.
            with contextlib.suppress(ray.exceptions.RayError, ConnectionError):
                self._order(index, what, argument)

    def _order(self, index: int, what: str, argument: Any) -> None:
        self.told[self.actors[index].order.remote(what, argument)] = index

    def _ask(self, index: int) -> None:
        self.pending[self.actors[index].collect.remote(self.policy)] = index
        self.asked[index] = self.clock.now()

    def _keep_busy(self) -> None:
        """Ask idle actors for another slice while there is room for it."""
        for index in sorted(self.idle):
            if len(self.waiting) + len(self.pending) < max(self.collect.slots, len(self.actors)):
                self.idle.discard(index)
                self._ask(index)

    def _gather(self) -> None:
        """Take over what the actors have finished."""
        # Orders first: what an actor collects after one that failed is worth nothing.
        for future in self._done(self.told):
            # Of one that is gone its slice, which is under way, will say so.
            with contextlib.suppress(ray.exceptions.RayError):
                self._outcome(self.told.pop(future), future)
        for future in self._done(self.pending):
            index = self.pending.pop(future)
            try:
                version, arrays = self._outcome(index, future)
            except ray.exceptions.RayError as error:
                # The actor, its node, or what it had put into the object store.
                self._replace(index, error)
                continue
            # Arrays from the object store are read-only and live as long as they are looked at.
            frames = {key: torch.from_numpy(array.copy()) for key, array in arrays.items()}
            shape = self.example.batch_size
            self.waiting.append((version, TensorDict(frames, batch_size=shape)))
            self.idle.add(index)
        for future, index in list(self.pending.items()):
            # Hung, or never begun, because the cluster has no room for it.
            if self.clock.now() - self.asked[index] > self.collect.patience:
                del self.pending[future]
                ray.kill(self.actors[index])
                self._replace(index, TimeoutError(f"nothing for {self.collect.patience:g} seconds"))

    def _done(self, futures: dict[Any, int]) -> list[Any]:
        if not futures:
            return []
        return ray.wait(list(futures), num_returns=len(futures), timeout=0)[0]

    def _outcome(self, index: int, future: Any) -> Any:
        """What a call of an actor returned.

        Raises:
            WorkerError, NonFiniteError: it raised.
            RayError: the actor is gone, or what it returned is.
        """
        try:
            return ray.get(future)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, NonFiniteError):
                raise NonFiniteError(f"{cause} (in Ray worker {index})") from None
            raise WorkerError(
                f"Ray worker {index} raised {type(cause).__name__}: {cause}\n{error}"
            ) from None

    def _replace(self, index: int, error: Exception) -> None:
        self.restarts += 1
        if self.restarts > self.collect.max_restarts:
            raise WorkerError(
                f"Ray worker {index} died or hung and collect.max_restarts={self.collect.max_restarts} "
                f"restarts are used up: {error}"
            ) from None
        time.sleep(0.1)
        self._start(index)
