"""A worker process of the asynchronous pool."""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection

import torch

from rl_twoclocks.collect.generator import Generator
from rl_twoclocks.collect.patience import end_with_starter
from rl_twoclocks.collect.shared import Board, Shelf
from rl_twoclocks.config import Config

PATIENCE = 0.002
"""Seconds between two looks for a free slot."""


def work(
    config: Config,
    index: int,
    num_envs: int,
    steps: int,
    life: int,
    board: Board,
    shelf: Shelf,
    pipe: Connection,
) -> None:
    """Fill the shelf until the learner closes the pipe, or is gone.

    Sends None for every slice filled, and (error's name, message, traceback) before it ends on an
    error. Receives (method of the generator, argument).
    """
    end_with_starter()
    # The trainer handles signals, which often go to all its processes, and ends its workers itself.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    drop = config.collect.when_full == "drop"
    generator = None
    # The learner's end of the pipe closing is how a worker learns that it is no longer wanted.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            with simulator():
                generator = Generator(config, index, num_envs, steps, life)
            while True:
                while pipe.poll():
                    what, argument = pipe.recv()
                    with simulator():
                        getattr(generator, what)(argument)
                slot = shelf.place(drop and bool(board.learnt))
                if slot is None:
                    pipe.poll(PATIENCE)
                    continue
                if generator.behaviour.version != board.version:
                    generator.take(board.read())
                with simulator():
                    frames = generator.slice()
                # The order of arrival over all workers: they share this clock.
                shelf.fill(slot, frames, time.monotonic_ns(), generator.behaviour.version)
                pipe.send(None)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            pipe.send((type(error).__name__, str(error), traceback.format_exc()))
    if generator is not None:
        generator.close()


@contextlib.contextmanager
def simulator() -> Iterator[None]:
    """A simulator whose own pipe broke must not be taken for a learner that has gone.

    Raises:
        RuntimeError: the simulator's EOFError or connection error.
    """
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise RuntimeError(f"the simulator's connection broke: {error!r}") from error
