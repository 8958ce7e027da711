"""`python -m rl_twoclocks.record.workspace entity/project`: a W&B view in the order of reading.

Gradient norm and KL stand first, then the return, then the two clocks, as in the live display and the
report. The view is saved to the project of whoever is logged in; `--json` prints it instead, without
network.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from rl_twoclocks.cli import check_options, explain
from rl_twoclocks.config import ConfigError
from rl_twoclocks.output import outlive_readers

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

NAME = "rl_twoclocks: gradient norm and KL first"
MORE = {
    "Gradients by layer": "^grad_norm/",
    "Signs": "^diag/",
    "Alarms and orders": "^(alarm|order)/",
    "Training": "^train/",
    "Time": "^time/",
}
"""Folded sections below the panels, and the metrics that are in the picture of each."""


def workspace(entity: str, project: str) -> Workspace:
    """Build the view; nothing is sent.

    Raises:
        ConfigError: wandb-workspaces is not installed.
    """
    try:
        import wandb_workspaces.reports.v2 as panels
        import wandb_workspaces.workspaces as views
    except ImportError:
        raise ConfigError("a W&B view needs wandb-workspaces: pip install '.[workspace]'") from None
    from rl_twoclocks.reporting.figures import PANELS, VARIANCE, Panel

    def plots(panel: Panel) -> list[Any]:
        return [
            panels.LinePlot(
                title=f"{panel.title}: {label}", x="frames", y=[name], title_x="frames",
                title_y=panel.unit, log_y=panel.log, smoothing_type="none",
            )
            for name, label in panel.metrics
            # Computed by the report; the returns that it is made of are recorded.
            if name != VARIANCE
        ]  # fmt: skip

    shown = [(panel, found) for panel in PANELS if (found := plots(panel))]
    sections = [
        views.Section(name=f"{number}. {panel.title}", panels=found, is_open=True)
        for number, (panel, found) in enumerate(shown, 1)
    ]
    sections += [
        views.Section(
            name=name,
            panels=[panels.LinePlot(title=name, x="frames", metric_regex=regex, title_x="frames")],
        )
        for name, regex in MORE.items()
    ]
    settings = views.WorkspaceSettings(x_axis="frames", smoothing_type="none", max_runs=20)
    return views.Workspace(
        entity=entity, project=project, name=NAME, sections=sections, settings=settings
    )


def spec(view: Workspace) -> dict[str, Any]:
    """The view as W&B stores it."""
    model = view._to_model()
    return json.loads(model.spec.model_dump_json(by_alias=True, exclude_none=True))


def main() -> None:
    """Save or print the view; exit codes are those of the other commands."""
    outlive_readers()
    parser = argparse.ArgumentParser(
        prog="python -m rl_twoclocks.record.workspace", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("place", metavar="entity/project", help="where the runs are")
    parser.add_argument("--json", action="store_true", help="print the view, and send nothing")
    try:
        check_options(sys.argv[1:], ("--json", "--help", "-h"))
        options = parser.parse_args()
        entity, slash, project = options.place.partition("/")
        if not (entity and slash and project) or len(options.place.split()) != 1 or "/" in project:
            raise ConfigError(
                f"{options.place}: write entity/project, as in the address of the runs"
            )
        view = workspace(entity, project)
        if options.json:
            print(json.dumps(spec(view), indent=2))
        else:
            save(view)
    except Exception as error:
        sys.exit(explain(error))


def save(view: Workspace) -> None:
    """Send the view to W&B.

    Raises:
        ConfigError: nobody is logged in, or W&B refuses it.
    """
    import wandb

    from rl_twoclocks.record.wandb import logged_in

    if not logged_in(wandb):
        raise ConfigError("nobody is logged in to W&B on this machine: wandb login")
    try:
        view.save()
    except Exception as error:
        raise ConfigError(f"W&B did not take the view: {error}") from error
    print(view.url)


if __name__ == "__main__":
    main()
