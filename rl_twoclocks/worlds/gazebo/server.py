"""One gzserver process: started, asked, seen to die, never left behind."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import weakref
from pathlib import Path
from typing import BinaryIO

from rl_twoclocks.worlds.gazebo.installation import Installation
from rl_twoclocks.worlds.gazebo.protocol import HELLO, Hello, framed

START_PATIENCE, PATIENCE = 60.0, 20.0
"""Seconds for a server to start (usually 0.5), and to answer a request (usually 0.001)."""
ATTEMPTS = 3
"""Times that a start is tried: the port, found free, may be taken before the server has it."""
_FATAL = re.compile(rb"Failed to load plugin|Error Code \d+|Could not load|Unable to read")


class GazeboDied(RuntimeError):
    """The server died, or does not answer; the message has the end of its log."""


class Server:
    """A gzserver on one world, over one inherited socket.

    Args:
        world: the world's text, with the plugin in it.
        models: folder in which `<include>` finds models.
        installation: where Gazebo is.
        core: the number of the core to stay on; None: any.
    """

    def __init__(
        self, world: str, models: Path, installation: Installation, core: int | None = None
    ) -> None:
        """Start it; `hello` waits until it is there."""
        self._world, self._models, self._installation = world, models, installation
        self._core = core
        self.start()

    def start(self) -> None:
        """Start it, or end what there is of it and start it again; does not wait for it."""
        self.close()
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE)
        self._folder = Path(tempfile.mkdtemp(prefix="rl_twoclocks-gazebo-"))
        world = self._folder / "prepared.world"
        world.write_text(self._world)
        port = _free_port()
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self._folder),
            "LC_ALL": "C",
            "GAZEBO_MASTER_URI": f"http://127.0.0.1:{port}",
            "GAZEBO_IP": "127.0.0.1",
            "IGN_IP": "127.0.0.1",
            "IGN_PARTITION": f"rl_twoclocks-{port}",
            # Empty: models are never looked for on the network.
            "GAZEBO_MODEL_DATABASE_URI": "",
            "GAZEBO_MODEL_PATH": f"{self._models}:{os.environ.get('GAZEBO_MODEL_PATH', '')}",
            "GZ_LOCKSTEP_FD": str(theirs.fileno()),
            "GZ_LOCKSTEP_PARENT": str(os.getpid()),
            **self._installation.environment(),
        }
        with open(self._folder / "log", "wb") as log:
            process = subprocess.Popen(
                self._installation.command(world),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                # A Ctrl-C in the terminal is for the trainer.
                start_new_session=True,
                cwd=self._folder,
            )
        theirs.close()
        if self._core is not None:
            with contextlib.suppress(OSError):  # it is gone, which the first request tells
                os.sched_setaffinity(process.pid, {self._core})
        # Buffered: one call into the kernel for a reply's length and its body.
        replies = ours.makefile("rb")
        self.process, self._socket, self._replies = process, ours, replies
        self._end = weakref.finalize(
            self, _end, os.getpid(), process, (replies, ours), self._folder
        )
        self._hello: Hello | None = None

    def close(self) -> None:
        """End the process; a second call does nothing."""
        if hasattr(self, "_end"):
            self._end()

    def hello(self) -> Hello:
        """What the world is made of; waits until the server has started.

        Raises:
            GazeboDied: it does not start.
        """
        deadline = time.monotonic() + START_PATIENCE
        for attempt in range(1, ATTEMPTS + 1):
            if self._hello is not None:
                break
            try:
                self._hello = self._await_hello(deadline)
            except GazeboDied:
                if attempt == ATTEMPTS or time.monotonic() > deadline:
                    self.close()
                    raise
                self.start()
        assert self._hello is not None
        return self._hello

    def _await_hello(self, deadline: float) -> Hello:
        self.send(HELLO)
        while not select.select([self._socket], [], [], 0.05)[0]:
            # A server that cannot load its world or its plugin goes on without them.
            fatal = _FATAL.search(self._log())
            if fatal or self.process.poll() is not None or time.monotonic() > deadline:
                raise self._death(fatal[0].decode() if fatal else "it does not start")
        return Hello.parse(self.receive())

    def send(self, request: bytes) -> None:
        """Ask; the reply has to be received before the next request.

        Raises:
            GazeboDied: there is nobody to ask.
        """
        try:
            self._socket.sendall(framed(request))
        except OSError as error:
            raise self._death(str(error)) from error

    def receive(self) -> bytes:
        """Wait for the reply.

        Raises:
            GazeboDied: the server died or does not answer.
            ValueError: it refuses the request.
        """
        try:
            (length,) = struct.unpack("<I", self._read(4))
            reply = self._read(length)
        except OSError as error:
            raise self._death(str(error) or type(error).__name__) from error
        if reply[0]:
            raise ValueError(f"Gazebo refuses the request: {reply[1:].decode()}")
        return reply[1:]

    def _read(self, size: int) -> bytes:
        found = self._replies.read(size)
        if len(found) < size:
            raise ConnectionResetError("it has closed the connection")
        return found

    def _log(self) -> bytes:
        try:
            return (self._folder / "log").read_bytes()
        except FileNotFoundError:
            return b""

    def _death(self, why: str) -> GazeboDied:
        tail = self._log()[-1500:].decode(errors="replace").strip()
        return GazeboDied(f"gzserver (process {self.process.pid}): {why}. Its log ends:\n{tail}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _end(
    owner: int, process: subprocess.Popen, connection: tuple[BinaryIO, socket.socket], folder: Path
) -> None:
    if os.getpid() != owner:
        # A fork's copy of the object: the server is not its own.
        return
    for end in connection:  # the socket lives until both are closed
        end.close()
    if process.poll() is None:
        # It has nothing to save, and a clean shutdown of Gazebo can hang.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
