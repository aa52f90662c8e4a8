"""The privacy that a config asks for, where the rest of the config keeps it."""

from fedbudget.config import Config
from fedbudget.models.flat import Layout
from fedbudget.privacy import Privacy, check
from fedbudget.types import Knobs


def privacy(config: Config, layout: Layout, base: Knobs) -> Privacy:
    table, control = config.privacy, config.control
    how = Privacy(table.clip, table.noise, table.model, table.delta, config.train.cohort)
    chosen = control.codecs if config.budget.classes else [base.codec]
    codecs = {"fixed": [base.codec], "planner": control.codecs, "rotation": chosen}
    check(
        how,
        layout,
        weighting=config.train.weighting,
        codecs=codecs.get(control.controller, []),
        remembers=config.codec.feedback != "none",
        compares=config.train.screen != "off" or config.train.aggregate != "mean",
    )
    return how


def noise_warning(config: Config) -> str | None:
    """A sentence where updates are clipped and nothing is protected."""
    if config.privacy.clip == 0 or config.privacy.noise > 0:
        return None
    return "privacy.noise = 0: updates are clipped, and nothing is protected"
