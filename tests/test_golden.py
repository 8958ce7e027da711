"""Five rounds of a fixed run: a refactor leaves them as they are.

After a change of numbers that is meant, write the file anew and show curves over seeds:
`UPDATE_GOLDEN=1 pytest tests/test_golden.py`.
"""

import json
import os
from pathlib import Path

import pytest

import rl_twoclocks
from rl_twoclocks.record import read_metrics

GOLDEN = Path(__file__).parent / "golden" / "pendulum.json"
OVERRIDES = [
    "task=pendulum",
    "total_frames=2560",
    "num_envs=4",
    "compile=false",
    "clocks.batch_size=1024",
    "clocks.update_frequency=512",
    "clocks.update_epochs=2",
    "logger=jsonl",
    "logger.display=none",
    "eval.num_envs=2",
    "eval.episodes=2",
]


def test_five_rounds_are_as_they_were(tmp_path: Path) -> None:
    rl_twoclocks.train(rl_twoclocks.compose([*OVERRIDES, f"run_dir={tmp_path / 'run'}"]))
    rows = [
        {key: value for key, value in row.items() if not key.startswith("time/")}
        for row in read_metrics(tmp_path / "run" / "metrics.jsonl")
    ]
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(rows, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert len(rows) == len(golden) == 5
    for row, expected in zip(rows, golden, strict=True):
        assert row.keys() == expected.keys()
        # Not to the bit: other processors round sums differently.
        assert row == pytest.approx(expected, rel=1e-3, abs=1e-5)
