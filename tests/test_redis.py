"""Collection through a real Redis server, and messages that must not be trusted."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch
from tensordict import TensorDict

import rl_twoclocks
from rl_twoclocks.collect import Published
from rl_twoclocks.collect.messages import (
    RefusedError,
    pack_policy,
    pack_slice,
    unpack_policy,
    unpack_slice,
)
from rl_twoclocks.config import ConfigError
from rl_twoclocks.config_commands import GeneratorCommandConfig
from rl_twoclocks.configure import assign, compose
from rl_twoclocks.envs import NonFiniteError, WorkerError
from rl_twoclocks.record import read_metrics
from rl_twoclocks.rundir import plain
from tests.command_envs import command
from tests.envs import run_config
from tests.sources import collecting, publish, true_stamps

redis_server = pytest.mark.redis


class Server:
    """A redis-server of this test's own."""

    def __init__(self, *options: str) -> None:
        if shutil.which("redis-server") is None:
            pytest.skip("redis-server is not installed: apt-get install redis-server")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.options = options
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        words = [
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        self.process = subprocess.Popen(
            ["redis-server", *words, *self.options], stdout=subprocess.DEVNULL
        )
        limit = time.monotonic() + 10
        while time.monotonic() < limit:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.02)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.kill()


def words(server: Server, *more: str) -> list[str]:
    return ["collect=redis", f"collect.redis.url={server.url}", "collect.patience=30", *more]


def example() -> TensorDict:
    return TensorDict(
        {
            "observation": torch.randn(2, 3, 4),
            "reward": torch.randn(2, 3),
            "policy_version": torch.full((2, 3), 5),
        },
        batch_size=(2, 3),
    )


def test_a_slice_and_a_policy_come_back_as_they_went() -> None:
    frames = example()
    again = unpack_slice(pack_slice(frames), frames, range(6))
    assert all(torch.equal(again[key], frames[key]) for key in frames.keys())  # noqa: SIM118
    policy = Published(torch.randn(7), torch.randn(2), torch.rand(2), 12)
    back = unpack_policy(pack_policy(policy), policy)
    assert back.version == 12
    assert torch.equal(back.parameters, policy.parameters)


def changed(**tensors: torch.Tensor | None) -> bytes:
    frames = dict(example().items())
    for key, value in tensors.items():
        if value is None:
            del frames[key]
        else:
            frames[key] = value
    return pack_slice(TensorDict(frames, batch_size=[]))


def headed(header: dict, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "no safetensors"),
        (b"\xff" * 64, "no safetensors"),
        (pickle.dumps({"reward": 1}), "no safetensors"),
        (b"0" * 10_000_000, "10000000 bytes where"),
        *(
            (
                headed(
                    {"x": {"dtype": kind, "shape": shape, "data_offsets": [0, len(data)]}}, data
                ),
                why,
            )
            for kind, shape, data, why in (
                ("F32", [0, 2**63 - 1], b"", "keys differ"),
                ("F32", [0, 2**63], b"", "no safetensors"),
                ("F32", [2**40, 2**40], b"0000", "no safetensors"),
                ("F4", [1], b"0", "no safetensors"),
            )
        ),
        (headed({"x": []}), "no safetensors"),
        (changed(reward=None), "keys differ: reward"),
        (changed(extra=torch.zeros(2, 3)), "keys differ: extra"),
        (changed(reward=torch.zeros(2, 4)), "reward is torch.float32 (2, 4)"),
        (changed(reward=torch.zeros(2, 3, dtype=torch.float64)), "reward is torch.float64"),
        (changed(reward=torch.full((2, 3), float("nan"))), "reward is not finite"),
        (changed(observation=torch.full((2, 3, 4), float("inf"))), "observation is not finite"),
        (changed(observation=torch.full((2, 3, 4), 1e35)), "observation is beyond 1e+10"),
        (
            changed(policy_version=torch.full((2, 3), 6)),
            "version 6 was never published; the newest is 5",
        ),
        (changed(policy_version=torch.full((2, 3), 4)), "version 4 was never published"),
        (changed(policy_version=torch.full((2, 3), -1)), "version -1"),
        (changed(policy_version=torch.arange(6).view(2, 3)), "several versions"),
    ],
)
def test_what_is_no_slice_is_refused_with_its_reason(message: bytes, why: str) -> None:
    with pytest.raises(RefusedError) as refused:
        unpack_slice(message, example(), {0, 5})
    assert why in str(refused.value)


