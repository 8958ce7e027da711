"""Tests of the live display."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from rl_twoclocks.record import Display

METRICS = {
    "rollout/return_mean": 1234.4,
    "eval/return_mean": -12.345,
    "train/kl": 0.011,
    "diag/kl_behaviour": 0.0123,
    "grad_norm/total": 0.5123,
    "clock/first_ratio_error": 1.2e-7,
    "clock/staleness_mean": 0.75,
    "clock/staleness_max": 3.0,
    "clock/ratio_measured": 1.02,
    "clock/ratio": 4.0,
    "clock/update_steps": 38400.0,
    "clock/policy_version": 120.0,
    "time/frames_per_second": 7654.3,
}
ORDER = [
    "120", "38,400", "50,000", "100,000", "4", "1.02", "0.75", "3", "1.2e-07",
    "0.512", "0.0123", "0.011", "1,234", "-12.3", "7,654", "left",
]  # fmt: skip


class Screen:
    """A display on a recorded console, with a clock that the test moves."""

    def __init__(self, mode: Any, terminal: bool = False, width: int = 60) -> None:
        self.now = 100.0
        self.file = io.StringIO()
        console = Console(file=self.file, width=width, force_terminal=terminal)
        self.display = Display(mode, 100_000, "a [b] c", console=console, clock=lambda: self.now)

    @property
    def text(self) -> str:
        return self.file.getvalue()

    @property
    def lines(self) -> list[str]:
        """The plain lines after the title and the legend."""
        return self.text.splitlines()[2:]

    def panel(self) -> str:
        """The panel as text, 60 columns wide."""
        file = io.StringIO()
        Console(file=file, width=60).print(self.display.render())
        return file.getvalue()


def in_order(text: str, words: list[str]) -> bool:
    position = 0
    for word in words:
        position = text.find(word, position) + len(word)
        if position < len(word):
            return False
    return True


def test_panel_shows_clocks_then_gradient_and_kl_then_return() -> None:
    screen = Screen("rich", terminal=True)
    screen.display.update(METRICS, frames=50_000)
    panel = screen.panel()
    assert in_order(panel, ORDER), panel
    assert "a [b] c" in panel
    assert len(panel.splitlines()) == 11  # a row each: nothing wraps at 60 columns


def test_plain_line_has_the_same_order() -> None:
    screen = Screen("plain")
    with screen.display:
        screen.display.update(METRICS, frames=50_000)
    assert len(screen.lines) == 1
    assert in_order(screen.lines[0], ORDER[:-1]), screen.lines


def test_missing_metrics_are_dashes_and_old_ones_stay() -> None:
    screen = Screen("plain")
    with screen.display:
        screen.display.update({"eval/return_mean": 5.0}, frames=1)
        screen.now += 5
        screen.display.update({"train/kl": float("nan")}, frames=2)
    assert "clock ratio -/-" in screen.lines[0]
    assert "return -/5" in screen.lines[1]
    assert "KL -/nan" in screen.lines[1]


def test_a_first_ratio_is_of_its_own_round() -> None:
    screen = Screen("plain")
    with screen.display:
        screen.display.update({"clock/first_ratio_error": 2e-7, "train/kl": 0.01}, frames=1)
        screen.now += 5
        screen.display.update({}, frames=2)
    assert "first ratio 2e-07" in screen.lines[0]
    assert "first ratio -" in screen.lines[1]
    assert "KL -/0.01" in screen.lines[1]


def test_plain_prints_the_first_one_an_interval_and_the_last() -> None:
    screen = Screen("plain")
    with screen.display:
        for second in range(13):
            screen.now = 100.0 + second
            screen.display.update({}, frames=1000 + second)
    screen.display.close()
    frames = [line.split("env clock ")[1].split("/")[0] for line in screen.lines]
    assert frames == ["1,000", "1,005", "1,010", "1,012"]


def test_time_left_comes_from_the_measured_speed() -> None:
    screen = Screen("plain")
    with screen.display:
        screen.display.update({}, frames=20_000)  # resumed: these frames were not made now
        screen.now += 10
        screen.display.update({}, frames=21_000)
    assert "speed -/-" in screen.lines[0]
    assert "speed -/0:13:10" in screen.lines[1]  # 79,000 frames at 100 a second


def test_rich_draws_at_most_four_times_a_second() -> None:
    screen = Screen("rich", terminal=True)
    with screen.display:
        before = screen.text.count("policy clock")
        for step in range(100):
            screen.now = 100.0 + step / 100
            screen.display.update(METRICS, frames=step)
            screen.display.message("news")
        assert screen.text.count("policy clock") - before == 4
    assert "99 frames" in screen.text  # the last update is drawn on the way out


def test_rich_shows_the_last_five_messages_without_markup() -> None:
    screen = Screen("rich", terminal=True)
    with screen.display:
        for number in range(7):
            screen.display.message(f"[red]event {number}")
    panel = screen.panel()
    assert in_order(panel, ["speed", *(f"[red]event {number}" for number in range(2, 7))])
    assert "event 1" not in panel


def test_rich_prints_messages_that_come_after_the_panel() -> None:
    screen = Screen("rich", terminal=True)
    with screen.display:
        pass
    screen.display.message("saved")
    assert screen.text.endswith("saved\n")


def test_a_stall_has_no_time_left() -> None:
    screen = Screen("plain")
    with screen.display:
        screen.display.update({}, frames=1_000)
        screen.now += 10
        screen.display.update({}, frames=2_000)
        screen.now += 3_600
        screen.display.update({}, frames=2_000)
        screen.now += 10
        screen.display.update({}, frames=500)  # rolled back
    assert [line.rsplit("/", 1)[1] for line in screen.lines] == ["-", "0:16:20", "-", "-"]


def test_plain_messages_come_at_once() -> None:
    screen = Screen("plain")
    with screen.display:
        screen.display.message("long [bold] " + "x" * 100)
        assert screen.lines == ["long [bold] " + "x" * 100]


def test_none_is_silent() -> None:
    screen = Screen("none")
    with screen.display:
        screen.display.update(METRICS, frames=1)
        screen.display.message("hello")
    assert screen.text == ""


@pytest.mark.parametrize(("terminal", "mode"), [(True, "rich"), (False, "plain")])
def test_auto_follows_the_terminal(terminal: bool, mode: str) -> None:
    assert Screen("auto", terminal=terminal).display.mode == mode
