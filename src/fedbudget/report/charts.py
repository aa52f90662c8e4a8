"""All charts that the runs have something to show for."""

from collections.abc import Sequence
from dataclasses import replace

from fedbudget.report.chart import Chart
from fedbudget.report.constrained import agents_chart, constrained_chart
from fedbudget.report.fleet import fleet_chart
from fedbudget.report.knobs import knobs_chart, layers_chart
from fedbudget.report.load import Loaded
from fedbudget.report.loss import cost_chart, loss_chart
from fedbudget.report.traffic import failures_chart, traffic_chart
from fedbudget.report.usage import duals_chart, usage_chart


def charts(runs: Sequence[Loaded]) -> list[Chart]:
    """The loss is always first."""
    makers = (
        *(loss_chart, cost_chart, constrained_chart, agents_chart, usage_chart),
        *(duals_chart, knobs_chart, layers_chart, fleet_chart, traffic_chart, failures_chart),
    )
    commands = list(dict.fromkeys(run.command for run in runs if run.command))
    return [replace(chart, commands=commands) for make in makers if (chart := make(runs))]