def policy_slice(**changes: torch.Tensor) -> TensorDict:
    """A slice of two environments and three decisions of a Gaussian policy."""
    frames = dict(example().items()) | {
        "action": torch.randn(2, 3, 1),
        "loc": torch.randn(2, 3, 1),
        "scale": torch.ones(2, 3, 1),
        "behaviour_log_prob": torch.zeros(2, 3),
        "cut": torch.zeros(2, 3, dtype=torch.bool),
    }
    return TensorDict(frames | changes, batch_size=(2, 3))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"scale": torch.zeros(2, 3, 1)}, "scale is not positive"),
        ({"scale": torch.full((2, 3, 1), 1e-30)}, "no probability"),
        ({"policy_version": torch.full((2, 3), 1)}, "oldest is 3"),
    ],
)
def test_a_stated_policy_that_cannot_be_is_refused(changes: dict, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        unpack_slice(pack_slice(policy_slice(**changes)), policy_slice(), range(6), oldest=3)


@pytest.mark.parametrize("action", [-1, 3])
def test_a_choice_that_there_is_not_is_refused(action: int) -> None:
    frames = policy_slice().exclude("loc", "scale")
    frames["logits"], frames["action"] = torch.randn(2, 3, 3), torch.zeros(2, 3, dtype=torch.int64)
    bad = frames.clone()
    bad["action"][0, 0] = action
    with pytest.raises(RefusedError, match="3 choices"):
        unpack_slice(pack_slice(bad), frames, range(6))


def test_log_probabilities_are_not_believed_and_the_end_is_a_cut() -> None:
    sent = policy_slice(behaviour_log_prob=torch.full((2, 3), -1e30))
    got = unpack_slice(pack_slice(sent), policy_slice(), range(6))
    expected = torch.distributions.Normal(sent["loc"], sent["scale"]).log_prob(sent["action"])
    torch.testing.assert_close(got["behaviour_log_prob"], expected.squeeze(-1))
    assert got["cut"].tolist() == [[False, False, True]] * 2


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("rediss://learner:s3cret@host:6380/2", "rediss://learner:***@host:6380/2"),
        ("redis://:s3cret@host", "redis://:***@host"),
        ("redis://user:s3:cret@host", "redis://user:***@host"),
        ("redis://user:s3@cret@host:1", "redis://user:***@host:1"),
        ("redis://user:s3/cret@host", "redis://user:***@host"),
        ("redis://host?password=s3cret", "redis://host"),
        ("redis://host:6379", "redis://host:6379"),
    ],
)
def test_passwords_are_not_written_down(address: str, shown: str, tmp_path: Path) -> None:
    from rl_twoclocks.rundir import plain

    config = run_config("Target", tmp_path, "collect=redis", f"collect.redis.url='{address}'")
    assert config.collect.redis.url == address
    assert plain(config)["collect"]["redis"]["url"] == shown


@pytest.mark.parametrize("address", ["redis://user:{}@host:port", "redis://:{}/x@10.0.0.1:6379"])
def test_an_address_with_a_bad_port_does_not_give_its_password_away(address: str) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    with pytest.raises(ConfigError) as error:
        RedisQueue(address.format("s3" + "cret"), "run", patience=1)
    # Nor does what a run writes down of its end.
    assert "s3cret" not in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize("more", [["-m"], ["-m", "sweep.jobs=2"], ["sweep=optuna"]])
@pytest.mark.parametrize("address", ["redis://:s3cret@host", "redis://host?password=s3cret"])
def test_a_sweep_writes_no_password_down(
    more: list[str], address: str, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    words = ["task=pendulum", "collect=redis", f"collect.redis.url='{address}'", "seed=1,2"]
    found = command([*words, *more], tmp_path)
    assert found.returncode == 2
    assert "RL_TWOCLOCKS_REDIS_URL" in found.stderr and "s3cret" not in found.stderr
    assert list(tmp_path.rglob("*.yaml")) == []


@pytest.mark.parametrize("name", ["lr=0.1", "Läufe", "runs (old)", "a'b"])
def test_a_directory_of_any_name_gives_a_run_that_a_generator_can_be_told(name: str) -> None:
    from rl_twoclocks.collect.redis_source import generator_command, name_of

    config = compose(["task=pendulum", assign("run_dir", f"/data/{name}/seed1")])
    found = name_of(config)
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", found)
    assert f" run={found} " in generator_command(config)


@pytest.mark.parametrize("name", ["a b", "ü", "a=b", "{x}", ""])
def test_a_name_that_no_command_line_takes_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"collect\.redis\.run="):
        compose([assign("collect.redis.run", name)])


@redis_server
def test_partitions_are_taken_near_first_bounded_and_expired(server: Server) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    queue = RedisQueue(server.url, "run", patience=5)
    assert queue.take(1, 0, None, "near", 0) is None
    queue.open("{}", 0, b"policy")
    for version, name in ((3, b"a"), (1, b"b"), (3, b"c"), (2, b"d")):
        assert queue.push(name, version, 4, "wait")
    assert queue.readings().sent == {os.getpid(): 4}
    # Who waits for room is heard.
    assert not queue.room(4)
    assert queue.readings() == (4, 0, {os.getpid(): 5})
    assert not queue.push(b"e", 3, 4, "wait")
    assert queue.push(b"e", 3, 4, "drop")
    assert queue.readings()[:2] == (4, 1)
    assert queue.readings().sent == {os.getpid(): 7}
    # b was the oldest; of one version the earlier arrival goes first.
    assert queue.take(2, 3, None, "near", 0) == ([b"a", b"c"], 0)
    assert queue.push(b"f", 4, 4, "wait")
    # Waiting for another round, d would be too old; e could wait.
    assert queue.take(1, 4, 2, "near", 0) == ([b"d"], 0)
    assert queue.take(1, 4, 2, "near", 0) == ([b"f"], 0)
    assert queue.take(9, 6, 2, "fifo", 0) == ([], 1)
    assert queue.take(1, 5, None, "near", 0) == ([], 0)
    assert {key.decode().split(":")[-1] for key in queue.server.scan_iter()} == {
        "config", "policy", "version", "orders", "lost", "sent", "sitting", "taken",
    }  # fmt: skip


