"""The report: numbers by hand, pages about runs in every state, and what a page must never hold."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_twoclocks import ConfigError, compose
from rl_twoclocks.checks import Finding
from rl_twoclocks.record import checkpoint
from rl_twoclocks.report import draw, main, write
from rl_twoclocks.reporting import axes, heatmap, page, png, runs, statistics
from rl_twoclocks.reporting.charts import scale, style_of
from rl_twoclocks.reporting.figures import Line, figures
from rl_twoclocks.rundir import plain
from tests.run_folders import ORDER, ROUNDS, U, alarm, make, row

VOID = {"meta", "br", "img", "input", "hr", "link", "path"}
EVIL = '<script>alert("x")</script>'


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return plain(compose(["task=walker2d", "total_frames=81920"]))


class Tree(HTMLParser):
    """Checks that tags balance and ids are unique; keeps what tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, str] = {}
        self._ids: list[str | None] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.found.append((tag, attributes))
        identity = attributes.get("id")
        assert identity is None or identity not in self.words, f"two elements with id {identity}"
        if identity is not None:
            self.words[identity] = ""
        if tag not in VOID:
            self.open.append(tag)
            self._ids.append(identity)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()
        self._ids.pop()

    def handle_data(self, data: str) -> None:
        for identity in self._ids:
            if identity is not None:
                self.words[identity] += data

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [a for t, a in self.found if t == tag and attributes.items() <= a.items()]


def html(tmp_path: Path, *folders: Path) -> str:
    out = write(runs.read_runs(folders), tmp_path / "out" / "report.html")
    return out.read_text()


def series(values: list[float], start: int = 0) -> runs.Series:
    return runs.Series(np.arange(start, start + len(values), dtype=float), np.array(values))


# Numbers


def test_the_centre_leaves_out_a_quarter_of_the_seeds_at_each_end() -> None:
    for seeds, centre in (
        ([1, 100, 2, 4], 3.0),
        ([9, 1, 2, 3, 4, 5, -7, 99], 3.5),
        ([1, 2, 6], 3.0),
    ):
        pooled = statistics.pool([series([float(v)]) for v in seeds])
        assert pooled is not None and pooled.centre.values.tolist() == [centre]


def test_the_bootstrap_interval_of_few_seeds() -> None:
    low, high = statistics.bootstrap_interval(np.array([[5.0, 1.0], [5.0, 1.0], [5.0, 1.0]]))
    assert low.tolist() == high.tolist() == [5.0, 1.0]
    # Two seeds, 0 and 1: a quarter of the resamples holds one of them alone.
    low, high = statistics.bootstrap_interval(np.array([[0.0], [1.0]]))
    assert (low[0], high[0]) == (0.0, 1.0)
    seeds = np.arange(10.0)[:, None]
    low, high = statistics.bootstrap_interval(seeds)
    assert 1.0 < low[0] < 4.5 < high[0] < 8.0
    assert statistics.bootstrap_interval(seeds)[0] == low


def test_seeds_are_pooled_where_all_of_them_have_a_value() -> None:
    one = runs.Series(np.array([0.0, 2.0, 4.0]), np.array([0.0, 2.0, 4.0]))
    two = runs.Series(np.array([1.0, 3.0, 9.0]), np.array([3.0, 5.0, 11.0]))
    pooled = statistics.pool([one, two])
    assert pooled is not None
    assert pooled.centre.frames.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert pooled.centre.values.tolist() == [2.0, 3.0, 4.0, 5.0]
    assert pooled.low.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert statistics.pool([one]) is None


def test_a_hole_of_one_seed_is_a_hole_of_the_pool() -> None:
    pooled = statistics.pool([series([1, 2, math.nan, 4]), series([3, 4, 5, 6])])
    assert pooled is not None
    np.testing.assert_array_equal(pooled.centre.values, [2, 3, math.nan, 5])


def test_downsampling_keeps_ends_extremes_and_holes() -> None:
    values = np.zeros(10_000)
    values[0], values[-1], values[1234], values[7777] = 1.0, 2.0, 50.0, -50.0
    values[5000] = math.nan
    thin = statistics.downsample(runs.Series(np.arange(10_000.0), values))
    assert len(thin) <= statistics.POINTS
    kept = dict(zip(thin.frames, thin.values, strict=True))
    assert (kept[0], kept[9999], kept[1234], kept[7777]) == (1.0, 2.0, 50.0, -50.0)
    assert math.isnan(kept[5000])
    short = series([1.0, math.nan])
    assert statistics.downsample(short) is short


