"""The report while runs go on: a page that renews itself, from a server for this machine alone.

Three kinds of things are served, by name: the page, its version, and the videos of the runs that it
shows. A path that a request asks for is never opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rl_twoclocks.config import ConfigError
from rl_twoclocks.reporting.page import document, sections, title
from rl_twoclocks.reporting.runs import GOING, UNFINISHED, Run, labels, read_run

MOST = 20
"""Runs on the page: those that were written to last."""
DEPTH = 6
"""Folders below the watched one in which runs are looked for."""
SILENT = 120.0
"""Seconds without a new row from which an unfinished run no longer counts as going on."""
PAUSE, LONGEST = 2.0, 30.0
"""Seconds between two looks at the runs, at least and at most ..."""
SHARE = 20
"""... and this many times the processor time that the page takes, so that training keeps its cores."""
HOSTS = ("127.0.0.1", "localhost")
"""Names by which the server may be called; a page elsewhere that resolves to here has another."""

Stamp = tuple[tuple[str, int, int], ...]
"""Name, time of the last change and size of a run's files."""


class Board:
    """What the runs below a folder come to; each is read again when its files have changed."""

    def __init__(self, root: Path) -> None:
        """Watch a folder of runs, or one run."""
        self.root = root.resolve()
        self.videos: dict[str, Path] = {}
        """By the path of their address."""
        self._lock = threading.Lock()
        self._runs: dict[Path, tuple[Stamp, Run | str]] = {}
        self._page = ("", "")
        self._seconds = 0.0

    def state(self) -> dict[str, str | float]:
        """Version of the page, what to say of it, and seconds to wait before the next look."""
        with self._lock:
            started = time.thread_time()
            stamps = self._look()
            looked = time.thread_time() - started
            going = sum(map(_is_going, stamps.values()))
            words = f"{len(stamps)} run{'' if len(stamps) == 1 else 's'}, {going} going on."
            wait = min(max(PAUSE, SHARE * (looked + self._seconds)), LONGEST)
            return {"version": _version(stamps), "words": words, "wait": round(wait, 1)}

    def page(self) -> str:
        """The page as it is now."""
        with self._lock:
            stamps = self._look()
            version = _version(stamps)
            if version != self._page[0]:
                started, first = time.thread_time(), not self._page[0]
                self._page = version, self._make(stamps, version)
                # The first time modules are loaded, too.
                self._seconds = 0.0 if first else time.thread_time() - started
            return self._page[1]

    def _look(self) -> dict[Path, Stamp]:
        """The files of the runs to be shown, in the order in which the runs were first seen."""
        found = {folder: stamp for folder in self._folders() if (stamp := self._stamp(folder))}
        newest = sorted(found, key=lambda folder: _written(found[folder]), reverse=True)[:MOST]
        known = [folder for folder in self._runs if folder in newest]
        return {folder: found[folder] for folder in known + sorted(set(newest) - set(known))}

    def _folders(self) -> Iterator[Path]:
        # Links are not followed: what they point at may be elsewhere.
        for place, inner, files in os.walk(self.root):
            path = Path(place)
            if "metrics.jsonl" in files:
                yield path
                inner.clear()
            elif len(path.relative_to(self.root).parts) >= DEPTH:
                inner.clear()

    def _stamp(self, folder: Path) -> Stamp:
        """The state of a run's files; nothing where it has gone, or where a file lies elsewhere."""
        files = []
        try:
            for entry in os.scandir(folder):
                if entry.is_symlink() and not Path(entry).resolve().is_relative_to(self.root):
                    return ()
                if entry.is_file() and not entry.name.startswith("."):
                    found = entry.stat()
                    files.append((entry.name, found.st_mtime_ns, found.st_size))
        except OSError:
            return ()
        return tuple(sorted(files))

    def _make(self, stamps: dict[Path, Stamp], version: str) -> str:
        kept = {folder: self._runs.get(folder, ((), "")) for folder in stamps}
        self._runs = {
            folder: old if old[0] == stamps[folder] else (stamps[folder], _read(folder))
            for folder, old in kept.items()
        }
        named = zip(labels(list(stamps)), stamps.items(), self._runs.values(), strict=True)
        runs, notes = [], []
        for label, (_, stamp), (_, run) in named:
            if isinstance(run, str):
                notes.append(f'<p class="note">{escape(label)} cannot be shown: {escape(run)}</p>')
                continue
            going = run.state == UNFINISHED and _is_going(stamp)
            runs.append(replace(run, label=label, state=GOING if going else run.state))
        self.videos = {
            "/" + path.relative_to(self.root).as_posix(): path
            for run in runs
            for path in run.videos
        }
        if not runs:
            text = f"<p>There is no run below {escape(str(self.root))} yet.</p>"
            return document("No run yet", [("verdict", "Verdict", text + "".join(notes))], version)
        (key, heading, verdict), *others = sections(runs, self.root, room=0)
        parts = [(key, heading, verdict + "".join(notes)), *others]
        return document(title(runs), parts, version)


