"""The safe table, its cap in every mode, and the numbers derived from a configuration."""

from __future__ import annotations

import random

import pytest

from rl_twoclocks import Config, ConfigError, compose
from rl_twoclocks.configure import config_dir, groups
from rl_twoclocks.safety import SAFE_TABLE, Derived, settle, zone


def settled(
    family: str, b: int, u: int, mode: str = "warn", **changes: object
) -> tuple[Config, Derived]:
    return settle(make(family, b, u, mode, **changes))


def make(family: str, b: int, u: int, mode: str, **changes: object) -> Config:
    values = {
        "task": {"name": "t", "family": family, "env_id": "CartPole-v1", "frame_skip": 4},
        "total_frames": 1_000_000,
        "num_envs": 1,
        "algo": {"normalize_advantage": "window"},
        "clocks": {
            "batch_size": b,
            "update_frequency": u,
            "update_epochs": 1,
            "minibatch_size": 1,
            "ratio": {"mode": mode},
        },
    }
    clocks = values["clocks"] | changes.pop("clocks", {})  # type: ignore[operator]
    return Config.model_validate(values | {"clocks": clocks} | changes)


def test_the_table_is_the_write_ups() -> None:
    table = {k: (r.batch_size, r.update_frequency, r.ratio_cap) for k, r in SAFE_TABLE.items()}
    assert table == {
        "atari": ((2048, 4096), (500, 1000), 4.0),
        "mujoco": ((1024, 2048), (200, 500), 5.0),
        "gazebo": ((512, 1024), (100, 250), 4.0),
        "inspection": ((256, 512), (50, 150), 3.5),
    }


@pytest.mark.parametrize(
    ("family", "at", "above"),
    [
        ("atari", (2048, 512), (2049, 512)),
        ("mujoco", (1500, 300), (1501, 300)),
        ("gazebo", (800, 200), (801, 200)),
        ("inspection", (350, 100), (351, 100)),
        ("classic", (1000, 100), (1001, 100)),
        ("other", (1000, 100), (1001, 100)),
    ],
)
def test_the_cap_itself_is_allowed_and_one_frame_more_is_not(
    family: str, at: tuple[int, int], above: tuple[int, int]
) -> None:
    settled(family, *at, mode="error")
    with pytest.raises(ConfigError, match="is above"):
        settled(family, *above, mode="error")


@pytest.mark.parametrize(
    "task", [t for t in groups()["task"] if t not in ("gym", "atari", "gazebo")]
)
def test_a_preset_lies_inside_its_row(task: str) -> None:
    config, derived = settle(compose([f"task={task}"]))
    if config.task.family in SAFE_TABLE:
        assert derived.clock_ratio <= SAFE_TABLE[config.task.family].ratio_cap
    words = ("outside", "is above", "asks for")
    assert not [note for note in derived.notes if any(word in note for word in words)]
    if config.task.family == "inspection":
        assert 0 < config.task.kwargs["rotation"] <= 5


def test_what_waits_at_the_end_is_not_counted_as_learnt_from() -> None:
    words = ["task=pendulum", "total_frames=14_336", "clocks.lag=4"]
    queued, derived = settle(compose(words))
    assert derived.update_steps == 2 * derived.minibatches * queued.clocks.update_epochs
    assert any("last 4 of 7 rollouts" in note for note in derived.notes)
    _, derived = settle(compose([*words, "clocks.lag_mode=ring"]))
    assert derived.update_steps == 6 * derived.minibatches * queued.clocks.update_epochs
    assert not derived.notes