@redis_server
def test_what_later_rounds_take_counts_where_this_one_lacks_few(server: Server) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    queue = RedisQueue(server.url, "run", patience=5)
    queue.open("{}", 0, b"")
    for version, name in ((3, b"a"), (4, b"b"), (4, b"c")):
        assert queue.push(name, version, 4, "wait")
    assert queue.take(1, 5, 2, "near", 0, per_round=4) == ([b"a"], 0)
    assert queue.drop_all() == 2
    assert queue.readings().waiting == 0 and queue.drop_all() == 0


@redis_server
def test_at_random_every_slice_that_waits_is_as_likely(server: Server) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    queue = RedisQueue(server.url, "run", patience=5)
    queue.open("{}", 0, b"")
    first = 0
    for draw in range(200):
        queue.drop_all()
        for number in range(5):
            assert queue.push(b"many" if number else b"one", 7 if number else 3, 5, "wait")
        first += queue.take(1, 7, None, "random", draw) == ([b"one"], 0)
    # One in five, within four deviations: by version it would be one in two.
    assert 17 <= first <= 63


def losing_the_first_reply(script: Callable) -> tuple[Callable, list]:
    """The script of a connection that breaks when it has run once; the list holds the reply lost."""
    import redis

    lost: list = []

    def unlucky(keys: list, arguments: list) -> object:
        reply = script(keys, arguments)
        if not lost:
            lost.append(reply)
            raise redis.ConnectionError("the reply was lost")
        return reply

    return unlucky, lost


@redis_server
def test_slices_whose_reply_was_lost_are_counted(server: Server) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    queue = RedisQueue(server.url, "run", patience=5)
    queue.open("{}", 0, b"")
    for version in (0, 3, 3, 3):
        assert queue.push(b"slice", version, 9, "wait")
    queue._take, _ = losing_the_first_reply(queue._take)
    # The first reply held one that was too old and two slices; the second has the last one.
    assert queue.take(2, 3, 2, "near", 0) == ([b"slice"], 3)
    assert queue.take(2, 3, 2, "near", 0) == ([], 0)
    server.kill()
    server.start()
    assert queue.take(1, 3, 2, "near", 0) is None
    queue.announce("{}", 3, b"")
    assert queue.push(b"slice", 3, 9, "wait")
    assert queue.take(2, 3, 2, "near", 0) == ([b"slice"], 0)
    assert all(0 < queue.server.ttl(key) <= 3600 for key in queue.server.scan_iter())
    queue.close()
    again = RedisQueue(server.url, "run", patience=5)
    assert again.over()
    (left,) = again.server.scan_iter()
    assert left == b"rl_twoclocks:run:over" and 0 < again.server.ttl(left) <= 3600
    assert not again.push(b"late", 3, 4, "wait")


@redis_server
def test_stamps_tell_the_truth(server: Server, tmp_path: Path) -> None:
    config = run_config("Target", tmp_path, *words(server, "collect.workers=2", "collect.slots=4"))
    with collecting(config) as (parts, redis):
        assert len(true_stamps(parts, redis, versions=9)) > 2


@redis_server
def test_generators_get_noise_and_new_episodes(server: Server, tmp_path: Path) -> None:
    # Observations count the decisions of an episode that never ends by itself.
    config = run_config("Counter", tmp_path, *words(server, "task.kwargs={length: 1000000}"))
    with collecting(config) as (_, redis):

        def until(wanted: Callable[[torch.Tensor], torch.Tensor]) -> bool:
            return any(bool(wanted(redis.next(0, None)[0]["observation"])) for _ in range(300))

        assert until(lambda seen: seen.min() > 100)
        redis.begin_new_episodes(0, 7)
        assert until(lambda seen: seen.min() < 100)
        redis.set_noise((torch.tensor([1e6]), 3))
        assert until(lambda seen: seen.abs().max() > 1e5)
        redis.set_noise(None)
        assert until(lambda seen: (seen == seen.round()).all())


