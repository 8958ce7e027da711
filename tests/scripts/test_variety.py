"""The comparison of trimming and reseeding: which cures act in an arm, and when a verdict is given."""

from __future__ import annotations

import variety

from rl_twoclocks import compose


def test_only_the_cures_of_an_arm_act() -> None:
    for arm, cures in variety.ARMS.items():
        found = compose(["task=cartpole", "interventions=observe", *variety.overrides(arm)])
        assert found.interventions.governor == ("guard" if cures else "observe")
        if cures:
            acting = [c for c in variety.CURES if getattr(found.interventions, c).enabled]
            assert acting == cures
            every = found.interventions.model_dump().values()
            assert sum(isinstance(x, dict) and x["enabled"] for x in every) == len(cures)


def rows(returns: dict[tuple[str, str], float]) -> list[dict]:
    return [
        {"task": task, "fault": fault, "arm": arm, "seed": seed, "return_mean": value + seed % 2}
        for (fault, arm), value in returns.items()
        for task in variety.TASKS
        for seed in variety.SEEDS
    ]


def test_a_verdict_waits_for_all_seeds_and_goes_by_the_interval() -> None:
    made = rows(
        {
            ("-", "healthy"): 400.0,
            ("frozen", "none"): 200.0,
            ("frozen", "trim"): 300.0,
            ("frozen", "reseed"): 100.0,
            ("frozen", "both"): 200.0,
        }
    )
    said = [line.rsplit(" ", 1)[1] for line in variety.verdicts(made)[:4]]
    assert said == ["harms", "helps", "hurts", "undecided"]
    assert all("not complete" in line for line in variety.verdicts(made)[4:])
    assert "not complete" in variety.verdicts(made[:-1])[3]
    assert variety.verdicts(made[1:]) == ["not complete yet: healthy"]
