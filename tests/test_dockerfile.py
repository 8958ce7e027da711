"""The Dockerfile, checked where no Docker engine runs.

A small reader follows the instructions that matter to Python (ARG, ENV, WORKDIR, COPY and the
`RUN pip` lines) in a clean virtual environment; RUN lines for the system (apt-get, useradd) are
skipped.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def instructions() -> list[tuple[str, str]]:
    """(keyword, argument) of every instruction, continuation lines joined, comments dropped."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    text = re.sub(r"\\\n\s*", "", text)
    pairs = (line.strip().split(None, 1) for line in text.splitlines() if line.strip())
    return [(keyword.upper(), argument) for keyword, argument in pairs]


def arguments(keyword: str) -> list[str]:
    return [argument for name, argument in instructions() if name == keyword]


def copy_sources() -> list[str]:
    return [source for argument in arguments("COPY") for source in argument.split()[:-1]]


def test_copied_files_exist():
    assert copy_sources()
    assert [name for name in copy_sources() if not (ROOT / name).exists()] == []


def test_copied_files_pass_dockerignore():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert {name.split("/")[0] for name in copy_sources()} <= {line.lstrip("!") for line in lines}


def test_torch_pin_equals_constraints():
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    (pin,) = [line for line in pins if line.startswith("torch==")]
    assert f"TORCH_SPEC={pin}" in arguments("ARG")


def test_does_not_run_as_root():
    assert arguments("USER")[-1] not in ("root", "0")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the image's shell lines need a POSIX shell")
def test_pip_lines_install_a_package_that_composes_its_help(tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{binaries}{os.pathsep}{environment['PATH']}"
    workdir = tmp_path / "image"
    ran = []
    for keyword, argument in instructions():
        if keyword == "ARG":
            name, _, default = argument.partition("=")
            environment[name] = default
        elif keyword == "ENV":
            environment.update(pair.split("=", 1) for pair in argument.split())
        elif keyword == "WORKDIR":
            workdir = tmp_path / "image" / argument.lstrip("/")
            workdir.mkdir(parents=True, exist_ok=True)
        elif keyword == "COPY":
            *sources, target = argument.split()
            for source in sources:
                put(ROOT / source, workdir / target)
        elif keyword == "RUN" and argument.startswith("pip "):
            run(["bash", "-euc", argument], workdir, environment)
            ran.append(argument)
    assert len(ran) >= 2

    where = run(
        [binaries / "python", "-c", "import rl_twoclocks; print(rl_twoclocks.__file__)"],
        workdir,
        environment,
    )
    assert Path(where.strip()).is_relative_to(tmp_path / "venv"), "the checkout was imported"

    program, *rest = json.loads(arguments("ENTRYPOINT")[-1])
    assert program == "python"
    assert "task" in run([binaries / "python", *rest, "--help"], workdir, environment)


def put(source: Path, target: Path) -> None:
    """Copy like COPY: a folder's contents into the target, a file into or onto it."""
    if source.is_dir():
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=ignore)
    else:
        shutil.copy2(source, target)


def run(command: list, folder: Path, environment: dict[str, str]) -> str:
    """Run a command, return what it printed, and fail with all of it."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=1800,
    )
    assert done.returncode == 0, f"{command} in {folder}, {sys.version}:\n{done.stdout}"
    return done.stdout