def test_ticks_are_round_numbers_inside_the_axis() -> None:
    assert axes.nice_ticks(0.0, 1_000_000.0) == [0, 200_000, 400_000, 600_000, 800_000, 1_000_000]
    assert axes.axis([np.array([7.0, 7.0])]).ticks == (6.5, 7.0, 7.5)
    log = axes.axis([np.array([1e-5, math.nan, 1.0, 0.0])], log=True)
    assert log.log and log.ticks == (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    # What is not positive lies on the lower edge; holes stay holes.
    np.testing.assert_allclose(log.place(np.array([0.0, math.nan])), [0.0, math.nan])
    assert axes.frames_axis(999_424).high == 1_000_000


# Pages


def test_a_page_opens_with_the_verdict_then_gradient_norm_and_kl(
    config: dict[str, Any], tmp_path: Path
) -> None:
    folder = make(tmp_path / "walk" / "seed1", config, events=[alarm(2 * U), ORDER])
    text = html(tmp_path, folder)
    tree = Tree(text)
    order = [a["id"] for a in tree.all("figure", **{"class": "chart"})]
    assert order == [
        "gradient-norm", "kl", "return", "clocks", "clock-ratio", "staleness",
        "reward-variance", "rollout-entropy", "policy-entropy", "explained-variance",
        "episode-length", "learning-rate", "throughput",
    ]  # fmt: skip
    sections = [a["id"] for a in tree.all("section")]
    assert sections == ["verdict", "charts", "events", "findings", "flow"]
    assert "In step: nothing to do" in tree.words["verdict"]
    assert "reward_cliff at 4,096 frames" in tree.words["verdict"]
    assert "1 danger, 1 order" in tree.words["kl-alt"]
    assert "training: first 1, last 391" in tree.words["return-alt"]
    assert tree.words["events"].index("danger: reward_cliff") < tree.words["events"].index("reseed")


def test_every_picture_has_words(config: dict[str, Any], tmp_path: Path) -> None:
    folders = [make(tmp_path / "w" / f"seed{s}", config, seed=s) for s in (1, 2)]
    for folder in folders:
        checkpoint.save(folder, {"diagnose": {"maps": [[5, torch.eye(4)]]}}, 5, 1)
    tree = Tree(html(tmp_path, *folders))
    drawings = tree.all("svg", role="img")
    assert len(drawings) == 14
    for drawing in drawings:
        assert len(tree.words[str(drawing["aria-labelledby"])]) > 3
        assert (
            "first" in (words := tree.words[str(drawing["aria-describedby"])]) or "all the" in words
        )
    assert all(len(str(image["alt"])) > 20 for image in tree.all("img"))
    assert len(tree.all("img")) == 3


def test_text_from_files_is_escaped(config: dict[str, Any], tmp_path: Path) -> None:
    config = config | {"task": config["task"] | {"name": EVIL}}
    events = [alarm(U, text=EVIL) | {"name": EVIL}, ORDER | {"text": f'" onclick="{EVIL}'}]
    folder = make(tmp_path / "<img src=x>" / "seed1", config, events=events)
    other = make(tmp_path / "b" / "seed1", config, seed=2, events=events)
    for directory in (folder, other):
        (directory / "error.txt").write_text(f"Traceback\nValueError: {EVIL}")
        (directory / '"><b>.mp4').write_bytes(b"x")
    for text in (html(tmp_path, folder), html(tmp_path, folder, other)):
        tree = Tree(text)
        assert len(tree.all("script")) == 1
        assert not tree.all("img", src="x") and not tree.all("b")
        assert not any("onclick" in a for _, a in tree.found)
        assert EVIL in tree.words["verdict"]
        assert "alert(" not in text.replace("&lt;script&gt;alert(&quot;x&quot;)", "")


def test_a_page_fetches_nothing(config: dict[str, Any], tmp_path: Path) -> None:
    text = html(tmp_path, make(tmp_path / "seed1", config))
    inlined = re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", text)
    assert inlined
    for part in [text, *(base64.b64decode(data).decode() for data in inlined)]:
        assert set(re.findall(r"https?://[^\"'\s<]+", part)) <= {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    assert not re.search(r"<link|@import|url\((?!#)", text)


def test_holes_break_the_line_and_are_counted(config: dict[str, Any], tmp_path: Path) -> None:
    rows = [row(k) for k in range(ROUNDS)]
    rows[20]["grad_norm/total"] = None
    rows[21]["grad_norm/total"] = None
    rows[22]["rollout/return_mean"] = None
    folder = make(tmp_path / "seed1", config, rows)
    # A killed run can leave half a line.
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"frames": 9999')
    text = html(tmp_path, folder)
    assert "2 not finite" in Tree(text).words["gradient-norm-alt"]
    drawn = re.search(r'd="(M[^"]+)" data-label="all layers"', text)
    assert drawn is not None and drawn[1].count("M") == 2


def test_unfinished_crashed_and_blind_runs_say_so(config: dict[str, Any], tmp_path: Path) -> None:
    unfinished = make(tmp_path / "a" / "seed1", config, finished=False)
    assert "not finished" in Tree(html(tmp_path, unfinished)).words["verdict"]
    crashed = make(tmp_path / "b" / "seed1", config, finished=False)
    (crashed / "error.txt").write_text("Traceback\nRuntimeError: stumbled over a stone")
    words = Tree(html(tmp_path, crashed)).words["verdict"]
    assert "ended with an error" in words
    assert "stumbled over a stone" in words
    few = [{k: v for k, v in row(i).items() if not k.startswith("diag")} for i in range(ROUNDS)]
    off = config["diagnostics"] | {"name": "off"}
    blind = make(tmp_path / "c" / "seed1", config, few, diagnostics=off)
    tree = Tree(html(tmp_path, blind))
    assert "quiet charts prove nothing" in tree.words["verdict"]
    assert "Not measured: diagnostics=off" in tree.words["rollout-entropy-alt"]


def test_runs_that_have_just_begun_or_lost_a_file_are_still_reported(
    config: dict[str, Any], tmp_path: Path
) -> None:
    begun = make(tmp_path / "a" / "seed1", config, rows=[], finished=False)
    tree = Tree(html(tmp_path, begun))
    assert "no round has been recorded yet" in tree.words["verdict"]
    lost = make(tmp_path / "b" / "seed1", config)
    (lost / "config.yaml").unlink()
    (lost / "result.json").write_text("{")
    (lost / "checkpoint-000000000005.pt").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="cannot be read"):
        tree = Tree(html(tmp_path, begun, lost))
    assert "config.yaml cannot be read" in tree.words["verdict"]
    assert "no entropy maps" in tree.words["verdict"]


def test_several_runs_are_pooled_and_compared(config: dict[str, Any], tmp_path: Path) -> None:
    one = [make(tmp_path / "plain" / f"seed{s}", config, seed=s) for s in (1, 2)]
    clocks = config["clocks"] | {"batch_size": 4096}
    two = make(tmp_path / "wide" / "seed1", config, clocks=clocks, events=[alarm(U)])
    found = runs.experiments(runs.read_runs([*one, two, one[0]]))
    assert [(e.label, len(e.runs)) for e in found] == [("plain", 2), ("wide/seed1", 1)]
    text = html(tmp_path, *one, two)
    tree = Tree(text)
    rows = re.findall(r"<code>([\w.]+)</code>", text[text.index('id="configuration"') :])
    assert rows == ["clocks.batch_size", "seed"] or rows == ["seed", "clocks.batch_size"]
    assert "1 danger" in tree.words["runs"] and "1 min 18 s" in tree.words["runs"]
    assert "plain, 2 seeds: first 1.5, last 392" in tree.words["return--1-alt"]
    assert text.count('<path class="line c0 d0 thin"') >= 2
    assert '<path class="band f0"' in text


def test_runs_that_were_evaluated_otherwise_are_no_seeds_of_one_experiment(
    config: dict[str, Any], tmp_path: Path
) -> None:
    sampled = config["eval"] | {"deterministic": False}
    folders = [
        make(tmp_path / "a", config, seed=1),
        make(tmp_path / "b", config, seed=2),
        make(tmp_path / "c", config, seed=3, eval=sampled),
    ]
    made = runs.read_runs(folders)
    assert made[0].experiment == made[1].experiment != made[2].experiment


def test_a_seed_from_another_folder_is_no_further_seed(
    config: dict[str, Any], tmp_path: Path
) -> None:
    folders = [make(tmp_path / a / f"seed{s}", config, seed=s) for a in ("a", "b") for s in (1, 2)]
    found = runs.experiments(runs.read_runs(folders))
    assert [(e.label, len(e.runs)) for e in found] == [("a", 2), ("b", 2)]


def test_pictures_have_the_scales_of_the_page(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib import pyplot

    folders = [make(tmp_path / "a" / f"seed{s}", config, seed=s) for s in (1, 2)]
    found = runs.read_runs(folders)
    limits: dict[str, Any] = {}

    def keep(picture: Any, path: Path) -> Path:
        plot = picture.axes[0]
        limits[path.stem] = (*plot.get_xlim(), *plot.get_ylim(), plot.get_yscale())
        pyplot.close(picture)
        return path

    monkeypatch.setattr(png, "_save", keep)
    png.export(found, tmp_path / "png")
    for figure in figures(runs.experiments(found)):
        if figure.lines:
            x, y = axes.frames_axis(max(n.series.frames[-1] for n in figure.lines)), scale(figure)
            kind = "log" if y.log else "linear"
            assert limits[figure.key][:4] == pytest.approx((x.low, x.high, y.low, y.high))
            assert limits[figure.key][4] == kind


def test_tasks_have_charts_of_their_own(config: dict[str, Any], tmp_path: Path) -> None:
    other = config | {"task": config["task"] | {"name": "hopper"}}
    folders = [make(tmp_path / "w" / "seed1", config), make(tmp_path / "h" / "seed1", other)]
    titles = [f.title for f in figures(runs.experiments(runs.read_runs(folders)))]
    assert titles[:2] == [
        "Gradient norm, all layers: walker2d",
        "Gradient norm, all layers: hopper",
    ]


def test_maps_become_one_picture_with_a_slider(config: dict[str, Any], tmp_path: Path) -> None:
    from PIL import Image

    folder = make(tmp_path / "seed1", config)
    narrow = torch.zeros(3, 3, dtype=torch.int32)
    narrow[2, 0] = 8
    maps = [[U, torch.ones(3, 3, dtype=torch.int32)], [2 * U, narrow]]
    checkpoint.save(folder, {"diagnose": {"maps": maps}}, 2 * U, 1)
    text = html(tmp_path, folder)
    assert "4,096 frames: 1 of 9 cells visited, the fullest holds 100 % of the states" in text
    assert Tree(text).all("input", type="range")[0]["max"] == "1"
    data = re.search(r"data:image/png;base64,([\w+/=]+)", text)
    assert data is not None
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(data[1]))))
    assert picture.shape == (6, 3)
    # First axis to the right, second axis up: cell [2, 0] is at the lower right.
    assert picture[5, 2] == 255 and (picture[3:] > 0).sum() == 1
    assert len(set(picture[:3].ravel())) == 1
    assert heatmap.shades([(0, np.zeros((2, 2), int))]).max() == 0


