"""Recompute `docs/benchmarks/figures.json`, the numbers that the documents quote, from raw files.

    python scripts/figures.py

Raw files are those of `SOURCES`, written by the script that their rows name; `lab/<scenario>.csv`, each
the results.csv of the lab; and the table in `findings.md`, in the folder above. A missing one is
named and its figures are left out. The same raw files give the same bytes.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from rl_twoclocks import scenario, verdict
from rl_twoclocks.aggregate import (
    Estimate,
    combined,
    difference,
    interquartile_mean,
    normalised,
    paired_shortfall,
    pooled,
)

Figure = dict[str, object]
Rows = list[dict[str, str]]

TORCHRL = ("torchrl", "torchrl-compiled")

# name -> (contenders above the line, column, contenders below the line). Of several contenders the
# fastest end to end in that repeat counts.
SPEED_RATIOS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "speed.e2e_vs_sb3": (("ours-classic",), "e2e_fps", ("sb3",)),
    "speed.collect_vs_sb3": (("ours-classic",), "collect_fps", ("sb3",)),
    "speed.update_vs_sb3": (("sb3",), "update_seconds", ("ours-classic",)),
    "speed.e2e_envpool_vs_sb3": (("ours-classic-envpool",), "e2e_fps", ("sb3",)),
    "speed.collect_envpool_vs_sb3": (("ours-classic-envpool",), "collect_fps", ("sb3",)),
    "speed.e2e_vs_sb3_vecnormalize": (("ours-classic",), "e2e_fps", ("sb3-vecnormalize",)),
    "speed.e2e_vs_torchrl": (("ours-classic",), "e2e_fps", TORCHRL),
    "speed.default_e2e_vs_sb3": (("ours-default",), "e2e_fps", ("sb3",)),
    "speed.memory_vs_sb3": (("ours-classic",), "peak_rss_mb", ("sb3",)),
}


ATARI_RATIOS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "worlds.pong_collect_vs_sb3": (("ours",), "collect_fps", ("sb3",)),
    "worlds.pong_update_vs_sb3": (("sb3",), "update_seconds", ("ours",)),
    "worlds.pong_memory_vs_sb3": (("ours",), "rollout_mb", ("sb3",)),
    "worlds.pong_grown_memory_vs_sb3": (("ours",), "grown_mb", ("sb3",)),
    "worlds.pong_peak_memory_vs_sb3": (("ours",), "peak_rss_mb", ("sb3",)),
}


def figure(value: float, low: float, high: float, n: int, unit: str, rows: Iterable) -> Figure:
    """Build one entry; numbers keep six digits, the command is that of the raw rows used."""
    commands = list(dict.fromkeys(row["command"] for row in rows))
    value, low, high = (float(f"{number:.6g}") for number in (value, low, high))
    command = "; ".join(commands)
    return {"value": value, "low": low, "high": high, "n": n, "unit": unit, "command": command}


def speed_figures(
    rows: Rows, names: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = SPEED_RATIOS
) -> dict[str, Figure]:
    """Compute the ratios of `names`, paired by repeat so that slow minutes of the machine cancel.

    Value: median over repeats of the ratio within the repeat; low and high: its minimum and
    maximum. A ratio without a repeat that has both sides is left out.

    Raises:
        ValueError: If a contender has two rows for one repeat.
    """
    repeats: dict[int, dict[str, dict[str, str]]] = defaultdict(dict)
    for row in rows:
        if row["contender"] in repeats[int(row["repeat"])]:
            raise ValueError(f"two rows for {row['contender']}, repeat {row['repeat']}")
        repeats[int(row["repeat"])][row["contender"]] = row
    figures = {}
    for name, (above, column, below) in names.items():
        used, ratios = [], []
        for _, entry in sorted(repeats.items()):
            if any(contender not in entry for contender in (*above, *below)):
                continue
            pair = [
                max((entry[contender] for contender in side), key=lambda row: float(row["e2e_fps"]))
                for side in (above, below)
            ]
            ratios.append(float(pair[0][column]) / float(pair[1][column]))
            used += pair
        if not ratios:
            print(f"{name}: left out, no repeat has {', '.join((*above, *below))}")
            continue
        middle = statistics.median(ratios)
        figures[name] = figure(middle, min(ratios), max(ratios), len(ratios), "ratio", used)
    return figures


def bootstrap_interval(values: np.ndarray) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the interquartile mean over seeds [n]."""
    found = pooled({"seeds": values.tolist()})
    return found.low, found.high


