"""Figures from tiny raw files, against numbers computed by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import figures
import numpy as np
import pytest

SPEED_COMMAND = "python scripts/benchmark.py --repeats 3"
SPEED_COLUMNS = ["contender", "repeat", "collect_fps", "update_seconds", "e2e_fps", "peak_rss_mb"]
RETURN_COLUMNS = ["task", "clocks", "seed", "frames", "return_mean", "command"]


def write_csv(path: Path, columns: list[str], rows: list[tuple]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(rows)


def write_speed(folder: Path) -> None:
    rows = [
        ("ours-classic", 1, 3000, 0.25, 400, 300),
        ("ours-classic", 2, 1000, 0.50, 300, 330),
        ("ours-classic", 3, 4000, 0.20, 500, 300),
        ("sb3", 1, 1000, 0.50, 200, 600),
        ("sb3", 2, 500, 0.60, 200, 600),
        ("sb3", 3, 1000, 1.00, 100, 600),
        ("torchrl", 1, 900, 1.00, 100, 400),
        ("torchrl", 2, 900, 1.00, 150, 400),
        ("torchrl-compiled", 1, 800, 0.70, 160, 500),
        ("torchrl-compiled", 2, 800, 0.70, 120, 500),
        ("torchrl-compiled", 3, 800, 0.70, 120, 500),
    ]
    rows = [(*row, SPEED_COMMAND) for row in rows]
    write_csv(folder / "speed.csv", [*SPEED_COLUMNS, "command"], rows)


def write_returns(folder: Path, rows: list[tuple]) -> None:
    write_csv(folder / "returns.csv", RETURN_COLUMNS, rows)


def compute(folder: Path) -> dict[str, dict]:
    assert figures.main(["--folder", str(folder)]) == 0
    return json.loads((folder / "figures.json").read_text())


class TestSpeed:
    def test_ratios_are_paired_by_repeat(self, tmp_path: Path) -> None:
        write_speed(tmp_path)
        result = compute(tmp_path)
        # 400/200, 300/200, 500/100; the ratio of the medians would be 400/200 as well, but not
        # those below: 3000/1000, 1000/500, 4000/1000 and 0.5/0.25, 0.6/0.5, 1/0.2.
        assert result["speed.e2e_vs_sb3"] == {
            "value": 2.0,
            "low": 1.5,
            "high": 5.0,
            "n": 3,
            "unit": "ratio",
            "command": SPEED_COMMAND,
        }
        bounds = {k: (v["value"], v["low"], v["high"]) for k, v in result.items()}
        assert bounds["speed.collect_vs_sb3"] == (3.0, 2.0, 4.0)
        assert bounds["speed.update_vs_sb3"] == (2.0, 1.2, 5.0)
        assert bounds["speed.memory_vs_sb3"] == (0.5, 0.5, 0.55)

    def test_faster_torchrl_of_each_repeat_counts(self, tmp_path: Path) -> None:
        write_speed(tmp_path)
        entry = compute(tmp_path)["speed.e2e_vs_torchrl"]
        # 400/max(100, 160) = 2.5 and 300/max(150, 120) = 2; repeat 3 lacks one of the two.
        assert (entry["value"], entry["low"], entry["high"], entry["n"]) == (2.25, 2.0, 2.5, 2)

    def test_ratio_without_both_sides_is_named_and_left_out(self, tmp_path: Path, capsys) -> None:
        write_speed(tmp_path)
        assert "speed.e2e_envpool_vs_sb3" not in compute(tmp_path)
        assert "speed.e2e_envpool_vs_sb3: left out" in capsys.readouterr().out

    def test_two_rows_for_one_repeat_are_refused(self) -> None:
        with pytest.raises(ValueError, match="two rows for sb3, repeat 1"):
            figures.speed_figures([{"contender": "sb3", "repeat": "1"}] * 2)


class TestReturns:
    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([7.0], 7.0),
            ([1.0, 2.0, 6.0], 3.0),  # int(3 / 4) = 0: nothing is cut
            ([100.0, 1.0, 2.0, -50.0], 1.5),
            ([0.0, 10.0, 20.0, 60.0, 1000.0], 30.0),  # (10 + 20 + 60) / 3
            ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 80.0], 4.5),  # two from each side
        ],
    )
    def test_interquartile_mean(self, values: list[float], expected: float) -> None:
        assert figures.interquartile_mean(np.array(values)) == pytest.approx(expected)

    def test_interval_holds_the_value_and_stays_within_the_data(self, tmp_path: Path) -> None:
        returns = [3000.0, 4000.0, 4100.0, 4600.0, 5000.0]
        rows = [("cheetah", "classic", k, 100, r, f"run {k}") for k, r in enumerate(returns)]
        write_returns(tmp_path, rows)
        entry = compute(tmp_path)["return.cheetah.classic"]
        assert entry["value"] == pytest.approx(12700 / 3, rel=1e-5)  # (4000 + 4100 + 4600) / 3
        assert 3000 <= entry["low"] < entry["value"] < entry["high"] <= 5000
        assert (entry["n"], entry["unit"]) == (5, "return")
        assert entry["command"] == "run 0; run 1; run 2; run 3; run 4"

    def test_equal_seeds_have_no_width(self) -> None:
        assert figures.bootstrap_interval(np.full(5, 4.0)) == (4.0, 4.0)

    def test_interval_of_two_seeds_is_exact(self) -> None:
        # Nothing is cut; a resample mean is 0, 5 or 10 with chances 1/4, 1/2, 1/4.
        assert figures.bootstrap_interval(np.array([0.0, 10.0])) == (0.0, 10.0)

    def test_frames_that_all_seeds_reached(self, tmp_path: Path) -> None:
        rows = [("t", "c", 1, 100, 1, "x"), ("t", "c", 1, 200, 9, "x"), ("t", "c", 2, 100, 3, "x")]
        write_returns(tmp_path, rows)
        entry = compute(tmp_path)["return.t.c"]
        assert (entry["value"], entry["n"], entry["command"]) == (2.0, 2, "x")

    def test_seeds_without_common_frames_are_left_out(self, tmp_path: Path, capsys) -> None:
        write_returns(tmp_path, [("t", "c", 1, 100, 1, "x"), ("t", "c", 2, 200, 3, "x")])
        assert compute(tmp_path) == {}
        assert "return.t.c: left out" in capsys.readouterr().out


def test_same_raw_files_give_the_same_bytes(tmp_path: Path) -> None:
    rows = [("z", "c", k, 100, k * k, "x") for k in range(5)] + [("a", "c", 1, 100, 3, "y")]
    write_speed(tmp_path)
    write_returns(tmp_path, rows)
    compute(tmp_path)
    first = (tmp_path / "figures.json").read_bytes()
    write_returns(tmp_path, rows[::-1])  # nor does the order of rows matter
    compute(tmp_path)
    assert (tmp_path / "figures.json").read_bytes() == first
    names = list(json.loads(first))
    assert names == sorted(names)
    assert first.endswith(b"}\n")


def test_missing_raw_files_are_named(tmp_path: Path, capsys) -> None:
    assert compute(tmp_path) == {}
    printed = capsys.readouterr().out
    assert "speed.csv: missing" in printed
    assert "returns.csv: missing" in printed


class TestLag:
    COLUMNS = ("stage", "task", "objective", "lag", "seed", "return_mean", "total_variation")

    def rows(self, objective: str, lag: int, *values: float, task: str = "cartpole") -> list[tuple]:
        stage = "final" if task == "hopper" else "screen"
        return [(stage, task, objective, lag, k, v, 0.1 * lag) for k, v in enumerate(values)]

    def test_scores_are_relative_to_the_best_objective_without_lag(self, tmp_path: Path) -> None:
        rows = [
            *self.rows("clipped", 0, 122.0, 122.0, 122.0),
            *self.rows("centred", 0, 222.0, 222.0, 222.0),
            *self.rows("centred", 8, 122.0, 122.0, 122.0),
            *self.rows("align", 8, 222.0, 222.0, 222.0),
            *self.rows("clipped", 8, 222.0, 222.0),
            *self.rows("centred", 0, *[1018.0] * 5, task="hopper"),
            *self.rows("centred", 8, *[768.0] * 5, task="hopper"),
            ("screen", "hopper", "clipped", 7, 1, 9000.0, 0.1),
        ]
        write_csv(tmp_path / "lag.csv", list(self.COLUMNS), rows)
        result = compute(tmp_path)
        value = {name: entry["value"] for name, entry in result.items()}
        assert value["lag.clipped.cartpole.0"] == 0.5
        # Without lag decoupled is clipped: the same runs count.
        assert value["lag.decoupled.cartpole.0"] == 0.5
        assert value["lag.centred.cartpole.8"] == 0.5 and value["lag.align.cartpole.8"] == 1.0
        # What lacks a seed has no figure.
        assert "lag.clipped.cartpole.8" not in value
        # The final stage counts alone where there is one.
        assert value["lag.centred.hopper.8"] == 0.75 and "lag.clipped.hopper.7" not in value
        assert value["lag.max_tv"] == 0.8

    def test_what_the_final_stage_did_not_try_counts_with_the_screen(self, tmp_path: Path) -> None:
        screen = [
            *self.rows("clipped", 0, 122.0, 122.0, 122.0),
            *self.rows("decoupled", 8, 72.0, 72.0, 72.0),
            *self.rows("twoclocks", 0, 72.0, 72.0, 72.0),
            *self.rows("twoclocks", 2, 72.0, 72.0, 72.0),
        ]
        final = [
            ("final", "cartpole", objective, lag, k, value, 0.1)
            for objective, lag, value in (
                ("clipped", 0, 222.0),
                ("twoclocks", 0, 122.0),
                ("twoclocks", 8, 222.0),
            )
            for k in range(10)
        ]
        write_csv(tmp_path / "lag.csv", list(self.COLUMNS), [*screen, *final])
        found = compute(tmp_path)
        assert {name: found[name]["value"] for name in found if name.count(".") == 3} == {
            "lag.clipped.cartpole.0": 1.0,
            "lag.twoclocks.cartpole.0": 0.5,
            "lag.twoclocks.cartpole.8": 1.0,
            "lag.decoupled.cartpole.0": 1.0,
            "lag.decoupled.cartpole.8": 0.5,
            "lag.geppo.cartpole.0": 1.0,
            "lag.vtrace.cartpole.0": 1.0,
        }
        assert "--stage screen" in str(found["lag.decoupled.cartpole.8"])

    def test_there_are_no_scores_before_all_seeds_are_there_without_lag(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rows = [
            *self.rows("clipped", 0, 122.0, 122.0, 122.0),
            *self.rows("spo", 0, 500.0),
            *self.rows("clipped", 8, 122.0, 122.0, 122.0),
        ]
        write_csv(tmp_path / "lag.csv", list(self.COLUMNS), rows)
        assert list(compute(tmp_path)) == ["lag.max_tv"]
        assert "lag.*.cartpole: left out" in capsys.readouterr().out

    def test_the_interval_holds_what_the_reference_leaves_open(self, tmp_path: Path) -> None:
        rows = [
            *self.rows("clipped", 0, 72.0, 122.0, 172.0),
            *self.rows("clipped", 8, 72.0, 72.0, 72.0),
        ]
        write_csv(tmp_path / "lag.csv", list(self.COLUMNS), rows)
        found = compute(tmp_path)["lag.clipped.cartpole.8"]
        assert found["value"] == 0.5 and found["low"] < 0.4 and found["high"] > 0.7


def test_async_ratios_are_against_the_bound_and_the_best_synchronous_contender(
    tmp_path: Path,
) -> None:
    columns = ["contender", "repeat", "fps", "collect_seconds", "update_seconds", "command"]
    rows = [
        ("sync-1", 1, 1000, 0.3, 0.1, "c"),
        ("envpool-2", 1, 1100, 0.2, 0.1, "c"),
        ("async", 1, 1200, 0.1, 0.1, "c"),
    ]
    write_csv(tmp_path / "async_speed.csv", columns, rows)
    found = compute(tmp_path)
    # Perfect overlap would hide the update behind the collection: 1000 x 0.4 / 0.3.
    assert found["async.of_bound"]["value"] == pytest.approx(0.9, abs=1e-5)
    assert found["async.vs_best_sync"]["value"] == pytest.approx(1200 / 1100, abs=1e-5)


def test_async_return_is_a_ratio_above_a_random_policy_once_both_arms_are_whole(
    tmp_path: Path,
) -> None:
    low = figures.RANDOM_RETURNS["halfcheetah"]
    rows = [("async", seed, low + 90 + seed) for seed in (1, 2, 3)]
    rows += [("sync", seed, low + 180 + 2 * seed) for seed in (1, 2)]
    columns = ["arm", "seed", "return_mean"]
    write_csv(tmp_path / "async_returns.csv", columns, rows)
    assert compute(tmp_path) == {}
    write_csv(tmp_path / "async_returns.csv", columns, [*rows, ("sync", 3, low + 186)])
    found = compute(tmp_path)["async.return_ratio"]
    assert found["value"] == pytest.approx(0.5, abs=1e-5)
    assert found["n"] == 3 and found["low"] < 0.5 < found["high"]


class TestAtari:
    def test_speed_and_memory_are_ratios_within_a_repeat(self, tmp_path: Path) -> None:
        columns = [*SPEED_COLUMNS, "rollout_mb", "grown_mb", "command"]
        rows = [
            ("ours", 1, 300, 2.0, 100, 700, 8, 300, "x"),
            ("sb3", 1, 200, 3.0, 80, 500, 32, 300, "x"),
        ]
        write_csv(tmp_path / "atari_speed.csv", columns, rows)
        result = compute(tmp_path)
        values = {name: entry["value"] for name, entry in result.items()}
        assert values == {
            "worlds.pong_collect_vs_sb3": 1.5,
            "worlds.pong_update_vs_sb3": 1.5,
            "worlds.pong_memory_vs_sb3": 0.25,
            "worlds.pong_grown_memory_vs_sb3": 1.0,
            "worlds.pong_peak_memory_vs_sb3": 1.4,
        }

    def test_returns_are_compared_at_equal_frames(self, tmp_path: Path) -> None:
        columns = ["game", "contender", "seed", "frames", "return_mean", "command"]
        rows = [("pong", "ours", seed, 100, value, "x") for seed, value in enumerate((1, 3, 5))]
        rows += [("pong", "sb3", seed, 100, value, "x") for seed, value in enumerate((0, 1, 2))]
        rows.append(("pong", "ours", 0, 50, -20, "x"))
        write_csv(tmp_path / "atari_returns.csv", columns, rows)
        result = compute(tmp_path)
        assert result["worlds.pong"]["value"] == 3.0
        assert result["worlds.pong_vs_sb3_return"]["value"] == 2.0


LAB_COLUMNS = [
    "arm", "seed", "frames", "value", "fall_frames", "stood_round", "collapse_round",
    "diverged", "alarms",
    "clock/staleness_mean", "diag/total_variation", "diag/kl_behaviour", "diag/baseline_leak",
    "budget", "command",
]  # fmt: skip


def write_lab(folder: Path) -> None:
    def rows(arm: str, values: list[float], stood: list[str], alarms: list[str]) -> list:
        return [
            (arm, k + 1, 9000, value, "4096" if stood[k] else "", stood[k], stood[k] and "40", 0,
             alarms[k], 1, 0.5, 0.1, "", "short", "c")
            for k, value in enumerate(values)
        ]  # fmt: skip

    none = [""] * 10
    table = [
        # random is -280: spans of 4,000, and the middle six of ten count.
        *rows("healthy", [900.0] * 2 + [3720.0] * 6 + [5200.0] * 2, none, none),
        *rows("fault", [-280.0] * 2 + [720.0] * 6 + [6200.0] * 2, ["20", "30", "", "9", *none[4:]],
              ["policy_kl@5 reward_cliff@20", "policy_kl@10", "policy_kl@1", "policy_kl@11",
               *none[4:]]),
        *rows("cure", [3320.0] * 10, none, none),
        *rows("clipped_2", [1.0] * 10, none, none),
    ]  # fmt: skip
    (folder / "lab").mkdir()
    write_csv(folder / "lab" / "policy_lag.csv", LAB_COLUMNS, table)


class TestLab:
    def test_scores_and_leads_by_hand(self, tmp_path: Path) -> None:
        write_lab(tmp_path)
        result = compute(tmp_path)
        assert sorted(result) == [f"lab.policy_lag.{k}" for k in ("cure", "fault", "lead")]
        fault = result["lab.policy_lag.fault"]
        assert (fault["value"], fault["n"]) == (0.25, 10)
        assert fault["low"] <= 0.25 <= fault["high"]
        assert result["lab.policy_lag.cure"]["value"] == 0.9
        # 20 - 5 and 30 - 10; most stand, and one alarm came after the last good evaluation.
        lead = result["lab.policy_lag.lead"]
        assert [lead[k] for k in ("value", "low", "high", "n")] == [17.5, 15, 20, 2]
        assert lead["command"] == "python -m rl_twoclocks.lab scenario=policy_lag budget=short"

    def test_without_a_fall_there_is_no_lead(self, tmp_path: Path) -> None:
        write_lab(tmp_path)
        path = tmp_path / "lab" / "policy_lag.csv"
        text = path.read_text().replace("4096,20,40", ",,").replace("4096,30,40", ",,")
        path.write_text(text)
        result = compute(tmp_path)
        assert "lab.policy_lag.fault" in result and "lab.policy_lag.lead" not in result

    def test_nothing_is_published_that_the_rule_leaves_undecided(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_lab(tmp_path)
        path = tmp_path / "lab" / "policy_lag.csv"
        whole = path.read_text()
        path.write_text("".join(x for x in whole.splitlines(True) if not x.startswith("fault,10,")))
        assert compute(tmp_path) == {}
        assert (
            "lab.policy_lag: left out, undecided: 9 of 10 seeds so far" in capsys.readouterr().out
        )
        path.write_text(whole.replace(",3720.0,", ",-280.0,"))
        assert compute(tmp_path) == {}
        path.write_text("".join(x for x in whole.splitlines(True) if not x.startswith("healthy")))
        assert compute(tmp_path) == {}

    def test_verdicts_are_counted(self, tmp_path: Path) -> None:
        folder = tmp_path / "benchmarks"
        folder.mkdir()
        table = (
            "# Findings\n\n| claim | result | verdict | the defaults |\n| --- | --- | --- | --- |\n"
            "| a | 1 | holds | x |\n| b | | undecided: `lab scenario=b` | |\n"
            "| c | 2 | does not hold at 1; undecided under lag | y |\n"
        )
        (tmp_path / "findings.md").write_text(table)
        result = compute(folder)
        assert (result["lab.verdicts"]["value"], result["lab.verdicts"]["n"]) == (2, 3)
        assert result["lab.undecided"]["value"] == 1
        (tmp_path / "findings.md").write_text(table + "| d | holds | x |\n")
        with pytest.raises(ValueError, match="3 cells, not 4: d"):
            compute(folder)


class TestReport:
    def test_bytes_are_read_off(self, tmp_path: Path) -> None:
        columns = ["runs", "different", "frames", "bytes", "command"]
        rows = [(1, 1, 999_424, 200_000, "c"), (20, 10, 999_424, 3_300_000, "c")]
        write_csv(tmp_path / "report.csv", columns, rows)
        result = compute(tmp_path)
        assert result["report.bytes_1"]["value"] == 200_000
        assert (result["report.bytes_20"]["value"], result["report.bytes_20"]["n"]) == (3.3e6, 10)


def test_a_searchs_gain_is_measured_on_other_seeds(tmp_path: Path) -> None:
    (tmp_path / "optuna").mkdir()
    columns = ["task", "clocks", "seed", "frames", "return_mean", "command"]
    rows = [
        *[("pendulum", "classic", k, 100_000, -200.0 - k, "c") for k in range(5)],
        *[("pendulum", "classic-best", k, 100_000, -150.0 - k, "c") for k in range(5)],
    ]
    write_csv(tmp_path / "optuna" / "returns.csv", columns, rows)
    found = compute(tmp_path)["sweep.optuna_gain"]
    assert (found["value"], found["n"]) == (50.0, 5) and 45 < found["low"] < 50 < found["high"] < 55


def test_worlds_are_judged_by_the_rows_that_count(tmp_path: Path) -> None:
    columns = ["task", "seed", "conditions", "judged", "success_rate", "return_mean", "command"]
    rows = [
        ("maze", 1, "test", 1, 0.96, 9.0, "c"),
        ("maze", 2, "test", 1, 1.0, 9.9, "c"),
        ("maze", 1, "as trained", 0, 0.1, 1.0, "c"),
        ("acrobot", 1, "as trained", 1, "", -80.0, "c"),
    ]
    write_csv(tmp_path / "worlds.csv", columns, rows)
    gazebo = ["task", "seed", "success_rate", "return_mean", "command"]
    rows = [("gazebo_arm", 0, 0.0, -75.0, "random"), ("gazebo_arm", 1, 0.94, 20.0, "c")]
    write_csv(tmp_path / "gazebo.csv", gazebo, rows)
    result = compute(tmp_path)
    found = {k: (v["value"], v["n"], v["unit"]) for k, v in result.items()}
    assert found["worlds.maze"] == (0.98, 2, "success rate")
    assert found["worlds.acrobot"] == (-80.0, 1, "return")
    assert found["worlds.gazebo_arm"] == (0.94, 1, "success rate")


def test_gazebo_servers_are_compared_within_a_repeat(tmp_path: Path) -> None:
    values = [
        ("gazebo_cartpole", "rate_1", 100), ("gazebo_cartpole", "rate_2", 150),
        ("gazebo_cartpole", "rate_1", 200), ("gazebo_cartpole", "rate_2", 360),
        ("gazebo_cartpole", "rate_1", 120), ("gazebo_cartpole", "rate_2", 240),
        ("gazebo_diffdrive", "recovery_seconds", 0.4),
        ("gazebo_diffdrive", "recovery_seconds", 0.7),
        ("gazebo_cartpole", "memory_early_mb", 100), ("gazebo_cartpole", "memory_late_mb", 101),
    ]  # fmt: skip
    write_csv(
        tmp_path / "gazebo_speed.csv",
        ["task", "what", "value", "command"],
        [(*row, "c") for row in values],
    )
    result = compute(tmp_path)
    found = {k: (v["value"], v["low"], v["high"]) for k, v in result.items()}
    assert found["worlds.gazebo_steps_per_second"] == (120.0, 100.0, 200.0)
    assert found["worlds.gazebo_two_instances"] == (1.8, 1.5, 2.0)
    assert found["worlds.gazebo_recovery"][0] == 0.7
    assert found["worlds.gazebo_growth"][0] == 1.01


def test_overhead_is_that_of_the_task_whose_frames_cost_least(tmp_path: Path) -> None:
    columns = [
        "task", "clocks", "seed", "frames", "danger", "orders", "ordered", "diagnostics_share"
    ]  # fmt: skip
    rows = [
        ("halfcheetah", "classic", 1, 1_000_000, 0, 0, "", 0.02),
        ("halfcheetah", "classic", 2, 1_000_000, 1, 0, "", 0.03),
        ("hopper", "classic", 1, 1_000_000, 0, 2, "step", 0.001),
        ("reacher", "classic", 31, 1_000_000, 2, 7, "width", 0.001),
    ]
    write_csv(tmp_path / "healthy.csv", columns, rows)
    found = compute(tmp_path)
    overhead = found["diag.overhead"]
    assert (overhead["value"], overhead["high"], overhead["n"]) == (0.025, 0.03, 2)
    assert found["diag.danger_per_1m"]["value"] == pytest.approx(1 / 3, abs=1e-6)
    assert found["guard.orders_on_healthy"]["value"] == 2
    # No task that is there is left out.
    assert found["guard.orders_on_healthy.reacher"]["value"] == 7
    assert found["diag.danger_per_1m.reacher"]["value"] == 2
    assert "--tasks reacher --seeds 31 " in found["diag.danger_per_1m.reacher"]["command"]


class TestGuard:
    def write(self, folder: Path, off: list[tuple]) -> None:
        columns = [
            "task", "clocks", "seed", "frames", "danger", "orders", "ordered", "diagnostics_share"
        ]  # fmt: skip
        # The third run has one order, which changes no number.
        orders = {1: (0, ""), 2: (1, "step memory"), 3: (1, "memory")}
        rows = [("hopper", "classic", k, 1_000_000, 0, *orders[k], 0.01) for k in orders]
        write_csv(folder / "healthy.csv", columns, rows)
        guarded = [("hopper", "classic", k, 1_000_000, 1018.0, "c") for k in (1, 2, 3)]
        write_returns(folder, [*guarded, *off])

    def test_runs_with_orders_are_compared_with_their_pair(self, tmp_path: Path) -> None:
        self.write(tmp_path, [("hopper", "classic-off", 2, 1_000_000, 2018.0, "c")])
        found = compute(tmp_path)
        # Off: 1000, 2000, 1000 above random, interquartile mean of three: all; 4/3 of 1000.
        assert found["guard.shortfall_on_healthy"]["value"] == pytest.approx(0.25)
        assert found["guard.shortfall_on_healthy"]["low"] == 0.0
        assert "return.hopper.classic-off" not in found

    def test_without_the_pair_there_is_no_figure(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.write(tmp_path, [])
        assert "guard.shortfall_on_healthy" not in compute(tmp_path)
        assert "no classic-off run of hopper, seed 2" in capsys.readouterr().out