def test_a_map_says_what_happened_since_the_one_before() -> None:
    def event(frames: int, kind: str, name: str, severity: str = "danger") -> dict:
        return {"frames": frames, "kind": kind, "name": name, "severity": severity}

    events = [
        event(10, "alarm", "policy_kl"),
        event(20, "alarm", "diversity", "warn"),
        event(20, "alarm", "duplicates"),
        event(20, "alarm", "duplicates"),
        {"frames": 20, "kind": "rescue"},
    ]
    assert heatmap.happened(events, -1, 10) == "; since the map before: policy_kl"
    assert heatmap.happened(events, 10, 20) == "; since the map before: duplicates, rescue"
    assert heatmap.happened(events, 10, 20, most=1).endswith(": duplicates and 1 more")
    assert heatmap.happened(events, 20, 90) == ""


def test_small_videos_are_inside_and_large_ones_are_linked(
    config: dict[str, Any], tmp_path: Path
) -> None:
    folder = make(tmp_path / "run" / "seed1", config)
    (folder / "a best.mp4").write_bytes(b"1" * 1000)
    (folder / "long.mp4").write_bytes(b"1" * page.VIDEO)
    for k in range(2):
        (folder / f"some{k}.mp4").write_bytes(b"1" * 1_900_000)
    tree = Tree(html(tmp_path, folder))
    assert len(tree.all("video")) == 2
    links = [a["href"] for a in tree.all("a") if not str(a["href"]).startswith("#")]
    assert links == ["../run/seed1/long.mp4", "../run/seed1/some1.mp4"]


