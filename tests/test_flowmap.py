"""The data-flow map: its prediction is what a run then measures."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import rl_twoclocks
from rl_twoclocks.config import ConfigError
from rl_twoclocks.doctor import draw
from rl_twoclocks.record import read_metrics
from tests.command_envs import command
from tests.envs import overrides, run_config


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["clocks.batch_size=256"],
        ["clocks.batch_size=96"],
        ["clocks.lag=3"],
        ["clocks.lag=2", "clocks.batch_size=192"],
        ["clocks.publish_interval=4", "normalize.calibrate=false"],
    ],
)
def test_what_is_predicted_is_what_is_measured(words: list[str], tmp_path: Path) -> None:
    more = [*words, "total_frames=6400", "interventions=off"]
    predicted = draw(overrides("Target", tmp_path, *more)).predicted
    rl_twoclocks.train(run_config("Target", tmp_path, *more))
    # Once the window and the queue are full.
    rows = read_metrics(tmp_path / "metrics.jsonl")[20:]
    mean = sum(row["clock/staleness_mean"] for row in rows) / len(rows)
    newest = sum(row["clock/staleness_min"] for row in rows) / len(rows)
    assert newest == pytest.approx(predicted.newest, abs=0.05)
    assert mean == pytest.approx(predicted.mean, abs=0.05)
    assert max(row["clock/staleness_max"] for row in rows) == predicted.oldest
    flow = draw([str(tmp_path)])
    assert flow.measured is not None
    assert flow.measured.mean == pytest.approx(mean, abs=0.2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["clocks.lag=3", "clocks.lag_mode=ring"], "of the last 4 one acts"),
        (["clocks.gradient_lag=5"], "gradients of 5 steps ago"),
    ],
)
def test_lag_on_purpose_is_drawn(words: list[str], said: str) -> None:
    flow = draw(["task=halfcheetah", *words])
    assert said in flow.text()
    assert said in flow.svg()
    assert said not in draw(["task=halfcheetah"]).text()


@pytest.mark.parametrize("mode", ["sync", "async", "redis", "ray"])
def test_text_and_picture_name_every_station(mode: str) -> None:
    flow = draw(["task=halfcheetah", f"collect={mode}", "collect.workers=2", "clocks.lag=1"])
    titles = [station.title for station in flow.stations]
    pool = [] if mode == "sync" else ["pool"]
    assert titles == ["generators", *pool, "delay", "window", "learner"]
    picture = flow.svg()
    words = " ".join(ElementTree.fromstring(picture).itertext())
    for station in flow.stations:
        assert station.title.upper() in flow.text()
        assert station.title in words
        assert all(line in words and line in flow.text() for line in station.lines)
    assert json.loads(json.dumps(flow.as_dict()))["predicted"]["mean"] == flow.predicted.mean


def test_the_pool_bounds_the_predicted_age() -> None:
    free = draw(["task=pendulum", "collect=async", "collect.slots=8"]).predicted
    assert (free.newest, free.oldest) == (1.0, 8.0)
    bounded = draw(["task=pendulum", "collect=async", "collect.max_staleness=2"]).predicted
    assert bounded.oldest == 2.0
    words = ["task=pendulum", "collect=async", "collect.max_staleness=4", "clocks.batch_size=6144"]
    assert draw([*words, "clocks.ratio.mode=observe"]).predicted.oldest == 4.0


def test_the_pool_is_drawn_as_it_is() -> None:
    words = ["task=pendulum", "collect=async", "num_envs=8", "collect.workers=4"]
    assert "8 slots, near first" in draw([*words, "collect.slots=2"]).text()


def test_near_first_lets_what_is_left_over_wait_as_long_as_it_may() -> None:
    assert draw(["task=pendulum", "collect=async"]).predicted.oldest == 8.0
    assert draw(["task=pendulum", "collect=async", "collect.order=fifo"]).predicted.oldest == 5.0


def test_at_random_a_slice_may_wait_as_long_as_the_limit_lets_it() -> None:
    words = ["task=pendulum", "collect=async", "collect.order=random"]
    assert draw(words).predicted.oldest == 8.0
    free = draw([*words, "collect.max_staleness=null"])
    assert free.predicted.oldest is None
    assert free.text().endswith("any") and "oldest any" in free.svg()
    assert json.loads(json.dumps(free.as_dict()))["predicted"]["oldest"] is None


def test_behind_redis_all_generators_share_the_slots() -> None:
    words = ["task=pendulum", "num_envs=8", "collect.workers=8", "collect.order=fifo"]
    assert draw([*words, "collect=redis", "collect.slots=4"]).predicted.oldest == 2.0
    assert draw([*words, "collect=async", "collect.slots=4"]).predicted.oldest == 3.0


def test_a_run_that_has_measured_nothing_is_drawn_as_configured(tmp_path: Path) -> None:
    rl_twoclocks.train(run_config("Target", tmp_path, "total_frames=128"))
    (tmp_path / "metrics.jsonl").write_text("")
    flow = draw([str(tmp_path)])
    assert "has not measured its clocks" in flow.text()
    assert flow.measured is None


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run directory"):
        draw([str(tmp_path)])


def test_the_command_draws(tmp_path: Path) -> None:
    words = [f"run_dir={tmp_path}", "task=pendulum", "collect=async"]
    text = command(["--map", *words], tmp_path, "doctor")
    assert text.returncode == 0
    assert "GENERATORS" in text.stdout
    picture = command(["--svg", *words], tmp_path, "doctor")
    assert ElementTree.fromstring(picture.stdout).tag.endswith("svg")