def return_figures(rows: Rows) -> dict[str, Figure]:
    """Compute the interquartile mean of the return over seeds per task and clocks.

    Taken at the largest number of frames that every seed has a row for: seeds at different frames
    are never mixed.

    Raises:
        ValueError: If a seed has two rows for the same number of frames.
    """
    groups: dict[str, dict[int, dict[int, dict[str, str]]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row["clocks"].endswith("-off"):
            continue
        name = f"return.{row['task']}.{row['clocks']}"
        seed, frames = int(row["seed"]), int(row["frames"])
        if frames in groups[name][seed]:
            raise ValueError(f"two rows for {name}, seed {seed}, {frames} frames")
        groups[name][seed][frames] = row
    figures = {}
    for name, seeds in groups.items():
        shared = set.intersection(*(set(by_frames) for by_frames in seeds.values()))
        if not shared:
            print(f"{name}: left out, its seeds have no number of frames in common")
            continue
        used = [by_frames[max(shared)] for _, by_frames in sorted(seeds.items())]
        values = np.array([float(row["return_mean"]) for row in used])
        middle = float(interquartile_mean(values))
        figures[name] = figure(middle, *bootstrap_interval(values), len(values), "return", used)
    return figures


HEALTHY = ("halfcheetah", "hopper", "walker2d")
"""The tasks that the governor's levels were made on; figures of others have the task in their name."""


def _healthy_command(rows: Rows) -> str:
    seeds: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        seeds[row["task"], row["clocks"]].append(row["seed"])
    runs = [
        f"python scripts/learning.py run --tasks {task} --seeds {' '.join(mine)} --clocks {clocks}"
        for (task, clocks), mine in seeds.items()
    ]
    return "; ".join([*runs, "python scripts/learning.py collect"])


FAULTS_COMMAND = "python scripts/faults.py run; python scripts/faults.py table"
RESCUE_COMMAND = "python scripts/rescue.py run; python scripts/rescue.py table"


def count(value: float, n: int, unit: str, command: str) -> Figure:
    """Build an entry that is a count, which has no interval of its own."""
    return figure(value, value, value, n, unit, [{"command": command}])


def healthy_figures(rows: Rows) -> dict[str, Figure]:
    """Compute what diagnostics and governor did in healthy runs: share of time, dangers, orders.

    Of the default, `clocks=classic`, and the tasks in `HEALTHY` under these names; of other tasks and
    clocks with their names behind. Overhead: median over the runs on HalfCheetah, whose frames cost
    least, of the diagnostics' share of the wall time, with its minimum and maximum.
    """
    groups: dict[str, Rows] = defaultdict(list)
    cheap: dict[str, Rows] = defaultdict(list)
    for row in rows:
        end = "" if row["clocks"] == "classic" else f".{row['clocks']}"
        groups[end if row["task"] in HEALTHY else f".{row['task']}{end}"].append(row)
        if row["task"] == "halfcheetah":
            cheap[end].append(row)
    found = {}
    for end, mine in groups.items():
        millions = sum(int(row["frames"]) for row in mine) / 1e6
        danger, orders = (sum(int(row[key]) for row in mine) for key in ("danger", "orders"))
        n, command = len(mine), _healthy_command(mine)
        found[f"diag.danger_per_1m{end}"] = count(
            danger / millions, n, "onsets per 1M frames", command
        )
        found[f"guard.orders_on_healthy{end}"] = count(orders, n, "orders", command)
    for end, mine in cheap.items():
        shares = [float(row["diagnostics_share"]) for row in mine]
        found[f"diag.overhead{end}"] = figure(
            statistics.median(shares), min(shares), max(shares), len(shares),
            "share of the wall time, HalfCheetah", [{"command": _healthy_command(mine)}],
        )  # fmt: skip
    return found


def guard_figures(healthy: Rows, returns: Rows) -> dict[str, Figure]:
    """Compute by how much the governor's orders lowered the score of healthy runs, pair by pair.

    A run without orders that change a number is bit-identical to one without a governor, and its own
    pair; the others have one in the rows named `classic-off`. Left out while one of those is missing.
    """
    found = {(r["task"], r["clocks"], r["seed"]): float(r["return_mean"]) for r in returns}
    guarded, off = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for row in healthy:
        task, seed = row["task"], row["seed"]
        if row["clocks"] != "classic" or task not in HEALTHY:
            continue
        # Memory that is given back changes no number.
        acted = set(row["ordered"].split()) - {"memory"}
        other = "classic-off" if acted else "classic"
        if (task, other, seed) not in found:
            print(f"guard.shortfall_on_healthy: left out, no {other} run of {task}, seed {seed}")
            return {}
        guarded[task].append(found[task, "classic", seed])
        off[task].append(found[task, other, seed])
    if not off:
        return {}
    for task, values in off.items():
        low, top = RANDOM_RETURNS[task], float(interquartile_mean(np.array(values)))
        for runs in (guarded, off):
            runs[task] = normalised(runs[task], low, top)
    estimate, n = paired_shortfall(guarded, off), sum(len(values) for values in off.values())
    unit = "score that is lacking under guard; ends are one-sided 95 % bounds"
    mine = [r for r in healthy if r["clocks"] == "classic" and r["task"] in HEALTHY]
    command = _healthy_command(mine) + " (and --overrides interventions=off)"
    return {"guard.shortfall_on_healthy": figure(*estimate, n, unit, [{"command": command}])}


def fault_figures(rows: Rows) -> dict[str, Figure]:
    """Count planted faults and those that the alarm named for them saw."""
    planted = [row for row in rows if row["alarm"]]
    command = FAULTS_COMMAND
    detected = sum(int(row["detected"]) for row in planted)
    return {
        "diag.detected": count(detected, len(planted), "runs", command),
        "diag.planted": count(len(planted), len(planted), "runs", command),
    }


def rescue_figures(rows: Rows) -> dict[str, Figure]:
    """Count seeds that came back, with the shipped rescue and with rollback alone."""
    figures = {}
    for name, arm in (("rescue.recovered", "rescue"), ("rescue.rollback_alone", "rollback")):
        mine = [row for row in rows if row["arm"] == arm]
        back = sum(row["recovered"] == "1" for row in mine)
        if mine:
            figures[name] = count(back, len(mine), "seeds", RESCUE_COMMAND)
    return figures


RANDOM_RETURNS = {
    "halfcheetah": -280.0, "hopper": 18.0, "walker2d": 2.0, "ant": -60.0, "swimmer": 1.0,
    "humanoid": 120.0, "reacher": -43.0, "pusher": -150.0, "inverted_pendulum": 6.0,
    "inverted_double_pendulum": 60.0, "cartpole": 22.0, "acrobot": -500.0, "pendulum": -1250.0,
}  # fmt: skip
"""Returns of a random policy, the zero of normalised scores."""
LAG_COMMAND = "python scripts/lag.py run --stage {}; python scripts/lag.py collect"


LAG_TWINS = ("decoupled", "geppo", "vtrace")
"""At lag 0 and clock ratio 1 these are `clipped`, up to rounding: its runs count for them there."""


LAG_PARTS = ("align", "filter", "ess")
"""Made at one lag only."""
LAG_SEEDS = {"screen": 3, "final": 10}
LAG_SEEDS_MUJOCO = {"screen": 3, "final": 5}
MUJOCO = ("halfcheetah", "hopper")


def lag_seeds(stage: str, task: str) -> int:
    """Seeds that a stage of the lag curve asks for."""
    return (LAG_SEEDS_MUJOCO if task in MUJOCO else LAG_SEEDS)[stage]


def lag_gains(rows: Rows) -> dict[tuple[str, int], list[float]]:
    """Returns above a random policy's by objective and lag, of the rows of one stage and task."""
    gains: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        gain = float(row["return_mean"]) - RANDOM_RETURNS[row["task"]]
        gains[row["objective"], int(row["lag"])].append(gain)
    if ("clipped", 0) in gains:
        gains |= {(twin, 0): gains["clipped", 0] for twin in LAG_TWINS}
    return gains


def lag_reference(gains: dict[tuple[str, int], list[float]], asked: int) -> list[float]:
    """What score 1 is measured by: the gains at lag 0 of the objective that is best there.

    Empty while an objective lacks one of the `asked` seeds at lag 0 (of few seeds the best is luck), and
    where none learnt anything.
    """
    names = sorted({name for name, _ in gains} - {*LAG_PARTS})
    fresh = [gains.get((name, 0), []) for name in names]
    if not fresh or any(len(each) < asked for each in fresh):
        return []
    best = max(fresh, key=lambda each: float(interquartile_mean(np.array(each))))
    return best if interquartile_mean(np.array(best)) > 0 else []


def lag_scores(rows: Rows, asked: int) -> dict[tuple[str, int], list[float]]:
    """Scores by objective and lag, of the rows of one stage and task; empty without a reference."""
    gains = lag_gains(rows)
    reference = lag_reference(gains, asked)
    if not reference:
        return {}
    one = float(interquartile_mean(np.array(reference)))
    return {key: [gain / one for gain in each] for key, each in gains.items()}


def lag_figures(rows: Rows) -> dict[str, Figure]:
    """Compute scores under lag, and the largest total variation that was measured.

    Objectives that the final stage of a task tried count with its runs alone, as soon as it has its
    reference; others with the screen's. Left out is what lacks seeds. Intervals hold what the seeds of
    the reference leave open.
    """
    figures: dict[str, Figure] = {}
    for task in sorted({row["task"] for row in rows}):
        told: set[str] = set()
        for stage in ("final", "screen"):
            asked = lag_seeds(stage, task)
            mine = [row for row in rows if (row["task"], row["stage"]) == (task, stage)]
            gains = lag_gains(mine)
            if not (reference := lag_reference(gains, asked)):
                continue
            command = [{"command": LAG_COMMAND.format(stage)}]
            tried = {objective for objective, _ in gains} - told
            if stage == "final":
                # Not those that have no run of their own, but that of another objective without lag.
                tried &= {row["objective"] for row in mine}
            for (objective, lag), each in sorted(gains.items()):
                if objective not in tried or len(each) < asked:
                    continue
                score = combined([each, reference], lambda gain, one: gain / one)
                figures[f"lag.{objective}.{task}.{lag}"] = figure(
                    *score, len(each), "score (1: best objective at lag 0)", command
                )
            told |= tried
        if not told:
            print(f"lag.*.{task}: left out, not all seeds are there at lag 0")
    most = float(np.nanmax([float(row["total_variation"]) for row in rows]))
    figures["lag.max_tv"] = count(most, len(rows), "total variation", LAG_COMMAND.format("screen"))
    return figures


def async_figures(rows: Rows) -> dict[str, Figure]:
    """Compute what asynchronous collection gains on two cores, by ratios within each repeat."""
    repeats: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    for row in rows:
        repeats[row["repeat"]][row["contender"]] = row
    of_bound, vs_best = [], []
    for entry in repeats.values():
        fps = {name: float(row["fps"]) for name, row in entry.items()}
        base = entry["sync-1"]
        seconds = [float(base[f"{k}_seconds"]) for k in ("collect", "update")]
        bound = fps["sync-1"] * sum(seconds) / max(seconds)
        of_bound.append(fps["async"] / bound)
        vs_best.append(fps["async"] / max(v for name, v in fps.items() if name != "async"))
    return {
        f"async.{name}": figure(
            statistics.median(values), min(values), max(values), len(values), "ratio", rows
        )
        for name, values in (("of_bound", of_bound), ("vs_best_sync", vs_best))
    }


def async_return_figures(rows: Rows) -> dict[str, Figure]:
    """Compute the return of asynchronous runs over that of synchronous ones, above a random policy's."""
    gains: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        gains[row["arm"]].append(float(row["return_mean"]) - RANDOM_RETURNS["halfcheetah"])
    if len({len(gains[arm]) for arm in ("async", "sync")}) > 1:
        print("async.return_ratio: left out, one arm lacks seeds")
        return {}
    found = combined([gains["async"], gains["sync"]], lambda mine, base: mine / base)
    command = [{"command": "python scripts/async_returns.py run"}]
    return {"async.return_ratio": figure(*found, len(gains["async"]), "ratio", command)}


def spike_figures(rows: Rows) -> dict[str, Figure]:
    """Compute the median p-value of the broadcast period over the seeds of an arm."""
    figures = {}
    names = {"fault": "fifo", "cure": "versioned"}
    names |= {
        f"{arm}_{how}": f"{name}_{how}"
        for how in ("redis", "seldom")
        for arm, name in names.items()
    }
    for arm, name in names.items():
        values = [float(row["p"]) for row in rows if row["arm"] == arm]
        if values:
            command = "python -m rl_twoclocks.lab scenario=stale_broadcast budget=short; "
            command += "python scripts/spikes.py lab/stale_broadcast-short"
            figures[f"spikes.{name}_p"] = figure(
                statistics.median(values), min(values), max(values), len(values),
                "p-value (median; low and high are the extremes)", [{"command": command}],
            )  # fmt: skip
    return figures


def suspect_figures(rows: Rows) -> dict[str, Figure]:
    """Count the planted faults for which the right part was suspected."""
    command = "python scripts/faults.py run; python scripts/faults.py suspects"
    right = sum(int(row["right"]) for row in rows)
    return {"diag.suspected": count(right, len(rows), "runs with the right suspect", command)}


def atari_figures(rows: Rows) -> dict[str, Figure]:
    """Compute the return per game at the largest number of frames, and by how much it beats SB3's."""
    figures = {}
    for game in sorted({row["game"] for row in rows}):
        of_game = [row for row in rows if row["game"] == game]
        most = max(int(row["frames"]) for row in of_game)
        used = [row for row in of_game if int(row["frames"]) == most]
        returns = {
            name: {game: [float(row["return_mean"]) for row in used if row["contender"] == name]}
            for name in ("ours", "sb3")
        }
        mine, theirs = (np.array(returns[name][game]) for name in ("ours", "sb3"))
        if len(mine):
            middle = float(interquartile_mean(mine))
            own = [row for row in used if row["contender"] == "ours"]
            interval = bootstrap_interval(mine)
            figures[f"worlds.{game}"] = figure(middle, *interval, len(mine), "return", own)
        if len(mine) and len(theirs):
            gap = difference(returns["ours"], returns["sb3"])
            n, unit = len(mine), "return, difference"
            entry = figure(gap.value, gap.low, gap.high, n, unit, used)
            figures[f"worlds.{game}_vs_sb3_return"] = entry
    return figures


def worlds_figures(rows: Rows) -> dict[str, Figure]:
    """Compute the success rate, or where a task has none the return, of the judged rows by task."""
    figures = {}
    for task in sorted({row["task"] for row in rows}):
        judged = [row for row in rows if row["task"] == task and int(row.get("judged", 1))]
        # Rows of uniformly random actions, what a policy is compared with, have seed 0.
        mine = [row for row in judged if int(row["seed"])]
        if not mine:
            continue
        column = "success_rate" if mine[0]["success_rate"] else "return_mean"
        values = np.array([float(row[column]) for row in mine])
        middle, unit = (
            float(interquartile_mean(values)),
            column.replace("_mean", "").replace("_", " "),
        )
        name = f"worlds.{task.removesuffix('-v0')}"
        figures[name] = figure(middle, *bootstrap_interval(values), len(mine), unit, mine)
    return figures


def gazebo_speed_figures(rows: Rows) -> dict[str, Figure]:
    """Compute the servers' rate, by how much two beat one, the worst recovery and the growth."""

    def values(task: str, what: str) -> list[float]:
        return [float(r["value"]) for r in rows if (r["task"], r["what"]) == (task, what)]

    figures = {}
    for task in sorted({row["task"] for row in rows if row["what"] == "rate_1"}):
        one, two = values(task, "rate_1"), values(task, "rate_2")
        ratios = [b / a for a, b in zip(one, two, strict=True)]
        end = "" if task == "gazebo_cartpole" else f".{task}"
        for name, found, unit in (
            ("steps_per_second", one, "decisions per second"),
            ("two_instances", ratios, "ratio"),
        ):
            middle = statistics.median(found)
            figures[f"worlds.gazebo_{name}{end}"] = figure(
                middle, min(found), max(found), len(found), unit, rows
            )
    if seconds := values("gazebo_diffdrive", "recovery_seconds"):
        worst = max(seconds)
        figures["worlds.gazebo_recovery"] = figure(
            worst, min(seconds), worst, len(seconds), "seconds, the worst", rows
        )
    early, late = (values("gazebo_cartpole", f"memory_{when}_mb") for when in ("early", "late"))
    if early and late:
        figures["worlds.gazebo_growth"] = count(late[0] / early[0], 1, "ratio", rows[0]["command"])
    return figures


def worlds_speed_figures(rows: Rows) -> dict[str, Figure]:
    """Compute the frames per second of the project's own worlds."""
    figures = {}
    for task in sorted({row["task"] for row in rows}):
        mine = [row for row in rows if row["task"] == task]
        fps = [float(row["fps"]) for row in mine]
        figures[f"worlds.{task}_frames_per_second"] = figure(
            statistics.median(fps), min(fps), max(fps), len(fps), "frames per second", mine
        )
    return figures


def report_figures(rows: Rows) -> dict[str, Figure]:
    """Read off the sizes of the page about one run and about twenty."""
    return {
        f"report.bytes_{row['runs']}": figure(
            *[float(row["bytes"])] * 3, int(row["different"]), "bytes (n: different runs)", [row]
        )
        for row in rows
    }


def lab_figures(name: str, path: Path) -> dict[str, Figure]:
    """Judge a scenario anew: scores of fault and cure, and the median lead of warning over collapse.

    Nothing where the rule decides nothing.
    """
    scene = scenario.load(name)
    rows, runs = read_rows(path), scenario.read_results(scene, path)
    budgets = dict.fromkeys(row["budget"] for row in rows)
    command = [
        {"command": f"python -m rl_twoclocks.lab scenario={name} budget={b}"} for b in budgets
    ]
    by_arm = {arm: [r for r in runs if r.arm == arm] for arm in ("healthy", "fault", "cure")}
    if empty := [arm for arm, found in by_arm.items() if not found]:
        print(f"lab.{name}: left out, no run of {', '.join(empty)}")
        return {}
    (budget,) = budgets
    conclusion = verdict.conclude(scene, name, budget, runs)
    if conclusion.verdict.startswith("undecided"):
        print(f"lab.{name}: left out, {conclusion.verdict}")
        return {}
    figures = {
        f"lab.{name}.{arm}": figure(
            *conclusion.scores[arm], len(by_arm[arm]), "score (1: healthy)", command
        )
        for arm in ("fault", "cure")
    }
    if leads := verdict.leads(by_arm["fault"], by_arm["healthy"]):
        middle = statistics.median(leads)
        fallen = sum(run.collapse is not None for run in by_arm["fault"])
        unit = f"rounds from warning to fall, in {len(leads)} of {fallen} runs that collapsed"
        figures[f"lab.{name}.lead"] = figure(
            middle, min(leads), max(leads), len(leads), unit, command
        )
    return figures


ABLATION_TASKS, ABLATION_SEEDS = ("halfcheetah", "hopper"), 5
ABLATION_BASES = {"safe clocks and segments cut": "safe clocks"}
"""What an arm is compared with, where it is not `shipped`."""


def ablation_returns(rows: Rows) -> dict[str, dict[str, list[float]]]:
    """Returns by arm and task."""
    returns: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        returns[row["arm"]][row["task"]].append(float(row["return_mean"]))
    return returns


def ablation_gaps(rows: Rows) -> dict[str, Estimate]:
    """By how much an arm's score lies above its base's, of arms that are complete, as their bases are.

    Score 1 is the interquartile mean of `shipped` on the task, 0 a random policy.

    Raises:
        ValueError: `shipped` is no better than a random policy on a task.
    """
    full = {
        arm: by_task
        for arm, by_task in ablation_returns(rows).items()
        if all(len(by_task[task]) == ABLATION_SEEDS for task in ABLATION_TASKS)
    }
    if "shipped" not in full:
        return {}
    one = {t: float(interquartile_mean(np.array(v))) for t, v in full["shipped"].items()}
    scores = {
        arm: {t: normalised(v, RANDOM_RETURNS[t], one[t]) for t, v in by_task.items()}
        for arm, by_task in full.items()
    }
    bases = {arm: ABLATION_BASES.get(arm, "shipped") for arm in scores if arm != "shipped"}
    return {a: difference(scores[a], scores[b]) for a, b in bases.items() if b in scores}


def ablation_figures(rows: Rows) -> dict[str, Figure]:
    """Compute what changing one part of the classic preset adds to its score."""
    command = [{"command": "python scripts/ablation.py run"}]
    n = ABLATION_SEEDS * len(ABLATION_TASKS)
    return {
        f"ablation.{arm.replace(' ', '_')}": figure(*gap, n, "score, difference", command)
        for arm, gap in sorted(ablation_gaps(rows).items())
    }


OPTUNA_COMMAND = (
    "python -m rl_twoclocks.train sweep=optuna task=pendulum total_frames=100_000; "
    "python scripts/learning.py run --tasks pendulum --frames 100000 --seeds 31 32 33 34 35 {}; "
    "python scripts/learning.py collect --out docs/benchmarks/optuna"
)


def optuna_figures(rows: Rows) -> dict[str, Figure]:
    """Compute by how much the best point of the search is better on seeds that it never saw."""
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        groups[row["clocks"]].append(float(row["return_mean"]))
    gain = difference({"pendulum": groups["classic-best"]}, {"pendulum": groups["classic"]})
    command = OPTUNA_COMMAND.format("(and with --label=-best and the best point's --overrides)")
    unit, n = "return that the best point of the search has more", len(groups["classic-best"])
    return {"sweep.optuna_gain": figure(*gain, n, unit, [{"command": command}])}


def finding_figures(text: str) -> dict[str, Figure]:
    """Count the claims in the table of findings.md that have a verdict, and those that have none.

    Raises:
        ValueError: a row has not as many cells as the heading.
    """
    table = [line.strip().strip("|").split("|") for line in text.splitlines() if line[:1] == "|"]
    heading, _, *rows = table
    place = [cell.strip() for cell in heading].index("verdict")
    for row in rows:
        if len(row) != len(heading):
            raise ValueError(f"findings.md: {len(row)} cells, not {len(heading)}: {row[0].strip()}")
    open_ = sum(row[place].strip().startswith("undecided") for row in rows)
    command, n = "python scripts/figures.py, from docs/findings.md", len(rows)
    return {
        "lab.verdicts": count(n - open_, n, "claims with a verdict", command),
        "lab.undecided": count(open_, n, "claims without a verdict", command),
    }


SOURCES: dict[str, Callable[[Rows], dict[str, Figure]]] = {
    "speed.csv": speed_figures,
    "returns.csv": return_figures,
    "healthy.csv": healthy_figures,
    "faults.csv": fault_figures,
    "rescue.csv": rescue_figures,
    "lag.csv": lag_figures,
    "spikes.csv": spike_figures,
    "async_speed.csv": async_figures,
    "async_returns.csv": async_return_figures,
    "atari_speed.csv": lambda rows: speed_figures(rows, ATARI_RATIOS),
    "atari_returns.csv": atari_figures,
    "suspects.csv": suspect_figures,
    "worlds.csv": worlds_figures,
    "worlds_speed.csv": worlds_speed_figures,
    "gazebo.csv": worlds_figures,
    "gazebo_speed.csv": gazebo_speed_figures,
    "report.csv": report_figures,
    "ablation.csv": ablation_figures,
    "optuna/returns.csv": optuna_figures,
}
"""What computes figures from which raw file."""


def read_rows(path: Path) -> Rows:
    """Read a CSV file; say so and return nothing if it is missing."""
    if not path.exists():
        print(f"{path}: missing, its figures are left out")
        return []
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def main(argv: list[str] | None = None) -> int:
    """Write the figures file."""
    parser = argparse.ArgumentParser(
        description="Recompute figures.json from the raw files beside it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("docs/benchmarks"),
        help="folder of raw files and result",
    )
    folder = parser.parse_args(argv).folder
    figures: dict[str, Figure] = {}
    for file_name, compute in SOURCES.items():
        rows = read_rows(folder / file_name)
        if rows:
            figures |= compute(rows)
    figures |= guard_figures(read_rows(folder / "healthy.csv"), read_rows(folder / "returns.csv"))
    for path in sorted((folder / "lab").glob("*.csv")):
        figures |= lab_figures(path.stem, path)
    findings = folder.parent / "findings.md"
    if findings.exists():
        figures |= finding_figures(findings.read_text(encoding="utf-8"))
    else:
        print(f"{findings}: missing, its figures are left out")
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(figures, indent=2, sort_keys=True, ensure_ascii=False)
    (folder / "figures.json").write_text(text + "\n", encoding="utf-8")
    print(f"{folder / 'figures.json'}: {len(figures)} figures")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