def test_pages_stay_small(config: dict[str, Any], tmp_path: Path) -> None:
    rows = [row(k, keys=64) for k in range(500)]
    events = [alarm(U * k, "warn") for k in range(1, 500, 5)]
    folders = [make(tmp_path / "run" / "seed1", config, rows, events)]
    counts = torch.randint(0, 9, (45, 45), dtype=torch.int32)
    state = {"diagnose": {"maps": [[k, counts] for k in range(64)]}}
    checkpoint.save(folders[0], state, 1, 1)
    names = ("metrics.jsonl", "events.jsonl", "checkpoint-000000000001.pt")
    copied = {name: (folders[0] / name).read_bytes() for name in names}
    for k in range(2, 21):
        folders.append(make(tmp_path / "run" / f"seed{k}", config, [], seed=k))
        for name, data in copied.items():
            (folders[-1] / name).write_bytes(data)
    read = runs.read_runs(folders)
    assert len(page.page(read[:1], tmp_path).encode()) < 1_000_000
    assert len(page.page(read, tmp_path).encode()) < 20_000_000


def test_long_lists_of_events_are_cut_with_a_word(config: dict[str, Any], tmp_path: Path) -> None:
    events = [alarm(U, "watch")] * 600 + [alarm(U)]
    text = html(tmp_path, make(tmp_path / "seed1", config, events=events))
    assert text.count('data-kind="watch"') == 499 and text.count('data-kind="danger"') == 1
    assert "101 more, less urgent, are in events.jsonl" in text


