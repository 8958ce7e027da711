from __future__ import annotations

import inspect

import pytest
import torch
import torch_optimizer
from torch import nn

from rl_twoclocks.config import ConfigError, OptimConfig
from rl_twoclocks.optim import check_optimizer, make_optimizer
from rl_twoclocks.optim.build import optimizer_class


def all_names() -> list[str]:
    found = set()
    for module in (torch.optim, torch_optimizer):
        for name, value in vars(module).items():
            if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer):
                found.add(name)
    return sorted(found)


def test_torchs_class_wins_where_both_have_the_name() -> None:
    assert optimizer_class("RAdam") is torch.optim.RAdam
    assert optimizer_class("DiffGrad") is torch_optimizer.DiffGrad


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("Adamm", "Adam"), ("adam", "Adam"), ("RAdm", "RAdam"), ("lamb", "Lamb"), ("sgd", "SGD")],
)
def test_an_unknown_optimizer_names_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_optimizer(OptimConfig(name=wrong))
    assert f"'{wrong}'" in str(error.value)
    assert right in str(error.value).split("did you mean")[1]


def test_an_optimizer_unlike_any_lists_what_is_known() -> None:
    with pytest.raises(ConfigError, match=r"known are .*'Adam'"):
        check_optimizer(OptimConfig(name="zzzzzz"))


@pytest.mark.parametrize("name", ["LBFGS", "SparseAdam", "Optimizer"])
def test_optimizers_that_cannot_step_here_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="neither"):
        check_optimizer(OptimConfig(name=name))


@pytest.mark.parametrize(
    ("name", "kwargs", "match"),
    [
        ("Adam", {"epz": 1e-5}, r"optim\.kwargs\.epz is no argument of Adam: did you mean eps"),
        ("Lamb", {"weight_decai": 0}, r"weight_decai is no argument of Lamb.*weight_decay"),
        ("Adam", {"lr": 1.0}, r"optim\.kwargs\.lr"),
        ("Adam", {"params": []}, r"optim\.kwargs\.params"),
        ("Adam", {"betas": [2.0, 0.9]}, "Adam"),
        ("Adam", {"eps": "small"}, "Adam"),
        ("Adam", {"betas": 0.9}, "Adam"),
    ],
)
def test_wrong_arguments_are_named(name: str, kwargs: dict, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        check_optimizer(OptimConfig(name=name, kwargs=kwargs))


@pytest.mark.parametrize("name", all_names())
def test_what_passes_the_check_can_step_on_a_networks_gradients(name: str) -> None:
    config = OptimConfig(name=name)
    try:
        check_optimizer(config)
    except ConfigError:
        return
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = make_optimizer(config, net)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(torch.isfinite(p).all() for p in net.parameters())


def test_the_learning_rate_and_arguments_arrive() -> None:
    config = OptimConfig(name="Adam", learning_rate=0.125, kwargs={"eps": 0.5})
    group = make_optimizer(config, nn.Linear(2, 2)).param_groups[0]
    assert (group["lr"], group["eps"]) == (0.125, 0.5)
