"""Atari games: held to gymnasium's preprocessing, and envpool's games to these."""

from __future__ import annotations

import socket
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from rl_twoclocks import compose
from rl_twoclocks.config import CollectConfig, ConfigError, TaskConfig
from rl_twoclocks.envs import BatchedEnv, make_env
from rl_twoclocks.safety import SAFE_TABLE, settle

ale_py = pytest.importorskip("ale_py")
pytest.importorskip("cv2")
gym.register_envs(ale_py)

GAMES = [
    "pong",
    "breakout",
    "qbert",
    "beam_rider",
    "seaquest",
    "space_invaders",
    "enduro",
    "ms_pacman",
]
NOOP, FIRE = 0, 1


def task(game: str, **kwargs: Any) -> TaskConfig:
    plain = {"fire_reset": False, "episodic_life": False}
    config = compose([f"task={game}"]).task
    return config.model_copy(update={"kwargs": plain | kwargs})


def environment(
    game: str, n: int = 1, seed: int = 3, remember: int = 0, **kwargs: Any
) -> BatchedEnv:
    seeds = [seed + i for i in range(n)]
    return make_env(task(game, **kwargs), CollectConfig(), n, seeds, remember)


def reference(game: str, **kwargs: Any) -> gym.Env:
    name = game.title().replace("_", "")
    return AtariPreprocessing(gym.make(f"{name}NoFrameskip-v4"), **kwargs)


@pytest.mark.parametrize("game", ["pong", "breakout", "space_invaders"])
@pytest.mark.parametrize("remember", [0, 600])
def test_every_observation_is_that_of_gymnasiums_preprocessing(game: str, remember: int) -> None:
    """Frames, stacks, rewards and ends of 500 decisions, games that end in between included."""
    theirs = FrameStackObservation(reference(game), 4)
    ours = environment(game, remember=remember)
    expected, _ = theirs.reset(seed=3)
    state = ours.reset()
    games, actions = 0, np.random.default_rng(0)
    for _ in range(500):
        shown = state["observation"]
        if ours.frames is not None:
            assert shown.dtype == torch.int64
            shown = ours.frames.stacks(shown)
        assert shown.dtype == torch.uint8
        assert np.array_equal(shown[0].numpy(), expected)
        action = int(actions.integers(ours.backend.action_space.n))
        expected, reward, terminated, truncated, _ = theirs.step(action)
        state["action"] = torch.tensor([action])
        stepped, state = ours.step_and_maybe_reset(state)
        following = stepped["next"]
        assert float(following["reward"]) == reward
        assert bool(following["terminated"]) == terminated
        assert bool(following["truncated"]) == truncated
        if terminated:
            games += 1
            expected, _ = theirs.reset()
    assert games > 0 or game != "breakout"
    ours.close()


def test_fire_is_pressed_for_one_decision_when_a_game_begins() -> None:
    theirs = reference("breakout", noop_max=0)
    ours = environment("breakout", noop_max=0, fire_reset=True)
    theirs.reset(seed=3)
    theirs.step(FIRE)
    state = ours.reset()
    for _ in range(20):
        expected = theirs.step(NOOP)[0]
        state["action"] = torch.tensor([NOOP])
        stepped, state = ours.step_and_maybe_reset(state)
        assert np.array_equal(stepped["next", "observation"][0, -1].numpy(), expected)


def lives_of_a_game(episodic_life: bool) -> tuple[list[int], list[int], float]:
    """Lives after every end, decisions of every episode, and the score, of one game."""
    env = environment("breakout", fire_reset=True, episodic_life=episodic_life)
    game = env.backend.envs[0].unwrapped
    state, actions = env.reset(), np.random.default_rng(1)
    lives, lengths, score, length = [], [], 0.0, 0
    while not lives or lives[-1] > 0:
        state["action"] = torch.tensor([int(actions.integers(2, 4))])
        stepped, state = env.step_and_maybe_reset(state)
        score += float(stepped["next", "reward"])
        length += 1
        if bool(stepped["next", "done"]):
            # A game that is over has been followed by a new one already.
            lives.append(0 if game._lives == 5 else game._lives)
            lengths.append(length)
            length = 0
        assert length < 2000
    env.close()
    return lives, lengths, score