def test_an_order_given_again_and_again_is_one_row(config: dict[str, Any], tmp_path: Path) -> None:
    order = {"round": 1, "kind": "order", "name": "reseed", "given": False, "text": "WOULD ORDER"}
    events = [order | {"frames": (k + 1) * U} for k in range(5)] + [alarm(U), alarm(2 * U)]
    text = html(tmp_path, make(tmp_path / "seed1", config, events=events))
    assert text.count('data-kind="watch"') == 1
    assert f"and 4 times more, the last at {5 * U:,} frames" in text
    assert text.count('data-kind="danger"') == 2  # alarms are onsets, each of its own


def test_the_verdict_names_the_suspect_and_what_raised_alarms_is_drawn(
    config: dict[str, Any], tmp_path: Path
) -> None:
    rows = [row(k) | {"diag/policy_variance": 0.5 if k < 20 else 0.0} for k in range(40)]
    blind = alarm(22 * U) | {"name": "state_blind"}
    text = html(tmp_path, make(tmp_path / "seed1", config, rows, events=[blind]))
    assert "Suspected: the policy" in text
    assert f"From {21 * U:,} frames on" in text
    assert "Policy variance over states" in text
    assert "Dead hidden units" not in text


def test_changes_can_be_copied_where_they_can_be_typed() -> None:
    from rl_twoclocks.reporting.tables import todo

    def cell(change: str, advice: str = "") -> str:
        return todo(Finding("", "", "", "", "warn", change, advice))

    assert cell("a.b=1 c=2") == '<code class="copy">a.b=1 c=2</code>'
    assert cell("", "see <error.txt>") == "see &lt;error.txt&gt;"
    assert cell("a=1", "or wait") == '<code class="copy">a=1</code> or wait'
    assert cell("") == "-"


def test_no_two_of_many_lines_look_the_same() -> None:
    lines = [Line("", series([1.0]), colour) for colour in range(24)]
    assert len({style_of(line) for line in lines}) == 24


