"""Run directories written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROUNDS, U = 40, 2048


def row(k: int, seed: int = 1, keys: int = 0) -> dict[str, Any]:
    random = np.random.default_rng([k, seed])
    values = {
        "frames": (k + 1) * U,
        "clock/policy_version": k + 1,
        "clock/ratio": 1.0,
        "clock/ratio_measured": 1.0,
        "clock/staleness_min": 0.0,
        "clock/staleness_mean": 0.0,
        "clock/staleness_max": 0.0,
        "diag/rollout_entropy": 9.0 - 0.001 * k,
        "diag/kl_behaviour": 0.01,
        "diag/grad_norm_max": 2.0,
        "train/kl": 0.01 + 0.001 * float(random.normal()),
        "grad_norm/total": 3.0 + 0.1 * float(random.normal()),
        "rollout/return_round": 10.0 * k + 5 * float(random.normal()),
        "rollout/return_mean": 10.0 * k + seed,
        "time/frames_per_second": 1500.0,
        "time/wall_seconds": 2.0 * k,
    }
    if k % 10 == 9:
        values["eval/return_mean"] = 11.0 * k
    return values | {f"grad_norm/layer.{i}": float(random.normal()) for i in range(keys)}


def alarm(frames: int, severity: str = "danger", text: str = "the return fell") -> dict[str, Any]:
    row = {"frames": frames, "round": 3, "kind": "alarm", "name": "reward_cliff", "text": text}
    return row | {"severity": severity, "values": {"x": 1.5}, "cause": text, "cure": "go back"}


ORDER = {"frames": 9 * U, "round": 9, "kind": "order", "name": "reseed", "text": "ORDER reseed",
         "why": "diversity", "given": True}  # fmt: skip


def make(
    folder: Path,
    config: dict[str, Any],
    rows: list[dict[str, Any]] | None = None,
    events: list[dict[str, Any]] | None = None,
    finished: bool = True,
    **changed: Any,
) -> Path:
    """Write a run directory; `changed` are top-level keys of its configuration."""
    folder.mkdir(parents=True)
    values = config | {"run_dir": str(folder)} | changed
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    rows = [row(k, values["seed"]) for k in range(ROUNDS)] if rows is None else rows
    lines = [json.dumps(r) for r in rows]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events or []))
    if finished:
        (folder / "result.json").write_text("{}")
    return folder