def test_a_life_ends_an_episode_and_not_the_game() -> None:
    lives, lengths, score = lives_of_a_game(episodic_life=True)
    assert lives == [4, 3, 2, 1, 0]
    assert min(lengths) > 5
    assert score >= 0


@pytest.mark.parametrize("episodic_life", [True, False])
def test_a_reset_from_outside_begins_a_new_game(episodic_life: bool) -> None:
    """A time limit cuts a game that does not know of it."""
    game = gym.make(
        "rl_twoclocks/Atari-v0", game="breakout", episodic_life=episodic_life, max_episode_steps=5
    )
    game.reset(seed=1)
    for _ in range(2):
        ends = [game.step(0)[3] for _ in range(5)]
        assert ends == [False] * 4 + [True]
        game.reset()
        # No-ops and FIRE at most: no frame of the game before.
        assert game.unwrapped.ale.getEpisodeFrameNumber() <= 34
    game.close()


def test_an_evaluated_game_is_a_whole_one() -> None:
    """No FIRE is chosen: each new life begins because it is pressed for the player."""
    lives, lengths, _ = lives_of_a_game(episodic_life=False)
    assert lives == [0]
    assert sum(lengths) > sum(lives_of_a_game(episodic_life=True)[1]) / 3
    assert compose(["task=breakout"]).task.eval_kwargs == {"episodic_life": False}


def test_a_captured_game_goes_on_as_it_would_have() -> None:
    env = environment("breakout", n=2, fire_reset=True, episodic_life=True, remember=400)

    def play(state: Any, decisions: int) -> tuple[Any, list[np.ndarray]]:
        actions, seen = np.random.default_rng(5), []
        for _ in range(decisions):
            state["action"] = torch.from_numpy(actions.integers(4, size=2))
            stepped, state = env.step_and_maybe_reset(state)
            assert env.frames is not None
            shown = env.frames.stacks(stepped["next", "observation"]).numpy()
            seen.append(np.concatenate([shown.reshape(2, -1), stepped["next", "reward"]], axis=1))
        return state, seen

    play(env.reset(), 60)
    saved = env.snapshot()
    assert saved is not None
    env.hold()
    _, first = play(env.reset(), 120)
    env.restore(saved)
    _, second = play(env.reset(), 120)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    env.close()


@pytest.mark.parametrize("game", ["pong", "breakout"])
def test_envpool_and_ale_py_agree(game: str) -> None:
    pytest.importorskip("envpool")
    config = compose([f"task={game}"]).task
    facts = []
    for backend in ("gymnasium", "envpool"):
        env = make_env(config, CollectConfig(backend=backend), 4, [1, 2, 3, 4])
        state, actions = env.reset(), np.random.default_rng(0)
        low, high, ends, rewards = 255, 0, [0, 0], set()
        for _ in range(300):
            state["action"] = torch.from_numpy(actions.integers(env.action_spec.space.n, size=4))
            stepped, state = env.step_and_maybe_reset(state)
            following = stepped["next"]
            low = min(low, int(following["observation"].min()))
            high = max(high, int(following["observation"].max()))
            ends[0] += int(following["terminated"].sum())
            ends[1] += int(following["truncated"].sum())
            rewards |= set(following["reward"].flatten().tolist())
        shown = state["observation"]
        facts.append((tuple(shown.shape), shown.dtype, env.action_spec.space.n, low, high))
        # Lives are lost in Breakout only; nothing is truncated within 300 decisions.
        assert (ends[0] > 0) == (game == "breakout")
        assert ends[1] == 0
        assert rewards <= {-1.0, 0.0, 1.0, 4.0, 7.0}
        env.close()
    assert facts[0] == facts[1]
    assert facts[0][:2] == ((4, 4, 84, 84), torch.uint8)


