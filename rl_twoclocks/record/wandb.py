"""Write metrics to Weights & Biases; the x axis is environment frames.

It never prompts or stops training: a W&B that fails falls back once, to offline or to nothing.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import nn

    from rl_twoclocks.config import LoggerConfig
    from rl_twoclocks.record import RunInfo

_log = logging.getLogger(__name__)

_SECRET = re.compile(r"(^|[^a-z])keys?($|[^a-z])|api_?key|token|passw|secret", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)[^@\s]*:\S*@")
_PASSWORD = re.compile(r"(?<=[?&]password=)[^&\s]+")

# W&B's own settings; the environment variable WANDB_<NAME> wins over each. The two time limits
# (seconds) bound what a dead network can cost; what was not uploaded stays for `wandb sync`.
_QUIET: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "save_code": False,
    "init_timeout": 6.0,
    "finish_timeout": 60.0,
}


class WandbLogger:
    """Write to one W&B run, whose files lie in the run directory."""

    def __init__(self, config: LoggerConfig, run: RunInfo) -> None:
        """Start the W&B run, or go on with the one that the checkpoint names."""
        self._id = str(run.state.get("wandb_id") or uuid.uuid4().hex)
        self._watch = config.watch
        # W&B reads the event file itself then: logging here too would double every metric.
        there = importlib.util.find_spec("tensorboard") is not None
        self._synced = config.sync_tensorboard and config.tensorboard and there
        self._last = run.frames - 1
        # A resumed run has logged the row of its checkpoint; another one of the same frames, an
        # evaluation that was made up, takes the step that follows.
        self._taken = run.frames if run.frames else -1
        self.address: str | None = None
        """Of the run's page, where it is online."""
        self._run = self._start(config, run)
        if not self._synced:
            self._call("define_metric", "*", step_metric="frames")

    def log(self, metrics: Mapping[str, float], frames: int) -> None:
        """Log one row at step `frames`; frames that do not increase are skipped."""
        if frames <= self._last or self._synced:
            return
        self._last, self._taken = frames, max(frames, self._taken + 1)
        row = {name: float(value) for name, value in metrics.items()}
        self._call("log", {"frames": float(frames), **row}, step=self._taken)

    def watch(self, module: nn.Module) -> None:
        """Follow gradients and parameters of a module, if `logger.watch` is on.

        The caller passes backward through it only when histograms are due: every pass is logged.
        """
        if self._watch:
            self._call("watch", module, log="all", log_freq=1)

    def pictures(self, paths: Sequence[Path], frames: int) -> None:
        """Add pictures to the run, under the names of their files."""
        if self._run is None:
            return
        import wandb

        images = {f"pictures/{path.stem}": wandb.Image(str(path)) for path in paths}
        self._call("log", images | {"frames": frames}, step=max(frames, self._taken))

    def state_dict(self) -> dict[str, Any]:
        """Return the id of the W&B run."""
        return {"wandb_id": self._id}

    def close(self, exit_code: int = 0) -> None:
        """Finish the W&B run; a second call does nothing."""
        self._call("unwatch")  # a hook that outlives its run raises in the forward pass
        self._call("finish", exit_code=exit_code)
        self._run = None

    def _start(self, config: LoggerConfig, run: RunInfo) -> Any:
        """Return the W&B run in the best mode that works, or None."""
        mode: str = config.wandb_mode
        if mode == "auto":
            mode = os.environ.get("WANDB_MODE", "").lower().replace("dryrun", "offline")
        if mode == "disabled":
            return None
        arguments = {
            "id": self._id,
            "resume": "allow",
            # A caller's own run is left alone; W&B's hooks, though, write to the global run alone.
            "reinit": "finish_previous" if self._synced or config.watch else "create_new",
            "dir": str(run.directory),
            "name": run.name,
            "project": config.project,
            "entity": config.entity,
            "group": config.group,
            "tags": list(config.tags),
            "config": without_secrets(run.config),
            "allow_val_change": True,
            "sync_tensorboard": self._synced,
            "settings": {k: v for k, v in _QUIET.items() if f"WANDB_{k.upper()}" not in os.environ},
        }
        # W&B notes the command line.
        typed, sys.argv = sys.argv, without_secrets(sys.argv)
        reason = "not logged in" if mode == "online" else ""
        try:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # can hold up the exit by 20 s
            import wandb

            if mode != "offline" and logged_in(wandb):  # online and logged out would prompt
                try:
                    session = wandb.init(mode="online", **arguments)
                    self.address = session.url
                    return session
                except Exception as error:
                    reason = repr(error)
                    # The id stays taken by the run that did not start.
                    if wandb.run is None:
                        wandb.teardown()
                    else:  # of a caller, whose run that would end
                        self._id = arguments["id"] = uuid.uuid4().hex
            session = wandb.init(mode="offline", **arguments)
        except Exception as error:
            _log.warning("W&B is off: %r", error)
            return None
        finally:
            sys.argv = typed
        if reason:
            _log.warning("W&B records offline: %s", reason)
        return session

    def _call(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Call the W&B run, and drop it at its first failure."""
        try:
            if self._run is not None:
                getattr(self._run, method)(*args, **kwargs)
        except Exception as error:
            self._run = None
            _log.warning("W&B is off from here: %r", error)


def without_secrets(config: Any) -> Any:
    """Copy a nested configuration without keys, tokens, passwords, or the login in a URL."""
    if isinstance(config, dict):
        return {k: without_secrets(v) for k, v in config.items() if not _SECRET.search(str(k))}
    if isinstance(config, list | tuple):
        return [without_secrets(value) for value in config]
    if isinstance(config, str):
        return _PASSWORD.sub("***", _LOGIN.sub("***@", config))
    return config


def logged_in(wandb: Any) -> bool:
    """Say whether W&B's own lookup finds credentials, without a prompt or the network."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        from wandb.sdk.lib.wbauth import authenticate_session

        host = wandb.setup().settings.base_url
        # Not `wandb.login(prompt=False)`: that asks the server for the name of the user.
        return bool(authenticate_session(host=host, source="", prompt=False, update_session=False))
    except Exception:
        return False
