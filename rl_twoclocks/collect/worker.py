"""A worker process of the asynchronous pool."""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch
from tensordict import TensorDict

from rl_twoclocks.collect.generator import Generator
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
    # The trainer handles signals, which often go to all its processes, and ends its workers itself.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    drop = config.collect.when_full == "drop"
    generator = None
    # The learner's end of the pipe closing is how a worker learns that it is no longer wanted.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            generator = Generator(config, index, num_envs, steps, life)
            while True:
                while pipe.poll():
                    obey(generator, *pipe.recv())
                slot = shelf.place(drop)
                if slot is None:
                    pipe.poll(PATIENCE)
                    continue
                if generator.behaviour.version != board.version:
                    generator.take(board.read())
                frames = collected(generator)
                # The order of arrival over all workers: they share this clock.
                shelf.fill(slot, frames, time.monotonic_ns(), generator.behaviour.version)
                pipe.send(None)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            pipe.send((type(error).__name__, str(error), traceback.format_exc()))
    if generator is not None:
        generator.close()


def collected(generator: Generator) -> TensorDict:
    """A slice; a simulator whose own pipe broke must not be taken for a learner that has gone.

    Raises:
        RuntimeError: the simulator's EOFError or connection error.
    """
    try:
        return generator.slice()
    except (EOFError, ConnectionError) as error:
        raise RuntimeError(f"the simulator's connection broke: {error!r}") from error


def obey(generator: Generator, what: str, argument: Any) -> None:
    """Carry out what the learner asks for between two slices."""
    getattr(generator, what)(argument)
