"""Gazebo's protocol, world files and rules, against numbers made by hand; needs no Gazebo."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from rl_twoclocks.worlds.gazebo import Rules, Start, WorldFile
from rl_twoclocks.worlds.gazebo.protocol import Hello, Link, Names, reset_request, step_request
from rl_twoclocks.worlds.gazebo.rules import load_rules
from rl_twoclocks.worlds.gazebo.tasks import Arm, Cartpole, Diffdrive
from rl_twoclocks.worlds.gazebo.world import shipped


def hello(
    joints: list[str], links: tuple[str, ...] = (), models: tuple[str, ...] = (), **more: object
) -> Hello:
    values = {"protocol": 2, "dt": 0.001, "engine": "ode", "efforts": [1.0] * len(joints)}
    values |= {"joints": joints, "links": links, "models": models} | more
    return Hello.parse(json.dumps(values).encode())


def body(time: float, joints: list[float], links: list[list[float]]) -> bytes:
    numbers = [*joints, *(x for row in links for x in row)]
    return struct.pack(f"<Qd{len(numbers)}d", round(time / 0.001), time, *numbers)


def test_a_reset_is_laid_out_as_the_plugin_reads_it() -> None:
    known = hello(["a::slider", "a::hinge"], models=("a", "b"))
    start = Start(joints={"hinge": (0.5, -1.0)}, models={"b": (1.0, 2.0, 3.0, math.pi / 2)})
    request = reset_request(known, 2**40, start)
    what, seed, *numbers = struct.unpack("<cQ18d", request)
    assert (what, seed) == (b"R", 2**40)
    assert numbers[:4] == [0.0, 0.5, 0.0, -1.0]
    assert np.isnan(numbers[4:11]).all()
    half = math.sqrt(0.5)
    assert numbers[11:] == pytest.approx([1, 2, 3, half, 0, 0, half])


def test_a_step_is_laid_out_as_the_plugin_reads_it() -> None:
    assert step_request(20, np.array([1.5, -2.0])) == struct.pack("<cI2d", b"S", 20, 1.5, -2.0)


def test_a_state_is_read_by_name() -> None:
    known = hello(["a::slider", "a::hinge"], links=("a::cart", "a::pole"))
    rows = [list(range(13)), list(range(100, 113))]
    state = known.state(body(0.25, [1.0, 2.0, 3.0, 4.0], rows))
    assert (state.time, state.iterations) == (0.25, 250)
    assert (state.position("slider"), state.velocity("a::hinge")) == (1.0, 4.0)
    pole = state.link("pole")
    assert pole.place.tolist() == [100, 101, 102]
    assert pole.spin.tolist() == [110, 111, 112]


def test_a_link_knows_heading_and_tilt() -> None:
    none = np.zeros(3)
    for angle in (-2.0, 0.0, 0.7, 3.0):
        turned = Link(none, np.array([math.cos(angle / 2), 0, 0, math.sin(angle / 2)]), none, none)
        assert turned.heading == pytest.approx(angle)
        assert turned.upright == 1
        tilted = Link(none, np.array([math.cos(angle / 2), math.sin(angle / 2), 0, 0]), none, none)
        assert tilted.upright == pytest.approx(math.cos(angle))


def test_names_can_be_short_where_that_is_clear() -> None:
    names = Names("joint", ["a::left", "b::left", "b::right"])
    assert [names["b::left"], names["right"]] == [1, 2]
    with pytest.raises(ValueError, match=r"no one joint 'left'.*a::left, b::left"):
        names["left"]
    with pytest.raises(ValueError, match="did you mean right"):
        names["rigth"]


def test_efforts_without_a_limit_are_infinite() -> None:
    found = hello(["a::x", "a::y", "a::z"], efforts=[-1.0, 5.0, 1e16]).efforts
    assert found.tolist() == [np.inf, 5.0, np.inf]


def test_another_version_of_the_plugin_is_refused() -> None:
    with pytest.raises(ValueError, match="version 1, not 2"):
        hello([], protocol=1)


# -- world files ---------------------------------------------------------------------------------


def world(place: Path, physics: str = "", name: str = "my.world") -> Path:
    path = place / name
    path.write_text(
        f'<sdf version="1.6"><world name="w">{physics}<model name="m">'
        '<joint name="j" type="revolute"/><joint name="k" type="fixed"/></model></world></sdf>'
    )
    return path


def test_a_prepared_world_has_step_speed_and_plugin(tmp_path: Path) -> None:
    physics = (
        '<physics type="ode"><max_step_size>0.002</max_step_size>'
        "<real_time_update_rate>1000</real_time_update_rate></physics>"
    )
    file = WorldFile.read(world(tmp_path, physics))
    assert file.step == 0.002
    assert file.joints == {"j"}
    text = file.prepared(0.001, Path("/x/liblockstep.so"))
    found = ElementTree.fromstring(text).find("world")
    assert found is not None
    assert [e.text for e in found.iterfind("physics/max_step_size")] == ["0.001"]
    assert [e.text for e in found.iterfind("physics/real_time_update_rate")] == ["0"]
    assert [e.get("filename") for e in found.iterfind("plugin")] == ["/x/liblockstep.so"]
    assert file.prepared(0.001, Path("/x/liblockstep.so")) == text


def test_a_world_without_physics_gets_it(tmp_path: Path) -> None:
    file = WorldFile.read(world(tmp_path))
    assert file.step == 0.001
    found = ElementTree.fromstring(file.prepared(0.001, Path("p.so")))
    assert found.findtext("world/physics/max_step_size") == "0.001"


def test_of_two_profiles_the_wrong_one_is_told(tmp_path: Path) -> None:
    profile = '<physics type="ode"><max_step_size>{}</max_step_size></physics>'
    physics = profile.format(0.001) + profile.format(0.01)
    assert WorldFile.read(world(tmp_path, physics)).step == 0.01


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<sdf><world>", "is not XML"),
        ("<robot/>", "no <sdf><world>: its root is <robot>"),
        ("<sdf/>", "no <sdf><world>"),
        ("<sdf><world/><world/></sdf>", "several worlds"),
        ('<sdf><world><physics type="dart"/></world></sdf>', 'dart.*sliding joints.*write "ode"'),
        ('<sdf><world><physics type="oed"/></world></sdf>', "no such engine"),
    ],
)
def test_a_world_that_cannot_be_run_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.world"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        WorldFile.read(path)


def test_a_missing_world_names_the_nearest(tmp_path: Path) -> None:
    world(tmp_path, name="cartpole.world")
    with pytest.raises(ValueError, match=r"no such file. did you mean .*/cartpole\.world"):
        WorldFile.read(tmp_path / "cartpol.world")


@pytest.mark.parametrize("name", ["cartpole", "arm", "diffdrive"])
def test_shipped_worlds_run_at_a_millisecond(name: str) -> None:
    assert WorldFile.read(shipped(name)).step == 0.001


# -- rules ---------------------------------------------------------------------------------------


def test_rules_are_imported_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_rules("rl_twoclocks.worlds.gazebo.tasks:Arm") is Arm
    with pytest.raises(ValueError, match="write module:Class"):
        load_rules("tasks.Arm")
    with pytest.raises(ValueError, match=r"Armm is no class.*those in .*Cartpole, Arm, Diffdrive"):
        load_rules("rl_twoclocks.worlds.gazebo.tasks:Armm")
    with pytest.raises(ValueError, match="nonesuch"):
        load_rules("nonesuch:Arm")


def test_the_cartpole_falls_by_angle_or_place_and_succeeds_in_time() -> None:
    known, rules = hello(["c::slider", "c::hinge"]), Cartpole()

    def judge(place: float, angle: float, late: bool) -> tuple[float, bool, bool]:
        return rules.judge(known.state(body(1.0, [place, angle, 0, 0], [])), np.zeros(1), late)

    assert judge(0.0, 0.1, False) == (1.0, False, False)
    assert judge(2.3, -0.2, True) == (1.0, False, True)
    assert judge(2.5, 0.0, True) == (1.0, True, False)
    assert judge(0.0, -0.22, False) == (1.0, True, False)


def test_the_arms_tip_is_where_geometry_says() -> None:
    known, rules = hello(["a::shoulder", "a::elbow"]), Arm()
    rules.target = np.array([-0.40, -0.31])
    # A quarter turn about y takes "down" to "minus x"; the elbow turns back: the forearm hangs down.
    state = known.state(body(0.0, [math.pi / 2, -math.pi / 2, 0, 0], []))
    elbow, tip = rules.points(state)
    assert elbow == pytest.approx([-0.40, 0.0])
    assert tip == pytest.approx([-0.40, -0.35])
    expected = [-0.40, 0.0, -0.40, -0.35, 0, 0, -0.40, -0.31, 0.0, 0.04]
    assert rules.observe(state) == pytest.approx(expected)
    full = np.array([15.0, 5.0])
    bonus = 0.5 * math.exp(-0.4)
    assert rules.judge(state, full, True) == pytest.approx((-0.04 + bonus - 0.02, False, True))
    assert not rules.judge(state, full, False).success
    rules.target = np.array([0.0, -0.35])
    bonus = 0.5 * math.exp(-4.0)
    assert rules.judge(state, 0 * full, True) == pytest.approx((-0.40 + bonus, False, False))


def test_targets_of_the_arm_are_within_reach_and_evenly_spread() -> None:
    rules, random = Arm(), np.random.default_rng(0)
    radii = []
    for _ in range(4000):
        rules.begin(random)
        radii.append(float(np.linalg.norm(rules.target)))
    assert min(radii) >= 0.25
    assert max(radii) <= 0.70
    # Evenly over the area between 0.25 and 0.70: half of it lies within sqrt((0.25^2 + 0.7^2) / 2).
    assert np.median(radii) == pytest.approx(0.5256, abs=0.01)


def test_the_robot_sees_its_goal_in_its_own_frame() -> None:
    links = ("r::base",)
    known, rules = hello(["r::left", "r::right"], links, ("robot",)), Diffdrive()
    rules.goal, rules.distance = np.array([1.0, 3.0]), 3.0
    # At (1, 1), heading along y, driving at 0.5 m/s, turning at 0.2 rad/s: the goal is 2 m ahead.
    turn = math.pi / 4
    base = [1, 1, 0.1, math.cos(turn), 0, 0, math.sin(turn), 0, 0.5, 0, 0, 0, 0.2]
    state = known.state(body(0.0, [0, 0, 7, 8], [base]))
    assert rules.observe(state) == pytest.approx([2, 0, 1, 0, 2, 0.5, 0.2, 7, 8])
    assert rules.judge(state, np.zeros(2), False) == pytest.approx((0.99, False, False))
    rules.goal = np.array([1.1, 1.1])
    reward, terminated, success = rules.judge(state, np.zeros(2), True)
    assert (terminated, success) == (True, True)
    assert reward == pytest.approx(2 - math.sqrt(0.02) - 0.01 + 10)


def test_episodes_of_the_robot_begin_away_from_the_goal() -> None:
    rules, random = Diffdrive(), np.random.default_rng(1)
    for _ in range(500):
        x, y, _, heading = rules.begin(random).models["robot"]
        assert rules.distance == pytest.approx(math.dist((x, y), rules.goal))
        assert rules.distance >= 0.7
        assert max(abs(x), abs(y), *abs(rules.goal)) <= 2.0
        assert abs(heading) <= math.pi


def test_rules_must_be_written() -> None:
    with pytest.raises(NotImplementedError):
        Rules().observe(hello([]).state(body(0.0, [], [])))
