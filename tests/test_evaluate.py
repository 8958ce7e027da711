"""An evaluation ends, whatever the task does."""

from __future__ import annotations

import pytest
import torch

from rl_twoclocks import compose
from rl_twoclocks.envs import make_env
from rl_twoclocks.evaluate import evaluate


def test_an_episode_that_does_not_end_counts_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_twoclocks.evaluate.LONGEST", 20)
    config = compose(["task=pendulum"])
    env = make_env(config.task, config.collect, 2, [1, 2])
    with pytest.warns(UserWarning, match="has not ended"):
        result = evaluate(lambda observation: torch.zeros(2, 1), env, 4, [1, 2])
    env.close()
    assert result is not None
    assert result.lengths == [20] * 4
    assert max(result.returns) < 0