@pytest.mark.parametrize("calibrate", [True, False])
def test_a_queue_that_keeps_every_rollout_is_refused(calibrate: bool) -> None:
    words = ["task=pendulum", "total_frames=14_336", f"normalize.calibrate={calibrate}".lower()]
    last = 5 if calibrate else 6
    settle(compose([*words, f"clocks.lag={last}"]))
    with pytest.raises(ConfigError, match=r"none would be learnt from\. Write total_frames=16384"):
        settle(compose([*words, f"clocks.lag={last + 1}"]))
    settle(compose([*words, f"clocks.lag={last + 1}", "clocks.lag_mode=ring"]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], None),
        (["collect.when_full=drop"], "when_full=drop: "),
        (["collect.max_staleness=0"], "max_staleness=0 drops"),
    ],
)
def test_frames_that_will_be_dropped_are_announced(words: list[str], said: str | None) -> None:
    for mode in ("async", "redis"):
        _, derived = settle(compose(["task=pendulum", f"collect={mode}", *words]))
        dropping = [note for note in derived.notes if "drop" in note]
        assert bool(dropping) == (said is not None)
        assert all(said in note for note in dropping)


def test_observe_changes_and_says_nothing() -> None:
    config, derived = settled("mujoco", 2000, 200, "observe")
    assert (config.clocks.batch_size, config.clocks.update_frequency) == (2000, 200)
    assert derived.notes == ()


def test_warn_changes_nothing_and_says_so() -> None:
    config, derived = settled("mujoco", 2000, 200, "warn")
    assert (config.clocks.batch_size, config.clocks.update_frequency) == (2000, 200)
    assert derived.clock_ratio == 10
    assert any("10" in note and "5" in note and "mujoco" in note for note in derived.notes)


def test_error_names_both_ways_out_and_both_work() -> None:
    with pytest.raises(ConfigError) as caught:
        settled("mujoco", 2000, 200, "error")
    message = str(caught.value)
    assert "clocks.batch_size to 1000" in message
    assert "clocks.update_frequency to 400" in message
    settled("mujoco", 1000, 200, "error")
    settled("mujoco", 2000, 400, "error")


@pytest.mark.parametrize(
    ("family", "b", "u", "expected"),
    [
        # 5 x 300 = 1500 lies inside the band 1024-2048: lowering B is enough.
        ("mujoco", 2048, 300, (1500, 300)),
        # 5 x 100 = 500 is below the band: B stops at 1024, then U rises to 1024 / 5 = 204.8.
        ("mujoco", 2048, 100, (1024, 205)),
        # B is at its floor already: only U can move.
        ("mujoco", 1024, 128, (1024, 205)),
        # 3.5 x 100 = 350.
        ("inspection", 512, 100, (350, 100)),
        # 3.5 x 50 = 175 is below 256; 256 / 3.5 = 73.1.
        ("inspection", 512, 50, (256, 74)),
        # No row: the watch line, 10 x 100.
        ("other", 5000, 100, (1000, 100)),
        # B under its band: it is not raised to it.
        ("gazebo", 400, 50, (400, 100)),
    ],
)
def test_enforce_lowers_b_first_and_then_raises_u(
    family: str, b: int, u: int, expected: tuple[int, int]
) -> None:
    config, derived = settled(family, b, u, "enforce")
    assert (config.clocks.batch_size, config.clocks.update_frequency) == expected
    assert any("enforced" in note for note in derived.notes)


def test_enforce_leaves_what_is_within_the_cap() -> None:
    config, derived = settled("mujoco", 1500, 300, "enforce")
    assert (config.clocks.batch_size, config.clocks.update_frequency) == (1500, 300)
    assert not any("enforced" in note for note in derived.notes)


