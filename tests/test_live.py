"""The live page: what it shows, what it never serves, and that it renews itself in place."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_twoclocks import ConfigError, compose
from rl_twoclocks.record import checkpoint
from rl_twoclocks.reporting import live
from rl_twoclocks.rundir import plain
from tests.browser import CHROMIUM, Browser
from tests.run_folders import ORDER, ROUNDS, U, alarm, make, row


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return plain(compose(["task=walker2d", "total_frames=81920"]))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[live.LiveServer]:
    root = tmp_path / "runs"
    root.mkdir()
    with live.LiveServer(root) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def ask(server: live.LiveServer, path: str, host: str | None = None) -> tuple[int, str]:
    link = http.client.HTTPConnection(*server.server_address[:2], timeout=30)
    try:
        link.putrequest("GET", path, skip_host=host is not None)
        if host is not None:
            link.putheader("Host", host)
        link.endheaders()
        reply = link.getresponse()
        return reply.status, reply.read().decode(errors="replace")
    finally:
        link.close()


def state(server: live.LiveServer) -> dict[str, Any]:
    code, text = ask(server, "/version")
    assert code == 200
    return json.loads(text)


def append(folder: Path, *rows: dict[str, Any], torn: str = "") -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(r) + "\n" for r in rows) + torn)


def test_a_folder_without_runs_waits_for_them(
    server: live.LiveServer, config: dict[str, Any]
) -> None:
    code, text = ask(server, "/")
    assert code == 200 and "There is no run below" in text
    before = state(server)
    assert before["words"] == "0 runs, 0 going on."
    make(server.board.root / "walk" / "seed1", config, finished=False)
    after = state(server)
    assert after["words"] == "1 run, 1 going on."
    assert after["version"] != before["version"]
    assert "The run is going on." in ask(server, "/")[1]


def test_new_rows_new_runs_and_ends_are_noticed(
    server: live.LiveServer, config: dict[str, Any]
) -> None:
    folder = make(server.board.root / "walk" / "seed1", config, finished=False)
    first = ask(server, "/")[1]
    assert "last 391" in first and f'data-version="{state(server)["version"]}"' in first
    append(folder, row(ROUNDS) | {"rollout/return_mean": 777.0}, torn='{"frames": 99')
    assert "last 777" in ask(server, "/")[1]
    make(server.board.root / "deep" / "er" / "still" / "seed2", config, seed=2, finished=False)
    assert state(server)["words"] == "2 runs, 2 going on."
    assert "walk/seed1" in (text := ask(server, "/")[1]) and "still/seed2" in text
    (folder / "result.json").write_text("{}")
    assert state(server)["words"] == "2 runs, 1 going on."
    assert "finished" in ask(server, "/")[1]
    shutil.rmtree(folder)
    assert state(server)["words"] == "1 run, 1 going on."
    assert "walk/seed1" not in ask(server, "/")[1]


def test_a_silent_run_is_no_longer_going_on(
    server: live.LiveServer, config: dict[str, Any]
) -> None:
    folder = make(server.board.root / "walk" / "seed1", config, finished=False)
    before = state(server)["version"]
    long_ago = time.time() - 2 * live.SILENT
    os.utime(folder / "metrics.jsonl", (long_ago, long_ago))
    assert state(server)["words"] == "1 run, 0 going on."
    assert state(server)["version"] != before
    assert "The run has not finished." in ask(server, "/")[1]


def test_only_runs_that_changed_are_read_again(
    server: live.LiveServer, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [make(server.board.root / "w" / f"seed{s}", config, seed=s) for s in (1, 2)]
    read: list[str] = []

    def noted(folder: Path, label: str, real: Any = live.read_run) -> Any:
        read.append(folder.name)
        return real(folder, label)

    monkeypatch.setattr(live, "read_run", noted)
    ask(server, "/"), ask(server, "/")
    assert read == ["seed1", "seed2"]
    append(folders[1], row(ROUNDS))
    ask(server, "/")
    assert read == ["seed1", "seed2", "seed2"]


def test_a_broken_run_leaves_the_others_in_sight(
    server: live.LiveServer, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(server.board.root / "good" / "seed1", config)
    broken = make(server.board.root / "<i>broken" / "seed1", config)
    (broken / "metrics.jsonl").write_text("[1]\n{}\n")
    code, text = ask(server, "/")
    assert code == 200 and "last 391" in text
    assert "&lt;i&gt;broken/seed1" in text and "line 1: not JSON" in text and "<i>" not in text

    def gone(folder: Path, label: str) -> Any:
        raise FileNotFoundError("<i>it was deleted")

    monkeypatch.setattr(live, "read_run", gone)
    make(server.board.root / "new" / "seed1", config)
    text = ask(server, "/")[1]
    assert "new/seed1 cannot be shown: &lt;i&gt;it was deleted" in text and "last 391" in text


def test_many_runs_are_cut_to_those_written_last(
    server: live.LiveServer, config: dict[str, Any]
) -> None:
    now = time.time()
    for seed in range(1, live.MOST + 3):
        folder = make(server.board.root / "w" / f"seed{seed}", config, [row(0)], seed=seed)
        os.utime(folder / "metrics.jsonl", (now - seed, now - seed))
    assert state(server)["words"].startswith(f"{live.MOST} runs")
    assert "w/seed20" in (text := ask(server, "/")[1]) and "w/seed21" not in text


def test_nothing_but_the_page_and_its_videos_is_served(
    server: live.LiveServer, config: dict[str, Any], tmp_path: Path
) -> None:
    secret = tmp_path / "secret.mp4"
    secret.write_text("secret")
    folder = make(server.board.root / "walk" / "seed1", config)
    (folder / "a best.mp4").write_bytes(b"a film")
    (folder / "notes.txt").write_text("secret")
    text = ask(server, "/")[1]
    assert 'href="walk/seed1/a%20best.mp4"' in text and "data:video" not in text
    assert ask(server, "/walk/seed1/a%20best.mp4") == (200, "a film")
    for path in (
        "/../secret.mp4", "/%2e%2e/secret.mp4", "/walk/seed1/../../../secret.mp4", str(secret),
        "//" + str(secret), "/walk/seed1/notes.txt", "/walk/seed1/metrics.jsonl", "/walk/",
        "http://127.0.0.1/../secret.mp4", "/page", "/walk/seed1/a best.mp4%00",
    ):  # fmt: skip
        code, said = ask(server, path.replace(" ", "%20"))
        assert (code, "secret" in said) == (404, False), path


def test_a_part_of_a_video_can_be_asked_for(
    server: live.LiveServer, config: dict[str, Any]
) -> None:
    folder = make(server.board.root / "walk" / "seed1", config)
    (folder / "film.mp4").write_bytes(b"0123456789")
    ask(server, "/")
    for asked, code, said, told in (
        ("bytes=0-", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-99", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-30", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
        ("bytes=-0", 416, b"", "bytes */10"),
        # What is no single range of bytes is answered in full.
        *((x, 200, b"0123456789", None) for x in ("bytes=4-2", "bytes=-", "bytes=0-1,3-4", "b=1-")),
        (f"bytes=0-{'9' * 5000}", 200, b"0123456789", None),
    ):
        link = http.client.HTTPConnection(*server.server_address[:2], timeout=30)
        link.request("GET", "/walk/seed1/film.mp4", headers={"Range": asked})
        reply = link.getresponse()
        found = reply.status, reply.read(), reply.headers["Content-Range"]
        assert found == (code, said, told), asked
        link.close()


def test_links_that_lead_out_of_the_folder_are_not_followed(
    server: live.LiveServer, config: dict[str, Any], tmp_path: Path
) -> None:
    outside = make(tmp_path / "outside" / "seed1", config)
    (server.board.root / "linked").symlink_to(outside)
    inside = make(server.board.root / "walk" / "seed1", config)
    assert state(server)["words"].startswith("1 run,")
    (outside / "film.mp4").write_bytes(b"secret")
    (inside / "film.mp4").symlink_to(outside / "film.mp4")
    assert state(server)["words"].startswith("0 runs,")
    (inside / "film.mp4").unlink()
    (inside / "same.mp4").symlink_to(inside / "result.json")
    assert state(server)["words"].startswith("1 run,")


def test_another_name_for_this_machine_is_refused(
    server: live.LiveServer, config: dict[str, Any]
) -> None:
    make(server.board.root / "walk" / "seed1", config)
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[", "0.0.0.0"):
        for path in ("/", "/version"):
            code, said = ask(server, path, host)
            assert (code, "walk" in said) == (403, False), host
    for host in ("localhost", "LOCALHOST:9000", "127.0.0.1:1"):
        assert ask(server, "/version", host)[0] == 200


def test_the_server_listens_on_the_loopback_interface_alone(server: live.LiveServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_address[1]}/"
    with pytest.raises(ConfigError, match=r"port \d+ cannot be used.*without --port"):
        live.LiveServer(server.board.root, server.server_address[1])
    with pytest.raises(ConfigError, match="is no directory"):
        live.LiveServer(server.board.root / "nowhere")


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_the_page_renews_itself_without_losing_the_readers_place(
    server: live.LiveServer, config: dict[str, Any], tmp_path: Path
) -> None:
    events = [alarm(U), ORDER]
    folder = make(server.board.root / "walk" / "seed1", config, events=events, finished=False)
    maps = [[U, torch.ones(3, 3, dtype=torch.int32)], [2 * U, torch.eye(3, dtype=torch.int32)]]
    checkpoint.save(folder, {"diagnose": {"maps": maps}}, 2 * U, 1)
    with Browser(tmp_path / "profile") as browser:
        browser.open(server.address)
        browser.run("document.querySelector('#kl .plot').focus()")
        browser.key("End", 35)
        browser.run("document.querySelector('#flow details').open = true")
        browser.run(
            "const slider = document.querySelector('.heat input'); slider.value = 0;"
            "slider.dispatchEvent(new Event('input', {bubbles: true}));"
            "document.querySelector('.filter input[value=order]').click();"
            "document.querySelector('#kl').scrollIntoView(); window.kept = document.activeElement; 1"
        )
        read = "document.querySelector('#kl output').textContent"
        place = "Math.round(document.querySelector('#kl').getBoundingClientRect().top)"
        before = browser.run(place)
        assert browser.run(read).startswith("81,920 frames: behaviour to current 0.01")
        append(folder, row(ROUNDS) | {"diag/kl_behaviour": 0.5})
        (folder / "events.jsonl").write_text(
            "".join(json.dumps(e) + "\n" for e in [*events, alarm(2 * U, "warn")])
        )
        browser.until("document.querySelector('#kl-alt').textContent.includes('last 0.5')")
        assert browser.run("document.activeElement === window.kept")
        assert browser.run(place) == before
        # The cursor stays at its share of the axis, which has grown.
        assert "frames: behaviour to current" in browser.run(read)
        assert browser.run("document.querySelector('#flow details').open")
        assert browser.run("document.querySelector('.heat output').textContent").startswith("2,048")
        shown = "[...document.querySelectorAll('#events tbody tr')].map(r => !r.hidden)"
        assert browser.run(shown) == [True, True, False]
        (folder / "result.json").write_text("{}")
        make(server.board.root / "walk" / "seed2", config, seed=2, finished=False)
        browser.until("document.querySelector('h1').textContent.startsWith('2 runs')")
        browser.until("document.querySelector('#live-words').textContent.includes('1 going on')")
        assert browser.run("document.querySelectorAll('.plot > .cursor').length") == 14
        if out := os.environ.get("PICTURES"):
            browser.picture(Path(out) / "live-charts.png")
            browser.run("scrollTo(0, 0)")
            browser.picture(Path(out) / "live-top.png")
        assert browser.errors == []


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.parametrize("rounds", [1, 12])
def test_a_lone_point_can_be_read(
    server: live.LiveServer, config: dict[str, Any], tmp_path: Path, rounds: int
) -> None:
    """One evaluation, or one round at all: its value is said wherever the cursor is."""
    rows = [row(k) for k in range(rounds)]
    rows[-1]["eval/return_mean"] = 99.0
    for k in range(rounds - 1):
        rows[k].pop("eval/return_mean", None)
    make(server.board.root / "walk" / "seed1", config, rows=rows, finished=False)
    with Browser(tmp_path / "profile") as browser:
        browser.open(server.address)
        said = []
        for k in range(browser.run("document.querySelectorAll('.plot').length")):
            browser.run(f"document.querySelectorAll('.plot')[{k}].focus()")
            browser.key("End", 35)
            said.append(
                browser.run(
                    f"document.querySelectorAll('.plot')[{k}].closest('figure')"
                    ".querySelector('output').textContent"
                )
            )
        assert any("evaluation 99" in text for text in said), said
        assert not any("NaN" in text for text in said), said
        assert browser.errors == []