@redis_server
def test_a_run_survives_its_server_its_generator_and_a_hostile_message(
    server: Server, tmp_path: Path
) -> None:
    config = run_config(
        "Target", tmp_path, *words(server, "total_frames=6400", "collect.max_restarts=2")
    )
    rows = tmp_path / "metrics.jsonl"

    def reached(rounds: int) -> bool:
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            if rows.exists() and len(rows.read_text().splitlines()) >= rounds:
                return True
            time.sleep(0.02)
        return False

    happened: list[str] = []

    def trouble() -> None:
        from rl_twoclocks.collect.redis_queue import RedisQueue
        from rl_twoclocks.collect.redis_source import name_of

        name = name_of(config)
        queue = RedisQueue(server.url, name, patience=5)
        if reached(5) and queue.find() and queue.push(pickle.dumps(print), 4, 1000, "wait"):
            happened.append("hostile")
        if reached(20):
            server.kill()
            time.sleep(0.5)
            server.start()
            happened.append("server")
        if reached(40):
            subprocess.run(["pkill", "-9", "-f", f"rl_twoclocks.generator run={name}"], check=True)
            happened.append("generator")

    thread = threading.Thread(target=trouble)
    thread.start()
    result = rl_twoclocks.train(config)
    thread.join()
    assert happened == ["hostile", "server", "generator"]
    last = read_metrics(rows)[-1]
    assert result.frames >= 6400
    assert last["collect/refused"] == 1
    assert 1 <= last["collect/restarts"] <= 2
    assert subprocess.run(["pgrep", "-f", f"parent={os.getpid()}"], check=False).returncode == 1


