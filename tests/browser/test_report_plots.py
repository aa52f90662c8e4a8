"""What Plotly was told to draw on the report's page."""

import pytest
from chromium import chromium, drawn, no_sideways_scroll, opener

from fedbudget.report.load import find_runs
from fedbudget.report.write import write_report
from served import write_run

pytestmark = pytest.mark.browser


def test_the_limit_is_over_the_grid_rounds_are_whole_and_names_leave_room(tmp_path):
    name = "planner (with a name that is longer than a phone is wide)"
    write_run(tmp_path / "runs/a", done=3, name=name)
    (page,) = write_report(find_runs([tmp_path / "runs"]), tmp_path / "r.html")
    with chromium() as browser, opener(browser) as opened:
        tab = opened(page.as_uri(), width=390)
        drawn(tab)
        ticks = "plot => plot._fullLayout.xaxis._vals.map((tick) => tick.x)"
        assert tab.locator("#chart-loss .plot").evaluate(ticks) == [1, 2, 3]
        usage = tab.locator("#chart-usage .plot").first
        first, second, *_ = usage.evaluate("plot => plot.data.map(({ x, y }) => ({ x, y }))")
        assert first == {"x": [1, 3], "y": [1, 1]}  # under the curves, as the first trace
        assert len(second["x"]) == 3
        no_sideways_scroll(tab)
        box = tab.locator(".sheets tbody th").first.bounding_box()
        assert box["width"] <= 0.45 * 390 + 1