# The command


def test_what_is_no_run_directory_is_answered_with_the_nearest(
    config: dict[str, Any], tmp_path: Path
) -> None:
    folder = make(tmp_path / "walk" / "seed3", config)
    with pytest.raises(ConfigError, match=f"there are runs in {re.escape(str(folder))}"):
        runs.read_runs([tmp_path / "walk" / "seed33"])
    with pytest.raises(ConfigError, match=r"has no metrics.jsonl\); there are runs in .*seed3"):
        runs.read_runs([tmp_path])
    with pytest.raises(ConfigError, match=r"no metrics.jsonl\)$"):
        runs.read_runs([tmp_path / "walk" / "seed3" / "a" / "b" / "c" / "d"])


def test_what_cannot_be_read_is_left_out_and_said(config: dict[str, Any], tmp_path: Path) -> None:
    whole, broken = (make(tmp_path / "walk" / f"seed{k}", config, seed=k) for k in (1, 2))
    lines = (broken / "metrics.jsonl").read_text().splitlines()
    lines[3], lines[5] = lines[3][:40], lines[5].replace('"frames": ', '"frames": "x", "y": ')
    (broken / "metrics.jsonl").write_text("\n".join(lines[:-2]) + "\n")
    (broken / "result.json").write_text(json.dumps({"frames": ROUNDS * U}))
    (broken / "events.jsonl").unlink()
    (broken / "gone.mp4").symlink_to(tmp_path / "nowhere.mp4")
    (broken / "folder.mp4").mkdir()
    found = runs.read_runs([whole, broken])
    assert not found[0].notes and found[0].rounds == ROUNDS
    assert found[1].rounds == ROUNDS - 4
    for said in ("line 4: not JSON", "events.jsonl is missing", "rows are missing: they end at"):
        assert any(said in note for note in found[1].notes), said
    text = html(tmp_path, whole, broken)
    assert "events.jsonl is missing" in text and "gone.mp4" not in text
    alone = html(tmp_path, broken)
    assert "not known whether alarms were raised" in alone and "No alarm was raised" not in alone


def test_the_command_writes_page_and_pictures(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    few = ("frames", "grad_norm/total", "eval/return_mean", "clock/staleness_mean")
    rows = [{k: v for k, v in row(i).items() if k in few} for i in range(ROUNDS)]
    rows[5]["grad_norm/total"] = None
    folder = make(tmp_path / "seed1", config, rows, events=[alarm(U), ORDER])
    checkpoint.save(folder, {"diagnose": {"maps": [[U, torch.eye(4)]]}}, U, 1)
    out, pictures = tmp_path / "deep" / "r.html", tmp_path / "png"
    monkeypatch.setattr(sys, "argv", ["report", str(folder), "--out", str(out)])
    main()
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert str(out) in capsys.readouterr().out
    names = {path.name for path in draw(runs.read_runs([folder]), pictures)}
    curves = {"gradient-norm.png", "return.png", "staleness.png"}
    assert names == curves | {"entropy-maps-1.png", "data-flow-1.png"}


@pytest.mark.parametrize("words", [[], ["--ouch"], ["/nowhere/at/all"], ["x", "--out"]])
def test_bad_arguments_are_bad_configuration(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "argv", ["report", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_an_error_in_plain_words(
    config: dict[str, Any], tmp_path: Path
) -> None:
    folder = make(tmp_path / "seed1", config)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write(runs.read_runs([folder]), tmp_path / "file" / "r.html")


def test_a_folder_of_runs_stands_for_its_runs(config: dict[str, Any], tmp_path: Path) -> None:
    for seed in (1, 2, 10):
        make(tmp_path / "experiment" / f"seed{seed}", config, seed=seed)
    found = runs.read_runs([tmp_path / "experiment"])
    assert [run.directory.name for run in found] == ["seed1", "seed2", "seed10"]
    with pytest.raises(ConfigError):
        runs.read_runs([tmp_path])


def test_long_names_leave_room_for_the_picture() -> None:
    assert png._short("walk/seed1") == "walk/seed1"
    short = png._short("x" * 200 + "/seed1")
    assert len(short) == png.LABEL and short.startswith("…") and short.endswith("x/seed1")