@redis_server
@pytest.mark.parametrize("during", ["publish", "record", "save"])
def test_a_server_that_is_gone_for_good_leaves_a_checkpoint_of_the_last_round(
    during: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_twoclocks.record import checkpoint
    from rl_twoclocks.session import Session

    every = 640 if during == "save" else 6400
    more = ["total_frames=6400", f"checkpoint.every_frames={every}"]
    more += ["checkpoint.episode_boundary=true"] if during == "save" else []
    config = run_config("Target", tmp_path, *words(server), *more)
    original = getattr(Session, during)

    def then_it_dies(self: Session, *arguments: Any, **named: Any) -> Any:
        if self.parts.clocks.policy_version >= 5 and server.process.returncode is None:
            server.kill()
            self.parts.source.queue.patience = 1.0
        return original(self, *arguments, **named)

    monkeypatch.setattr(Session, during, then_it_dies)
    begin = time.monotonic()
    with pytest.raises(WorkerError, match="no Redis server"):
        rl_twoclocks.train(config)
    assert time.monotonic() - begin < 60
    newest = checkpoint.load_newest(tmp_path)
    assert newest is not None
    last = read_metrics(tmp_path / "metrics.jsonl")[-1]
    assert newest["clocks"]["frames"] >= last["frames"] > 0
    assert newest["clocks"]["policy_version"] == last["clock/policy_version"]


def assert_a_signal_is_heard(redis: Any) -> None:
    begin = time.monotonic()
    assert redis.next(0, None, lambda: time.monotonic() - begin > 1) is None
    assert time.monotonic() - begin < 5


@redis_server
def test_a_signal_is_heard_while_the_server_is_away(server: Server, tmp_path: Path) -> None:
    config = run_config("Target", tmp_path, *words(server))
    with collecting(config) as (parts, redis):
        redis.next(0, None)
        server.kill()
        parts.publish()
        redis.discard()
        assert_a_signal_is_heard(redis)
        server.start()
        # What could not be said is said.
        assert redis.next(0, None) is not None


@redis_server
def test_a_signal_is_heard_before_the_server_has_ever_been_there(
    server: Server, tmp_path: Path
) -> None:
    server.kill()
    config = run_config("Target", tmp_path, *words(server))
    with collecting(config) as (parts, redis):
        redis.begin_new_episodes(7, 1)
        parts.publish()
        assert_a_signal_is_heard(redis)
        server.start()
        assert redis.next(0, None) is not None
        # With the orders that were given meanwhile.
        assert redis.queue.news()[1]["episodes"] == 1


@redis_server
@pytest.mark.parametrize("key", ["versions", "version", "policy", "orders", "config"])
def test_keys_that_somebody_else_overwrote_end_with_their_name_or_do_nothing(
    server: Server, tmp_path: Path, key: str
) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    more = ["collect.redis.spawn=false", "collect.redis.run=run", "collect.patience=60"]
    config = run_config("Target", tmp_path, *words(server), *more)
    generator = [sys.executable, "-m", "rl_twoclocks.generator", "run=run", f"url={server.url}"]
    with collecting(config) as (_, redis):
        hostile = RedisQueue(server.url, "run", patience=5)
        hostile.find()
        place = hostile.prefix + key
        if key == "versions":
            hostile.server.zadd(place, {"abc": 3, "1e400": 4, "": -9})
        else:
            hostile.server.set(place, b"\xff[7]")
        made = subprocess.Popen([*generator, "patience=5"], stderr=subprocess.PIPE, text=True)
        if key == "versions":
            assert redis.next(0, 4) is not None
            made.terminate()
            made.communicate()
            return
        _, said = made.communicate(timeout=60)
    assert made.returncode == 1
    assert "Traceback" not in said
    assert "holds something else under rl_twoclocks:run:" in said
    assert key in said.splitlines()[-1]


@redis_server
@pytest.mark.parametrize("key", ["sitting", "versions", "taken", "sent", "lost", "slices:0"])
def test_a_key_of_another_type_is_named(server: Server, key: str) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    learner, generator = (RedisQueue(server.url, "run", patience=5) for _ in range(2))
    learner.open("{}", 0, b"policy")
    generator.find()
    if key == "slices:0":
        assert generator.push(b"slice", 0, 8, "wait")
        learner.server.delete(learner.prefix + key)
    place = (learner.base if key == "sitting" else learner.prefix) + key
    learner.server.delete(place)
    learner.server.sadd(place, "x")
    with pytest.raises(WorkerError, match="holds ") as raised:
        learner.readings()
        learner.announce("{}", 0, b"policy")
        generator.push(b"slice", 0, 8, "wait")
        learner.take(1, 0, 4, "near", 0)
    said = str(raised.value)
    assert "script" not in said
    if key != "slices:0":
        assert f"holds a set under {place}, not a " in said


@redis_server
def test_a_learner_says_that_it_waits_for_a_server(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_twoclocks.collect import redis_queue

    monkeypatch.setattr(redis_queue, "SILENT", 0.0)
    queue = redis_queue.RedisQueue(server.url, "run", patience=20)
    assert queue.readings().waiting == 0
    assert not caplog.messages
    server.kill()
    threading.Timer(1.0, server.start).start()
    assert queue.readings().waiting == 0
    waits, answers = caplog.messages
    assert f"{server.url} waits up to 20 s for a server" in waits
    assert f"{server.url} answers" in answers


@pytest.mark.parametrize(
    ("more", "said"),
    [(["run=a/b"], "run='a/b'"), (["run="], "run=null"), (["run=a", "url=http://a"], "no address")],
)
def test_what_no_generator_can_do_is_refused_at_once(more: list[str], said: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "rl_twoclocks.generator", *more], capture_output=True, text=True
    )
    assert found.returncode == 2
    assert said in found.stderr


@redis_server
def test_a_database_that_the_server_lacks_is_bad_configuration(server: Server) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    with pytest.raises(ConfigError, match=r"/99: .*index"):
        RedisQueue(f"{server.url}/99", "run", patience=5).open("{}", 0, b"")


def test_an_address_that_is_none_costs_no_run(tmp_path: Path) -> None:
    rl_twoclocks.train(run_config("Target", tmp_path))
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    more = ["on_existing=overwrite", "collect=redis", "collect.redis.url=http://nowhere"]
    with pytest.raises(ConfigError, match="no address"):
        rl_twoclocks.train(run_config("Target", tmp_path, *more))
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    with pytest.raises(ConfigError, match="no address"):
        rl_twoclocks.train(run_config("Target", tmp_path / "new", *more))
    assert not (tmp_path / "new").exists()


@redis_server
@pytest.mark.parametrize("why", ["password", "database", "learner"])
def test_what_a_server_refuses_costs_no_run(tmp_path: Path, why: str) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    rl_twoclocks.train(run_config("Target", tmp_path))
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    options, more, said = {
        "password": (["--requirepass", "right"], [], "refuses this user"),
        "database": ([], [], "/99: .*index"),
        "learner": ([], ["collect.redis.run=mine"], "belongs to a learner at work, elsewhere"),
    }[why]
    server = Server(*options)
    url = server.url + ("/99" if why == "database" else "")
    others = RedisQueue(server.url, "mine", 5, owner="elsewhere")
    try:
        if why == "learner":
            others.open("{}", 0, b"")
        more = ["on_existing=overwrite", "collect=redis", f"collect.redis.url={url}", *more]
        with pytest.raises(ConfigError, match=said):
            rl_twoclocks.train(run_config("Target", tmp_path, *more))
    finally:
        server.kill()
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@redis_server
def test_a_generator_says_what_it_waits_for(server: Server) -> None:
    command = [sys.executable, "-m", "rl_twoclocks.generator", "run=nobody", f"url={server.url}"]
    found = subprocess.run([*command, "patience=0.5"], capture_output=True, text=True)
    assert f"waits for {server.url}, at most 0.5 seconds" in found.stdout
    assert found.returncode == 2
    assert "is its learner running?" in found.stderr


@redis_server
def test_a_run_that_never_began_leaves_anothers_keys_alone(server: Server, tmp_path: Path) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    theirs = RedisQueue(server.url, "run", patience=5)
    theirs.open("{}", 0, b"policy")
    RedisQueue(server.url, "run", patience=5).close()
    assert theirs.server.get(theirs.prefix + "policy") == b"policy"


@redis_server
def test_a_learner_whose_run_was_taken_over_says_so(server: Server, tmp_path: Path) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue
    from rl_twoclocks.collect.redis_source import name_of, owner_of

    config = run_config("Target", tmp_path, *words(server))
    with collecting(config) as (parts, redis):
        redis.next(0, None)
        RedisQueue(server.url, name_of(config), 5, owner_of(config)).open("{}", 0, b"")
        for told in (False, True):
            if told:
                parts.publish()
            with pytest.raises(WorkerError, match="another learner has taken over"):
                redis.next(0, None)


@redis_server
def test_a_learner_at_work_keeps_its_name_from_other_run_directories(
    server: Server, tmp_path: Path
) -> None:
    named = words(server, "collect.redis.run=mine")
    first, second = (run_config("Target", tmp_path / name, *named) for name in ("a", "b"))
    with collecting(first) as (_, redis):
        redis.next(0, None)
        with pytest.raises(ConfigError, match=r"'mine' .* belongs to a learner at work, .*/a: "):
            rl_twoclocks.train(second)
        # Nothing of the one at work was touched.
        assert redis.next(0, None) is not None


@redis_server
def test_a_name_is_free_for_its_own_directory_and_where_nobody_is_at_work(server: Server) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    def learner(owner: str) -> RedisQueue:
        queue = RedisQueue(server.url, "mine", 5, owner)
        queue.open("{}", 0, b"")
        return queue

    first = learner("here:/runs/a b")
    # Whatever it does: nothing has to be said in time.
    with pytest.raises(ConfigError, match="at work, here:/runs/a b"):
        learner("here:/runs/b")
    # Killed, and started anew on another machine.
    first.server.close()
    again = learner("there:/runs/a b")
    again.close()
    third = learner("here:/runs/b")
    # Other names are no matter.
    RedisQueue(server.url, "mine2", 5, "here:/runs/c").open("{}", 0, b"")
    server.kill()
    server.start()
    assert third.take(1, 0, None, "near", 0) is None
    with pytest.raises(ConfigError, match="at work"):
        learner("here:/runs/d")


@redis_server
def test_junk_in_an_old_partition_does_not_move_the_clock_of_the_frames(
    server: Server, tmp_path: Path
) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue
    from rl_twoclocks.collect.redis_source import name_of

    config = run_config("Target", tmp_path, *words(server))
    with collecting(config) as (_, redis):
        redis.next(0, 4)
        hostile = RedisQueue(server.url, name_of(config), patience=5)
        hostile.find()
        assert all(hostile.push(b"0", -9, 10**6, "wait") for _ in range(500))
        rollout, frames = redis.next(0, 4)
        assert frames <= (1 + config.collect.slots) * rollout.numel()
        assert redis.readings()["collect/refused"] >= 500 - config.collect.slots


@redis_server
@pytest.mark.parametrize("workers", [1, 2])
def test_a_generator_that_hangs_is_replaced(server: Server, tmp_path: Path, workers: int) -> None:
    """While others go on, and where there is no other."""
    more = [f"collect.workers={workers}"]
    config = run_config("Target", tmp_path, *words(server), *more)
    with collecting(config) as (_, redis):
        # From here on all are under way, and who is silent is not starting.
        while len(redis.queue.readings().sent) < workers:
            redis.next(0, None)
        redis.collect = config.collect.model_copy(update={"patience": 3.0})
        start = redis._start

        def patient() -> Any:
            # A new one takes seconds to begin on a busy machine.
            redis.collect = config.collect
            return start()

        redis._start = patient
        hung = redis.local[0].process
        os.kill(hung.pid, signal.SIGSTOP)
        begin = time.monotonic()
        while redis.readings()["collect/restarts"] == 0:
            assert redis.next(0, None) is not None
            assert time.monotonic() - begin < 60
        assert hung.poll() == -signal.SIGKILL


@redis_server
def test_generators_wait_longer_for_a_server_that_was_started_anew_than_for_a_run_that_is_over(
    server: Server,
) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    learner = RedisQueue(server.url, "run", patience=5)
    learner.open("{}", 0, b"")
    assert not learner.over()
    learner.close()
    again = RedisQueue(server.url, "run", patience=5)
    assert again.over()
    again.open("{}", 0, b"")
    assert not again.over()
    server.kill()
    server.start()
    assert again.find() is None and not again.over()


@redis_server
def test_authentication_through_the_address(tmp_path: Path) -> None:
    server = Server("--requirepass", "s3cret")
    try:
        right = f"redis://:s3cret@127.0.0.1:{server.port}"
        base = ["collect=redis", "collect.patience=20"]
        config = run_config("Target", tmp_path / "a", *base, f"collect.redis.url={right}")
        assert rl_twoclocks.train(config).frames >= 256
        written = "".join(p.read_text() for p in (tmp_path / "a").glob("*.yaml"))
        assert "127.0.0.1" in written
        assert "s3cret" not in written
        for wrong in (f"redis://:other@127.0.0.1:{server.port}", server.url):
            bad = run_config("Target", tmp_path / "b", *base, f"collect.redis.url={wrong}")
            with pytest.raises(ConfigError, match="refuses this user"):
                rl_twoclocks.train(bad)
    finally:
        server.kill()


@pytest.mark.parametrize("address", ["redis://127.0.0.1:1", "redis://nowhere.invalid:6379"])
def test_a_server_that_is_not_there_is_named_in_time(address: str, tmp_path: Path) -> None:
    base = ["collect=redis", "collect.patience=0.5", f"collect.redis.url={address}"]
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=f"no Redis server at {address}"):
        rl_twoclocks.train(run_config("Target", tmp_path, *base))
    assert time.monotonic() - begin < 20


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    base = ["collect=redis", "collect.redis.url=nonsense"]
    with pytest.raises(ConfigError, match="url"):
        rl_twoclocks.train(run_config("Target", tmp_path, *base))


