"""Where Gazebo is, how its server is called, and the plugin that is built against it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "lockstep.cc"
VARIABLE = "RL_TWOCLOCKS_GAZEBO"
"""Environment variable that names the folder Gazebo is in."""


def default_folder() -> Path:
    """The folder that `VARIABLE` names; else `.gazebo` in a checkout, or in the user's cache."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser().absolute()
    checkout = HERE.parents[2]
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".gazebo"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "rl_twoclocks" / "gazebo"


class GazeboMissing(ValueError):
    """There is no Gazebo, or its plugin cannot be built; the message says what to do."""


@dataclass(frozen=True)
class Installation:
    """Gazebo 11 unpacked into a folder by `install.sh`."""

    folder: Path

    @classmethod
    def find(cls) -> Installation:
        """The installation to use.

        Raises:
            GazeboMissing: there is none.
        """
        found = cls(default_folder())
        if not found.server.is_file():
            raise GazeboMissing(
                f"there is no Gazebo in {found.folder}: `make gazebo` or `python -m "
                f"rl_twoclocks.worlds.gazebo` puts it there; {VARIABLE}=<folder> names another folder"
            )
        return found

    @property
    def server(self) -> Path:
        """The executable."""
        return self.folder / "usr/bin/gzserver"

    @property
    def libraries(self) -> Path:
        """Where most of the shared libraries are."""
        return self.folder / "usr/lib/x86_64-linux-gnu"

    def command(self, world: Path) -> list[str]:
        """The words that start a server on a world."""
        return [str(self.server), "--verbose", str(world)]

    def environment(self) -> dict[str, str]:
        """Environment variables of a server, for that process alone."""
        lib = self.libraries
        places = [lib, self.folder / "lib" / lib.name, self.folder / "usr/lib"]
        places += [lib / name for name in ("blas", "lapack", "pulseaudio", "gazebo-11/plugins")]
        return {
            "LD_LIBRARY_PATH": ":".join(map(str, places)),
            "GAZEBO_RESOURCE_PATH": str(self.folder / "usr/share/gazebo-11"),
        }

    def plugin(self) -> Path:
        """The lock-step plugin's library; built (some 10 s) where this version's is not there yet.

        Raises:
            GazeboMissing: the compiler is missing or fails.
        """
        version = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
        target = self.folder / f"liblockstep-{version}.so"
        if target.is_file():
            return target
        # Another process may be building it too: whoever is last wins, with the same library.
        partial = target.with_suffix(f".{os.getpid()}")
        try:
            subprocess.run(self._compiler(partial), check=True, capture_output=True, text=True)
            os.replace(partial, target)
        except FileNotFoundError:
            raise GazeboMissing("Gazebo's plugin needs a C++ compiler: install g++") from None
        except subprocess.CalledProcessError as error:
            raise GazeboMissing(f"g++ cannot build {SOURCE}:\n{error.stderr[-2000:]}") from error
        except OSError as error:
            raise GazeboMissing(f"cannot write Gazebo's plugin: {error}") from error
        return target

    def _compiler(self, out: Path) -> list[str]:
        headers = self.folder / "usr/include"
        parts = ("gazebo-11", "gazebo-11/gazebo/msgs", "sdformat-9.3")
        ignition = ("math6", "msgs5", "transport8", "common3")
        folders = [headers, *(headers / p for p in parts)]
        folders += [headers / "ignition" / p for p in ignition]
        libraries = ["gazebo_physics.so.11", "gazebo_common.so.11"]
        libraries += ["sdformat9.so.9", "ignition-math6.so.6"]
        return [
            *("g++", "-std=c++17", "-O2", "-fPIC", "-shared", "-DBOOST_BIND_GLOBAL_PLACEHOLDERS"),
            *(word for folder in folders for word in ("-isystem", str(folder))),
            *(str(SOURCE), "-o", str(out), f"-L{self.libraries}"),
            *(f"-l:lib{name}" for name in libraries),
            "-Wl,--allow-shlib-undefined",
        ]
