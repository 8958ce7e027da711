"""The W&B view: built and checked without network."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from rl_twoclocks import ConfigError
from rl_twoclocks.record import workspace

pytest.importorskip("wandb_workspaces")


def sections() -> list[dict[str, Any]]:
    found = workspace.spec(workspace.workspace("me", "mine"))
    return found["section"]["panelBankConfig"]["sections"]


def test_gradient_norm_and_kl_come_first_then_the_return() -> None:
    names = [section["name"] for section in sections()]
    assert [name.partition(". ")[2] for name in names[:4]] == [
        "Gradient norm", "KL", "Return", "The two clocks",
    ]  # fmt: skip
    first = [
        panel["config"]["metrics"] for section in sections()[:3] for panel in section["panels"]
    ]
    assert first == [
        ["grad_norm/total"], ["diag/grad_norm_max"], ["diag/kl_behaviour"], ["train/kl"],
        ["rollout/return_mean"], ["eval/return_mean"],
    ]  # fmt: skip


def test_every_panel_is_over_frames_and_of_something_that_is_recorded() -> None:
    view = workspace.spec(workspace.workspace("me", "mine"))
    assert view["section"]["settings"]["xAxis"] == "frames"
    panels = [panel for section in sections() for panel in section["panels"]]
    assert {panel["config"]["xAxis"] for panel in panels} == {"frames"}
    assert all(p["config"].get("metrics") or p["config"].get("metricRegex") for p in panels)
    # The metrics that the report computes are not recorded.
    assert not any("alert line" in m for p in panels for m in p["config"].get("metrics", []))
    opened = [section["isOpen"] for section in sections()]
    assert opened == sorted(opened, reverse=True) and opened.count(False) == len(workspace.MORE)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["workspace", *words])
    try:
        workspace.main()
    except SystemExit as ended:
        return ended.code
    return 0


def test_the_command_prints_the_view_without_sending_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workspace, "save", lambda view: pytest.fail("sent"))
    assert run(monkeypatch, "me/mine", "--json") == 0
    assert json.loads(capsys.readouterr().out)["section"]["panelBankConfig"]["sections"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mine"], "write entity/project"),
        (["a/b/c"], "write entity/project"),
        (["me/mine", "--jsno"], "did you mean --json"),
    ],
)
def test_bad_words_are_bad_configuration(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *words) == 2
    assert said in capsys.readouterr().err


def test_without_a_login_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_twoclocks.record.wandb.logged_in", lambda wandb: False)
    with pytest.raises(ConfigError, match="wandb login"):
        workspace.save(workspace.workspace("me", "mine"))


def test_a_refusal_is_said_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_twoclocks.record.wandb.logged_in", lambda wandb: True)
    view = workspace.workspace("me", "mine")

    def refuse(self: object) -> None:
        raise PermissionError("no such project")

    monkeypatch.setattr(type(view), "save", refuse)
    with pytest.raises(ConfigError, match="did not take the view: no such project"):
        workspace.save(view)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb_workspaces.workspaces", None)
    with pytest.raises(ConfigError, match=r"'\.\[workspace\]'"):
        workspace.workspace("me", "mine")