def test_what_could_not_learn_is_refused() -> None:
    with pytest.raises(ConfigError, match="normalize_advantage=window"):
        settled("mujoco", 1500, 300, algo={"normalize_advantage": "minibatch"})
    with pytest.raises(ConfigError, match=r"algo\.proximal=ewma"):
        settled(
            "mujoco",
            1500,
            300,
            algo={"objective": "centred", "proximal": "ewma"},
            clocks={"minibatch_size": 4},
        )
    with pytest.raises(ConfigError, match="is for collect=sync"):
        settle(compose(["collect=async", "collect.device=cuda"]))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["collect.max_staleness=2"], "collect.max_staleness=2 does nothing with collect=sync"),
        (["collect.max_staleness=null"], "collect.max_staleness=null does nothing"),
        (["collect.workers=2", "collect=processes"], "does nothing with collect=processes"),
        (["clocks.lag_mode=ring"], "clocks.lag_mode=ring does nothing without clocks.lag"),
        (["clocks.align_kl=0.05"], "clocks.align_kl=0.05 does nothing here"),
        (["clocks.publish_kl=1"], "clocks.publish_kl=1 does nothing here"),
        (["algo=clipped", "algo.proximal=ewma"], "algo.proximal=ewma does nothing with"),
        (["algo=vaco", "algo.proximal=ewma"], "algo.proximal=ewma does nothing with"),
        (["algo.proximal_decay=0.9"], "algo.proximal_decay=0.9 does nothing with"),
        (["algo.importance_power=1"], "algo.importance_power=1.0 does nothing with"),
        (["algo.rho_clip=2"], "algo.rho_clip=2.0 does nothing with"),
        (["algo.c_clip=2"], "algo.c_clip=2.0 does nothing with"),
        (["algo=clipped", "algo.max_importance_ratio=2"], "max_importance_ratio=2.0 does nothing"),
        (["algo=centred", "algo.max_importance_ratio=2"], "max_importance_ratio=2.0 does nothing"),
        (
            ["collect=async", "collect.workers=4", "num_envs=8"],
            "4 workers, who get 2 each: 8 slots",
        ),
    ],
)
def test_what_was_set_and_does_nothing_is_said(words: list[str], named: str) -> None:
    assert any(named in note for note in settle(compose(words))[1].notes)
    kept = ["collect=async", "collect.max_staleness=3", "collect.slots=6", "clocks.lag=1"]
    _, derived = settle(compose([*kept, "clocks.lag_mode=ring"]))
    assert not any("does nothing" in note or "slots" in note for note in derived.notes)


@pytest.mark.parametrize("algo", [path.stem for path in (config_dir() / "algo").glob("*.yaml")])
def test_no_objective_as_shipped_has_idle_keys(algo: str) -> None:
    _, derived = settle(compose([f"algo={algo}", "clocks.lag=8"]))
    assert not any("does nothing" in note for note in derived.notes)


def test_a_gradient_lag_longer_than_the_run_is_refused() -> None:
    words = ["task=pendulum", "total_frames=14_336"]
    steps = settle(compose(words))[1].update_steps
    settle(compose([*words, f"clocks.gradient_lag={steps - 1}"]))
    with pytest.raises(ConfigError, match=f"gradient_lag={steps} needs more optimizer steps than"):
        settle(compose([*words, f"clocks.gradient_lag={steps}"]))


def test_enforcement_always_ends_within_the_cap_in_whole_columns() -> None:
    numbers = random.Random(0)
    for _ in range(500):
        family = numbers.choice([*SAFE_TABLE, "other"])
        cap = SAFE_TABLE[family].ratio_cap if family in SAFE_TABLE else 10.0
        n = numbers.choice([1, 2, 3, 4, 7, 8, 16])
        u = n * numbers.randint(1, 60)
        b = u * numbers.randint(1, 40)
        mini = numbers.randint(1, b)
        case = (family, n, b, u, mini)
        config, derived = settled(
            family, b, u, "enforce", num_envs=n, clocks={"minibatch_size": mini}
        )
        c = config.clocks
        assert c.batch_size / c.update_frequency <= cap, case
        assert c.batch_size % n == 0, case
        assert c.update_frequency % n == 0, case
        assert c.update_frequency >= u, case
        assert c.batch_size <= b or c.batch_size == c.update_frequency, case
        assert c.minibatch_size <= c.batch_size, case
        assert derived.frames <= config.total_frames, case


@pytest.mark.parametrize("u", [100, 1001, 1002])
def test_what_does_not_divide_among_the_environments_names_the_nearest(u: int) -> None:
    low, high = u // 8 * 8, -(-u // 8) * 8
    with pytest.raises(
        ConfigError, match=f"not divisible by num_envs=8: nearest are {low} or {high}"
    ):
        settled("other", u, u, num_envs=8)