def test_envpool_names_truncation_as_ale_py_does() -> None:
    pytest.importorskip("envpool")
    config = compose(["task=pong"]).task.model_copy(update={"max_episode_steps": 20})
    for backend in ("gymnasium", "envpool"):
        env = make_env(config, CollectConfig(backend=backend), 2, [1, 2])
        state, ends = env.reset(), []
        for t in range(1, 25):
            state["action"] = torch.tensor([NOOP, NOOP])
            stepped, state = env.step_and_maybe_reset(state)
            following = stepped["next"]
            assert not following["terminated"].any()
            if following["truncated"].any():
                ends.append(t)
        assert ends == [20]
        env.close()


@pytest.mark.parametrize("game", GAMES)
def test_nothing_is_downloaded(game: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    env = make_env(compose([f"task={game}"]).task, CollectConfig(), 1, [1])
    assert env.reset()["observation"].shape == (1, 4, 84, 84)
    env.close()


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("clocks", ["atari", "atari_safe"])
def test_every_preset_is_inside_its_row(game: str, clocks: str) -> None:
    _, derived = settle(compose([f"task={game}", f"clocks={clocks}", "clocks.ratio.mode=error"]))
    assert [note for note in derived.notes if "total_frames" not in note] == []
    row = SAFE_TABLE["atari"]
    assert derived.clock_ratio <= row.ratio_cap
    if clocks == "atari_safe":
        chosen = compose([f"task={game}", f"clocks={clocks}"]).clocks
        assert row.batch_size[0] <= chosen.batch_size <= row.batch_size[1]
        assert row.update_frequency[0] <= chosen.update_frequency <= row.update_frequency[1]


def test_another_frame_skip_is_refused_enforced_or_said() -> None:
    words = ["task=pong", "task.frame_skip=2"]
    with pytest.raises(ConfigError, match=r"task.frame_skip=2.*atari row.*write task.frame_skip=4"):
        settle(compose([*words, "clocks.ratio.mode=error"]))
    config, derived = settle(compose([*words, "clocks.ratio.mode=enforce"]))
    assert config.task.frame_skip == 4
    assert any("enforced" in note for note in derived.notes)
    config, derived = settle(compose([*words, "clocks.ratio.mode=warn"]))
    assert config.task.frame_skip == 2
    assert any("frame_skip = 4" in note for note in derived.notes)
    assert settle(compose([*words, "clocks.ratio.mode=observe"]))[0].task.frame_skip == 2


def test_frame_skip_is_that_of_the_game() -> None:
    for skip in (1, 4):
        config = task("pong", noop_max=0).model_copy(update={"frame_skip": skip})
        env = make_env(config, CollectConfig(), 1, [1])
        state = env.reset()
        game = env.backend.envs[0].unwrapped
        for _ in range(10):
            state["action"] = torch.tensor([NOOP])
            _, state = env.step_and_maybe_reset(state)
        assert game.ale.getEpisodeFrameNumber() == 10 * skip
        env.close()


def test_sticky_actions_repeat_the_last_one() -> None:
    """With probability 1 the first action, NOOP, is all that ever happens."""
    seen = []
    for action in (2, 3):
        env = environment("pong", repeat_action_probability=1.0)
        state = env.reset()
        for _ in range(30):
            state["action"] = torch.tensor([action])
            _, state = env.step_and_maybe_reset(state)
        seen.append(state["observation"])
        env.close()
    assert torch.equal(*seen)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["task=atari", "task.game=pongg"], "did you mean pong"),
        (["task=pong", "task.kwargs.noops=3"], "noops"),
        (["task=pong", "task.kwargs.noops=3", "collect=envpool"], "noops"),
    ],
)
def test_what_is_not_there_is_named(words: list[str], text: str) -> None:
    config = compose(words)
    with pytest.raises(ConfigError, match=text):
        make_env(config.task, config.collect, 1, [1])


def test_stacks_are_of_images_only() -> None:
    config = TaskConfig(name="x", env_id="CartPole-v1", frame_stack=4)
    with pytest.raises(ConfigError, match=r"task\.frame_stack=1"):
        make_env(config, CollectConfig(), 1, [1])
