"""The asynchronous pool: workers collect at their own pace, the learner takes what is near enough."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import time
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from tensordict import TensorDict

from rl_twoclocks.collect.behaviour import BehaviourPolicy
from rl_twoclocks.collect.generator import example_slice
from rl_twoclocks.collect.heed import Heed
from rl_twoclocks.collect.patience import WakingClock
from rl_twoclocks.collect.shared import Board, Shelf
from rl_twoclocks.collect.source import Noise, Stop, choose, never
from rl_twoclocks.collect.worker import work
from rl_twoclocks.config import Config
from rl_twoclocks.envs import NonFiniteError, WorkerError
from rl_twoclocks.seeding import stream_seed

GRACE = 5.0
"""Seconds that a worker has to end by itself; then it is killed."""


class AsyncSource:
    """Worker processes with a shelf of slots each, in shared memory.

    A worker that dies is noticed by its pipe at once and started again, with other episodes, up to
    `collect.max_restarts` times in a session; one that raises ends the run with its own message.
    """

    def __init__(
        self,
        config: Config,
        behaviour: BehaviourPolicy,
        update_frequency: int,
        frames: int,
        restarts: int = 0,
    ) -> None:
        """Start the workers; `frames` and `restarts` so far make their episodes new ones."""
        collect = config.collect
        self.config, self.collect = config, collect
        self.envs = config.num_envs // collect.workers
        self.steps = update_frequency // config.num_envs
        self.life = frames
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["rl_twoclocks.collect.worker"])
        self.board = Board(behaviour.published())
        self.example = example_slice(config, self.envs, self.steps)
        self.shelves = [self._shelf() for _ in range(collect.workers)]
        self.stream = random.Random(stream_seed(config.seed, "order of slices", frames))
        self.restarts = restarts
        self.heed = Heed()
        self.taken_lengths = [0, 0]
        self.counted_lost = 0
        self.noise: Noise | None = None
        self.clock = WakingClock()
        self.heard = [0.0] * collect.workers
        """When each worker last gave a slice, or got room for one."""
        self.workers: list[Any] = [None] * collect.workers
        self.pipes: list[Connection] = []
        for index in range(collect.workers):
            self.pipes.append(self._start(index))

    def next(
        self, version: int, max_staleness: int | None, should_stop: Stop = never
    ) -> tuple[TensorDict, int] | None:
        """Wait for as many slices as there are workers, near enough to the learner's version.

        Raises:
            WorkerError: a worker raised, or more of them died or hung for `patience` seconds than
                `max_restarts` allows.
            NonFiniteError: a worker saw an observation or reward that is not finite.
        """
        taken: list[TensorDict] = []
        # Also where nothing has to be waited for: deaths are noticed, and pipes never fill up.
        self._listen(timeout=0.0)
        while True:
            self._take(taken, version, max_staleness)
            if len(taken) == self.collect.workers:
                break
            if should_stop():
                return None
            self._listen(timeout=1.0)
        rollout: TensorDict = torch.cat(taken, dim=0)  # type: ignore[assignment]
        lengths = rollout["episode_length"]
        self.taken_lengths[0] += int((lengths > 0).sum())
        self.taken_lengths[1] += int(lengths.sum())
        return rollout, rollout.numel() + self._newly_lost()

    @property
    def given(self) -> int:
        """Of the policy on the board."""
        return self.board.version

    def publish(self, behaviour: BehaviourPolicy) -> None:
        """Put the policy on the board; workers take it before their next slice."""
        self.board.write(behaviour.published())
        self.heed.publish(behaviour.version)

    def learnt(self) -> None:
        """Workers may drop from full shelves from now on."""
        self.board.learnt[0] = 1

    def begin_new_episodes(self, seed: int, index: int) -> None:
        """Let every worker reset its environments."""
        self._tell("begin_new_episodes", index)

    def set_noise(self, noise: Noise | None) -> None:
        """Let every worker add noise to its observations, or stop."""
        if noise is None and self.noise is None:
            return
        self.noise = noise
        self._tell("set_noise", noise)

    def discard(self) -> int:
        """Drop what waits."""
        for index, shelf in enumerate(self.shelves):
            # Who waited for room has it from now on.
            self.heard[index] = self.clock.now()
            for number, slot, _ in shelf.ready():
                shelf.drop(slot, number)
        return self._newly_lost()

    def readings(self) -> dict[str, float]:
        """Length of dropped episodes, slices waiting, workers started again.

        `clock/dropped_length_ratio` is the mean length of episodes that ended in dropped slices over
        that in slices learnt from: far from 1, dropping favours short or long episodes.
        """
        lost = torch.stack([shelf.lost for shelf in self.shelves]).sum(0).tolist()
        readings = {
            "collect/waiting": float(sum(len(shelf.ready()) for shelf in self.shelves)),
            "collect/restarts": float(self.restarts),
        } | self.heed.readings()
        count, total = self.taken_lengths
        if lost[1] > 0 and count:
            readings["clock/dropped_length_ratio"] = (lost[2] / lost[1]) / (total / count)
        return readings

    def close(self) -> None:
        """End all workers: they stop at the end of their slice, or are killed."""
        for pipe in self.pipes:
            pipe.close()
        deadline = time.monotonic() + GRACE
        for worker in self.workers:
            worker.join(max(0.0, deadline - time.monotonic()))
            if worker.is_alive():
                worker.kill()
                worker.join()
            worker.close()
        self.workers, self.pipes = [], []

    # -- inside --------------------------------------------------------------------------------

    def _newly_lost(self) -> int:
        """Frames lost since the last call."""
        fresh = sum(int(shelf.lost[0]) for shelf in self.shelves) - self.counted_lost
        fresh = max(fresh, 0)
        self.counted_lost += fresh
        return fresh

    def _shelf(self) -> Shelf:
        return Shelf(self.example, self.collect.slots // self.collect.workers)

    def _start(self, index: int) -> Connection:
        mine, theirs = self.context.Pipe()
        life = self.life + self.restarts
        arguments = (self.config, index, self.envs, self.steps, life, self.board)
        worker = self.context.Process(
            target=work,
            args=(*arguments, self.shelves[index], theirs),
            name=f"collect worker {index}",
            daemon=True,
        )
        worker.start()
        self.heard[index] = self.clock.now()
        # Ours must be the only other end, or the worker would never see it close.
        theirs.close()
        self.workers[index] = worker
        return mine

    def _take(self, taken: list[TensorDict], version: int, max_staleness: int | None) -> None:
        """Take waiting slices until there are enough, and drop those that are too old."""
        waiting = [
            (number, index, slot, stamp)
            for index, shelf in enumerate(self.shelves)
            for number, slot, stamp in shelf.ready()
        ]
        waiting.sort()
        for number, index, _, stamp in waiting:
            self.heed.slice(index, number, stamp)
        per_round = self.collect.workers
        wanted = per_round - len(taken)
        stamps = [stamp for *_, stamp in waiting]
        order = self.collect.order
        good, too_old = choose(
            stamps, wanted, per_round, version, max_staleness, order, self.stream
        )
        for i in (*too_old, *good):
            self.heard[waiting[i][1]] = self.clock.now()
        for i in too_old:
            number, index, slot, _ = waiting[i]
            self.shelves[index].drop(slot, number)
        for i in good:
            number, index, slot, _ = waiting[i]
            frames = self.shelves[index].take(slot, number)
            if frames is not None:
                taken.append(frames)

    def _listen(self, timeout: float) -> None:
        """Wait for news of any worker, and look after those that died or hang."""
        news = wait(self.pipes, timeout)
        for index, pipe in enumerate(self.pipes):
            if pipe not in news:
                continue
            try:
                while pipe.poll():
                    if (said := pipe.recv()) is not None:
                        self._raise(index, *said)
                    self.heard[index] = self.clock.now()
            except (EOFError, ConnectionResetError, BrokenPipeError):
                self._replace(index)
        self._kill_hung()

    def _kill_hung(self) -> None:
        """Kill and replace workers that have room and give nothing, whatever the others give."""
        for index, shelf in enumerate(self.shelves):
            silent = self.clock.now() - self.heard[index]
            if silent > self.collect.patience and not shelf.full:
                self.workers[index].kill()
                self._replace(index)

    def _raise(self, index: int, name: str, message: str, trace: str) -> None:
        if name == NonFiniteError.__name__:
            raise NonFiniteError(f"{message} (in collect worker {index})")
        raise WorkerError(f"collect worker {index} raised {name}: {message}\n{trace}")

    def _replace(self, index: int) -> None:
        """Start a dead worker again."""
        dead = self.workers[index]
        dead.join(GRACE)
        code = dead.exitcode
        self.restarts += 1
        if self.restarts > self.collect.max_restarts:
            raise WorkerError(
                f"collect worker {index} died or hung (exit code {code}) and collect.max_restarts="
                f"{self.collect.max_restarts} restarts are used up"
            )
        self.pipes[index].close()
        if code is None:
            # Killed, and held up in the system: it may still write to its shelf.
            self.counted_lost -= int(self.shelves[index].lost[0])
            self.shelves[index] = self._shelf()
        else:
            dead.close()
            self.shelves[index].abandon()
        self.pipes[index] = self._start(index)
        if self.noise is not None:
            self.pipes[index].send(("set_noise", self.noise))

    def _tell(self, what: str, argument: Any) -> None:
        for index in range(len(self.pipes)):
            # Of a worker that is gone, `next` hears what it said last.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.pipes[index].send((what, argument))