def _read(folder: Path) -> Run | str:
    try:
        return read_run(folder, folder.name)
    except Exception as error:
        # A run that is being written, or deleted, can be broken in any way; the others stay in sight.
        return str(error) or type(error).__name__


def _written(stamp: Stamp) -> float:
    return max(changed for name, changed, _ in stamp if name == "metrics.jsonl") / 1e9


def _is_going(stamp: Stamp) -> bool:
    ended = any(name in ("result.json", "error.txt") for name, _, _ in stamp)
    return not ended and time.time() - _written(stamp) < SILENT


def _version(stamps: dict[Path, Stamp]) -> str:
    known = [(str(folder), stamp, _is_going(stamp)) for folder, stamp in stamps.items()]
    # Never empty, also without runs.
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


class LiveServer(ThreadingHTTPServer):
    """Serves one board on the loopback interface."""

    daemon_threads = True

    def __init__(self, root: Path, port: int = 0) -> None:
        """Take a port; 0: a free one.

        Raises:
            ConfigError: there is no such folder, or the port is taken.
        """
        if not root.is_dir():
            from rl_twoclocks.rundir import nearest_runs

            raise ConfigError(f"{root} is no directory{nearest_runs(root)}")
        self.board = Board(root)
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"port {port} cannot be used ({error}): without --port a free one is taken"
            ) from error

    @property
    def address(self) -> str:
        """What to open."""
        return f"http://127.0.0.1:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with the page, its version or a video."""
        if _hostname(self.headers.get("Host", "")) not in HOSTS:
            self._answer(403, "text/plain", b"this page is for the machine that it is made on\n")
            return
        board, path = self.server.board, unquote(urlsplit(self.path).path)
        if path == "/":
            self._answer(200, "text/html; charset=utf-8", board.page().encode())
        elif path == "/version":
            self._answer(200, "application/json", json.dumps(board.state()).encode())
        elif path in board.videos:
            self._video(board.videos[path])
        elif path == "/favicon.ico":
            self._answer(204, "image/x-icon", b"")
        else:
            self._answer(404, "text/plain", b"there is no such page\n")

    def _video(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except OSError:
            self._answer(404, "text/plain", b"this video has gone\n")
            return
        # A browser that is to jump within a video asks for a part of it.
        asked = self.headers.get("Range")
        part = None if asked is None else byte_range(asked, len(data))
        if part is None:
            self._answer(200, "video/mp4", data, {"Accept-Ranges": "bytes"})
        elif not part:
            self._answer(416, "text/plain", b"", {"Content-Range": f"bytes */{len(data)}"})
        else:
            told = {"Content-Range": f"bytes {part.start}-{part.stop - 1}/{len(data)}"}
            self._answer(206, "video/mp4", data[part.start : part.stop], told)

    def _answer(
        self, code: int, kind: str, body: bytes, more: dict[str, str] | None = None
    ) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (more or {}).items():
            self.send_header(name, value)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal is the user's."""


def byte_range(asked: str, size: int) -> range | None:
    """The bytes that a Range header asks for, of `size`: an empty range where it can have none.

    None where it is not one range of bytes: RFC 9110 lets a server answer such a request in full.
    """
    found = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", asked.strip(), re.ASCII)
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        return range(max(0, size - int(last)), size)
    if last and int(last) < int(first):
        return None
    return range(int(first), min(size, int(last) + 1) if last else size)


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def serve(root: Path, port: int) -> None:
    """Serve the page until the process is interrupted.

    Raises:
        ConfigError: there is no such folder, or the port is taken.
    """
    with LiveServer(root, port) as server:
        print(f"{server.address} shows the runs below {root}; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