@redis_server
def test_a_run_that_starts_no_generators_says_how_to_start_them(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["collect.redis.spawn=false", "collect.redis.run=lonely", "collect.patience=2"]
    more.append("logger.display=plain")
    command = "python -m rl_twoclocks.generator run=lonely"
    with pytest.raises(WorkerError, match=command):
        rl_twoclocks.train(run_config("Target", tmp_path, *words(server), *more))
    assert f"waits     for generators: {command}" in capsys.readouterr().out


@redis_server
@pytest.mark.parametrize("at_once", [1, 200])
def test_messages_that_are_refused_do_not_keep_a_run_waiting_for_ever(
    server: Server, tmp_path: Path, at_once: int
) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    more = ["collect.redis.spawn=false", "collect.redis.run=hostile", "collect.patience=2"]
    done = threading.Event()

    def push() -> None:
        queue = RedisQueue(server.url, "hostile", patience=5)
        while not done.is_set():
            if queue.find() is not None:
                # Many at once: the queue never runs empty.
                for _ in range(at_once):
                    queue.push(b"nonsense", 0, 1000, "wait")
            time.sleep(0.05)

    thread = threading.Thread(target=push)
    thread.start()
    try:
        config = run_config("Target", tmp_path, *words(server), *more)
        with (
            collecting(config) as (_, redis),
            pytest.raises(WorkerError, match="messages were refused"),
        ):
            redis.next(0, None)
    finally:
        done.set()
        thread.join()


@redis_server
def test_a_sitting_lives_as_long_as_somebody_learns_from_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_twoclocks.collect import redis_queue

    monkeypatch.setattr(redis_queue, "LIFE", 1)
    learner, generator = (redis_queue.RedisQueue(server.url, "run", patience=5) for _ in range(2))
    learner.open("{}", 0, b"policy")
    assert generator.find() == "{}"
    for _ in range(4):
        time.sleep(0.5)
        learner.readings()
    # Nothing was published meanwhile, and yet it is all there.
    assert (generator.find(), generator.news(), generator.policy()) == ("{}", (0, {}), b"policy")
    time.sleep(1.5)
    assert generator.find() is None


@redis_server
def test_two_sittings_of_one_name_do_not_mix(server: Server) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    learner, generator = (RedisQueue(server.url, "run", patience=5) for _ in range(2))
    learner.open("{}", 3, b"policy")
    assert generator.find() == "{}"
    assert generator.push(b"old", 3, 4, "wait")
    again = RedisQueue(server.url, "run", patience=5)
    again.open('{"new": 1}', 3, b"policy")
    # What is collected for the earlier one goes nowhere, and its generator notices.
    assert generator.news() is None
    assert not generator.push(b"late", 3, 4, "wait")
    assert again.take(2, 3, None, "near", 0) == ([], 0)
    assert generator.find() == '{"new": 1}'
    assert generator.room(1)
    assert generator.push(b"fresh", 3, 4, "wait")
    assert not generator.room(1)
    assert again.take(2, 3, None, "near", 0, largest=4) == ([b""], 0)


@redis_server
@pytest.mark.parametrize("when_full", ["wait", "drop"])
def test_a_slice_sent_again_after_a_lost_reply_is_there_once(
    server: Server, when_full: str
) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    learner, generator = (RedisQueue(server.url, "run", patience=5) for _ in range(2))
    learner.open("{}", 0, b"")
    generator.find()
    assert generator.push(b"first", 0, 2, when_full)
    generator._push, lost = losing_the_first_reply(generator._push)
    assert generator.push(b"second", 0, 2, when_full)
    assert lost == [1]
    assert learner.take(9, 0, None, "fifo", 0) == ([b"first", b"second"], 0)
    assert learner.readings()[:2] == (0, 0)
    learner.close()


@redis_server
def test_a_learner_that_closes_leaves_another_sitting_of_its_name_alone(server: Server) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    first, second, generator = (RedisQueue(server.url, "run", patience=5) for _ in range(3))
    first.open('{"first": 1}', 0, b"")
    second.open('{"second": 1}', 4, b"")
    first.close()
    assert generator.find() == '{"second": 1}'
    assert generator.news() == (4, {})
    second.close()
    assert generator.find() is None


def test_no_slice_is_lost_where_two_generators_see_the_same_room(tmp_path: Path) -> None:
    """Between the question whether there is room and the sending another one takes it."""
    from rl_twoclocks import generator as program
    from rl_twoclocks.collect.generator import Generator

    config = run_config("Target", tmp_path, "collect=redis")
    told = {"config": plain(config), "envs": config.num_envs, "steps": 4, "life": 0}
    maker = Generator(config, 0, config.num_envs, 4, 0)
    policy = pack_policy(maker.behaviour.published()._replace(version=3))
    maker.close()

    class Contended:
        """Another generator is always quicker, but for the fourth time; no policy at first."""

        def __init__(self) -> None:
            self.sent: list[tuple[bytes, int]] = []
            self.refused: list[tuple[bytes, int]] = []
            self.asked = 0

        def join(self) -> int:
            return 0

        def news(self) -> tuple[int, dict[str, Any]] | None:
            return None if self.sent else (3, {})

        def policy(self) -> bytes | None:
            self.asked += 1
            return policy if self.asked > 1 else None

        def room(self, bound: int) -> bool:
            return True

        def push(self, message: bytes, version: int, bound: int, when_full: str) -> bool:
            into = self.sent if len(self.refused) == 3 else self.refused
            into.append((message, version))
            return into is self.sent

    queue: Any = Contended()
    program._collect(queue, told, GeneratorCommandConfig(run="run"))
    assert len(queue.sent) == 1
    assert queue.refused == queue.sent * 3
    # Never of a policy that no learner has given.
    assert queue.sent[0][1] == 3


@redis_server
def test_frames_that_a_full_queue_drops_are_counted_once(server: Server, tmp_path: Path) -> None:
    more = ["collect.when_full=drop", "collect.slots=2"]
    config = run_config("Target", tmp_path, *words(server), *more)
    with collecting(config) as (parts, redis):
        first = redis.next(0, None)
        # As long as the first steps are not taken, which are compiled, nothing is dropped.
        limit = time.monotonic() + 30
        while redis.queue.readings().waiting < 2 and time.monotonic() < limit:
            time.sleep(0.05)
        time.sleep(0.3)
        assert redis.queue.readings().lost == 0
        publish(parts, 1)
        time.sleep(0.3)
        assert redis.queue.readings().lost == 0
        redis.learnt()
        while redis.queue.readings().lost < 3 and time.monotonic() < limit:
            time.sleep(0.05)
        second = redis.next(0, None)
        lost = redis.queue.readings().lost
        assert lost >= 3
        assert first[1] + second[1] <= (2 + lost) * 64
        assert first[1] + second[1] >= (2 + 3) * 64


@redis_server
def test_a_number_that_is_not_finite_is_no_death(server: Server, tmp_path: Path) -> None:
    kwargs = "task.kwargs={quantity: reward, value: 1e39, frame: 40, bad_seed: null}"
    config = run_config("Poison", tmp_path, *words(server, kwargs))
    with pytest.raises(NonFiniteError, match="not finite"):
        rl_twoclocks.train(config)


@redis_server
def test_a_generator_that_cannot_be_run_ends_the_run_at_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_twoclocks.collect.redis_source import RedisSource

    start = RedisSource._start

    def broken(self: RedisSource) -> subprocess.Popen:
        # As on a machine that lacks what the task needs.
        self.told = self.told.replace("twoclocks-test/Target-v0", "twoclocks-test/Lacking-v0")
        self._announce()
        return start(self)

    monkeypatch.setattr(RedisSource, "_start", broken)
    with pytest.raises(WorkerError, match="generator 0 cannot run the configuration"):
        rl_twoclocks.train(run_config("Target", tmp_path, *words(server)))


def test_the_name_of_a_run_follows_from_its_directory(tmp_path: Path) -> None:
    from rl_twoclocks.collect.redis_source import name_of

    names = {name_of(compose([f"run_dir={tmp_path}/{a}/seed1"])) for a in ("a", "b", "a")}
    assert len(names) == 2
    assert name_of(compose(["seed=1"])) != name_of(compose(["seed=2"]))


@redis_server
@pytest.mark.parametrize("name", ["a*", "[ab]", "a?", "a\\", "a"])
@pytest.mark.parametrize("others", ["ab", "a:b"])
def test_a_run_touches_no_keys_but_its_own_whatever_its_name(
    server: Server, name: str, others: str
) -> None:
    from rl_twoclocks.collect.redis_queue import RedisQueue

    other, queue = (
        RedisQueue(server.url, others, patience=5),
        RedisQueue(server.url, name, patience=5),
    )
    other.open("{}", 0, b"policy")
    kept = set(other.server.scan_iter())
    queue.open("{}", 0, b"policy")
    assert queue.push(b"slice", 0, 4, "wait") and queue.drop_all() == 1
    queue.close()
    assert set(other.server.scan_iter()) - kept == {
        f"rl_twoclocks:{quote(name, safe='')}:over".encode()
    }
    assert kept <= set(other.server.scan_iter())
    other.close()
    left = RedisQueue(server.url, name, patience=5).server.keys()
    assert all(key.endswith(b":over") for key in left) and len(left) == 2