def test_less_than_one_column_names_one_column() -> None:
    with pytest.raises(ConfigError, match="nearest are 8"):
        settled("other", 8, 4, num_envs=8)


def test_a_window_that_does_not_divide_is_refused_too() -> None:
    with pytest.raises(ConfigError, match=r"clocks\.batch_size=100 is not divisible"):
        settled("other", 100, 96, num_envs=8)


@pytest.mark.parametrize("size", [64, 512, 2048, 65536])
@pytest.mark.parametrize("family", SAFE_TABLE)
def test_classic_ppo_is_inside_whatever_the_bands_say(family: str, size: int) -> None:
    _, derived = settled(family, size, size, "error")
    assert derived.clock_ratio == 1
    assert derived.zone == "safe"
    assert not any("band" in note for note in derived.notes)


def test_bands_and_passes_are_noted_for_a_window_of_several_rollouts() -> None:
    _, derived = settled("mujoco", 4096, 1024, clocks={"update_epochs": 4})
    text = "\n".join(derived.notes)
    assert "clocks.batch_size=4096 is outside the mujoco band 1024-2048" in text
    assert "clocks.update_frequency=1024 is outside the mujoco band 200-500" in text
    assert "clocks.update_epochs=4 is above 3" in text
    assert "reuse 16 is above 12" in text


def test_the_mujoco_row_asks_for_tanh() -> None:
    _, clip = settled("mujoco", 2000, 500, model={"squash": "clip"})
    _, tanh = settled("mujoco", 2000, 500, model={"squash": "tanh"})
    assert any("tanh" in note for note in clip.notes)
    assert tanh.notes == ()


def test_the_safe_preset_has_nothing_to_say_on_a_mujoco_task() -> None:
    _, derived = settle(compose(["task=hopper", "clocks=safe", "total_frames=512000"]))
    assert (derived.clock_ratio, derived.reuse, derived.zone) == (4, 12, "safe")
    assert derived.notes == ()


@pytest.mark.parametrize(
    ("ratio", "name"),
    [(1, "safe"), (9.99, "safe"), (10, "watch"), (49.9, "watch"), (50, "danger"), (500, "danger")],
)
def test_zones_begin_at_ten_and_fifty(ratio: float, name: str) -> None:
    assert zone(ratio) == name


def test_derived_numbers_are_those_done_by_hand() -> None:
    _, derived = settled(
        "classic",
        600,
        200,
        num_envs=4,
        total_frames=1_100,
        clocks={"update_epochs": 2, "minibatch_size": 64},
    )
    assert derived.clock_ratio == 3
    assert derived.reuse == 6
    assert derived.rounds == 5
    assert derived.frames == 1_000
    assert derived.minibatches == 10
    assert derived.update_steps == 80  # four rounds: the first one calibrates
    assert derived.steps_per_env == 50
    assert any("last 100 frames are not collected" in note for note in derived.notes)


def test_the_printed_lines_hold_the_numbers() -> None:
    config, derived = settled("classic", 600, 200, total_frames=1_100)
    text = "\n".join(derived.lines(config))
    assert "B 600 / U 200 = ratio 3 (safe)" in text
    assert "1,100 frames asked, 5 rounds = 1,000" in text


def test_the_budget_is_never_exceeded_and_less_than_a_rollout_is_left() -> None:
    numbers = random.Random(1)
    for _ in range(300):
        n = numbers.randint(1, 16)
        u = n * numbers.randint(1, 100)
        total = numbers.randint(u, 50 * u)
        _, derived = settled("other", u, u, num_envs=n, total_frames=total)
        assert derived.frames == derived.rounds * u
        assert total - u < derived.frames <= total


def test_enforcement_that_outgrows_the_budget_is_refused() -> None:
    with pytest.raises(ConfigError, match="total_frames=150"):
        settled("mujoco", 1024, 128, "enforce", total_frames=150)
