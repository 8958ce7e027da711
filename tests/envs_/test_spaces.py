"""Every supported space through the encoding, the action map, and whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import rl_twoclocks
from rl_twoclocks.config import ConfigError
from rl_twoclocks.config_commands import EvalCommandConfig, ExportCommandConfig
from rl_twoclocks.envs.spaces import Actions, Encoding, flat_mask
from rl_twoclocks.eval import evaluate_checkpoint
from rl_twoclocks.export import export
from rl_twoclocks.models import ActionMap
from rl_twoclocks.record import checkpoint
from tests.spaces import BOUNDS, DONE, SEEN, run_config

TWO = spaces.Discrete(2)


def test_a_dict_becomes_real_numbers_one_hot_choices_and_bits_by_hand() -> None:
    encoding = Encoding(SEEN["Dict"], TWO)
    seen = {
        "where": np.array([[1.5, -2.0], [0.0, 7.0]]),
        "what": np.array([2, 0]),
        "deep": {"bits": np.array([[0, 1], [1, 1]], dtype=np.int8)},
    }
    # gymnasium orders the keys of a plain dict by name: deep.bits, what, where.
    expected = [[0, 1, 0, 0, 1, 1.5, -2], [1, 1, 1, 0, 0, 0, 7]]
    assert encoding(seen).tolist() == expected
    assert encoding(seen).dtype == np.float32
    assert encoding.real is not None
    assert encoding.real.tolist() == [False] * 5 + [True] * 2
    assert [part["key"] for part in encoding.layout()] == ["deep.bits", "what", "where"]


@pytest.mark.parametrize("space", SEEN.values(), ids=SEEN)
def test_encodings_equal_gymnasiums_own_flattening(space: gym.Space) -> None:
    space.seed(0)
    batch = [space.sample() for _ in range(20)]
    vector = gym.vector.utils.concatenate(
        space, batch, gym.vector.utils.create_empty_array(space, 20)
    )
    expected = np.stack([spaces.flatten(space, one) for one in batch])
    assert np.array_equal(Encoding(space, TWO)(vector), expected.astype(np.float32))


def test_masks_of_several_choices_are_filled_up_to_a_grid() -> None:
    actions = spaces.MultiDiscrete([3, 2])
    encoding = Encoding(spaces.Box(-1, 1, (1,)), actions, info_mask=5)
    masks = np.array([[1, 0, 1, 0, 1], [0, 1, 0, 0, 0]])
    encoded = encoding(np.array([[0.5], [0.25]], np.float32), masks)
    assert encoded.tolist() == [[0.5, 1, 0, 1, 0, 1, 0], [0.25, 0, 1, 0, 0, 0, 0]]
    assert encoding.blocked(encoded).tolist() == [False, True]


@pytest.mark.parametrize(
    "mask", [spaces.MultiBinary((2, 3)), spaces.MultiBinary(6), spaces.Box(0, 1, (2, 3), np.int8)]
)
def test_masks_of_several_choices_come_in_any_shape(mask: gym.Space) -> None:
    actions = spaces.MultiDiscrete([3, 3])
    given = np.array([[[1, 0, 1], [0, 1, 1]], [[0, 1, 0], [1, 0, 0]]], np.int8)
    flat = given.reshape(2, 6)
    encoding = Encoding(spaces.Dict(action_mask=mask, own=TWO), actions)
    seen = {"action_mask": given.reshape(2, *mask.shape), "own": np.array([0, 1])}
    assert encoding(seen)[:, -6:].tolist() == flat.tolist()
    assert flat_mask(given[0]).tolist() == flat[0].astype(bool).tolist()


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (spaces.Text(5), "Text"),
        (spaces.Sequence(TWO), "Sequence"),
        (spaces.Graph(TWO, None), "Graph"),
        (spaces.Tuple([TWO]), "Tuple"),
        (spaces.Dict(words=spaces.Text(5)), "of key words"),
        (spaces.Dict(eye=spaces.Box(0, 255, (64, 64, 3), np.uint8)), "of key eye is an image"),
    ],
)
def test_an_observation_space_that_cannot_be_taken_is_named(space: gym.Space, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        Encoding(space, TWO)
    assert "supported" in str(caught.value)


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Dict(a=TWO), spaces.Tuple([TWO])])
def test_an_action_space_that_cannot_be_taken_is_named(space: gym.Space) -> None:
    with pytest.raises(ConfigError, match=f"{type(space).__name__}.*MultiBinary are"):
        Actions(space, 2, masked=False)


def test_a_mask_of_another_size_is_refused() -> None:
    seen = spaces.Dict(action_mask=spaces.MultiBinary(3), own=TWO)
    with pytest.raises(ConfigError, match=r"action_mask has 3 entries.*2 choices"):
        Encoding(seen, TWO)
    with pytest.raises(ConfigError, match=r"has 3 entries.*0 choices"):
        Encoding(seen, spaces.Box(-1, 1, (3,)))


@pytest.mark.parametrize("squash", ["tanh", "clip"])
@pytest.mark.parametrize("space", BOUNDS.values(), ids=BOUNDS)
def test_raw_actions_fill_every_box_and_never_leave_it(space: spaces.Box, squash: str) -> None:
    actions = Actions(space, 4000, masked=False)
    act = ActionMap(actions.spec, squash, "cpu")
    raw = 20 * torch.randn(4000, int(np.prod(space.shape)), generator=torch.manual_seed(0))
    done = actions(act(raw).numpy())
    assert all(space.contains(one) for one in done)
    low, high = space.low.flatten().astype(float), space.high.flatten().astype(float)
    reach = done.reshape(4000, -1)
    finite = np.abs(low) < 1e30
    assert np.allclose(reach.min(0)[finite], low[finite], atol=1e-4)
    assert (reach.min(0)[~finite] < -20).all()
    finite = np.abs(high) < 1e30
    assert np.allclose(reach.max(0)[finite], high[finite], atol=1e-4)
    assert (reach.max(0)[~finite] > 20).all()


def test_half_bounds_by_hand() -> None:
    spec = Actions(BOUNDS["per dimension"], 1, masked=False).spec
    done = ActionMap(spec, "tanh", "cpu")(torch.zeros(1, 4))[0]
    log_2 = float(np.log(2))
    assert done.tolist() == pytest.approx([2.0, 0.0, log_2, -3 - log_2])


CASES = {
    **{f"sees {name}": ("Sampler", {"seen": name}) for name in SEEN},
    **{f"does {name}": ("Sampler", {"done": f"'{name}'"}) for name in DONE},
    "mask in info": ("Masked", {}),
    "mask in a key": ("Masked", {"place": "key"}),
    "masks of two choices": ("Masked", {"pairs": True}),
    "masks of two choices in a key": ("Masked", {"pairs": True, "place": "key"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_trains_evaluates_resumes_exactly_and_exports(case: str, tmp_path: Path) -> None:
    name, kwargs = CASES[case]
    whole = rl_twoclocks.train(run_config(name, tmp_path / "whole", kwargs))
    assert whole.frames == 256
    same = ("optim.anneal_frames=256", "eval.every_frames=26")
    rl_twoclocks.train(run_config(name, tmp_path / "parts", kwargs, "total_frames=128", *same))
    parts = rl_twoclocks.train(
        run_config(name, tmp_path / "parts", kwargs, "on_existing=resume", *same)
    )
    a, b = (
        checkpoint.load(Path(str(whole.checkpoint))),
        checkpoint.load(Path(str(parts.checkpoint))),
    )
    assert torch.equal(a["window"]["action"], b["window"]["action"])
    assert torch.equal(a["parameters"], b["parameters"])
    evaluate_checkpoint(EvalCommandConfig(checkpoint=str(tmp_path / "whole"), episodes=4))
    export(ExportCommandConfig(checkpoint=str(tmp_path / "whole"), format="torch"))
    facts = next((tmp_path / "whole" / "export").glob("*.json"))
    json.loads(facts.read_text(), parse_constant=lambda text: pytest.fail(text))


def test_choices_and_bits_are_not_normalised(tmp_path: Path) -> None:
    result = rl_twoclocks.train(run_config("Sampler", tmp_path, {"seen": "Dict"}))
    state = checkpoint.load(Path(str(result.checkpoint)))
    assert state["behaviour"]["shift"][:5].tolist() == [0.0] * 5
    assert state["behaviour"]["scale"][:5].tolist() == [1.0] * 5
    # Uniform on -100 to 100.
    assert state["behaviour"]["scale"][5:].tolist() == pytest.approx([3**0.5 / 100] * 2, rel=0.15)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_masked_actions_are_never_taken_and_the_rest_is_learnt(
    vectorization: str, tmp_path: Path
) -> None:
    # The environment raises where an action is not allowed.
    config = run_config(
        "Masked", tmp_path, {}, f"collect.vectorization={vectorization}", "total_frames=4096",
        "clocks.batch_size=256", "clocks.update_frequency=256", "clocks.update_epochs=8",
        "optim.learning_rate=3e-3", "eval.episodes=8",
    )  # fmt: skip
    result = rl_twoclocks.train(config)
    # Uniform over what is allowed gives 32 an episode, always the highest about 51.
    assert result.return_mean is not None
    assert result.return_mean > 40


def test_a_mask_that_allows_nothing_is_an_error_that_says_where(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"action_mask of environment 0 .* at its decision 5"):
        rl_twoclocks.train(run_config("Masked", tmp_path, {"empty": 5}))
