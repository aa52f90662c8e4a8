import marimo

app = marimo.App(app_title="Budgets in ten minutes")


@app.cell
def _():
    import marimo as mo

    mo.md(
        """
        Twelve devices learn to tell three kinds of points apart. Each has an energy and an uplink
        budget for every round. We train without and within the budgets, and look.
        """
    )
    return (mo,)


@app.cell
def _():
    import torch
    from matplotlib import pyplot as plt
    from torch import nn

    import fedbudget as fb
    from fedbudget.control.duals import ascent
    from fedbudget.control.paper import dual_controller
    from fedbudget.control.policies import Base, cafl

    torch.manual_seed(0)
    centres = 0.4 * torch.randn(3, 20)
    y = torch.randint(3, (3000,))
    x = centres[y] + torch.randn(3000, 20)
    clients = [(x[i:2400:12], y[i:2400:12]) for i in range(12)]
    validation = (x[2400:], y[2400:])
    budget = fb.Budget(energy="30%", communication="12%")

    def make_model():
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))

    return Base, ascent, budget, cafl, clients, dual_controller, fb, make_model, plt, validation


@app.cell
def _(mo):
    mo.md(
        """
        `planner` knows costs beforehand. `duals` is the papers' way: prices rise while usage is over
        budget, and knobs follow the prices. Either is given to `train` as a function of costs,
        budgets, base knobs and cohort.
        """
    )
    return


@app.cell
def _(Base, ascent, budget, cafl, clients, dual_controller, fb, make_model, validation):
    def duals(costs, budgets, base, cohort):
        start = Base(k=base.layers - 1, s=base.steps, b=base.batch)
        return dual_controller(
            *(start, base.layers, budgets, cafl, ascent(eta=0.12)),
            accounting="counted",
            preserve_tokens=False,
        )

    def train(name, controller=None):
        return fb.train(
            *(make_model, clients, validation),
            name=name,
            rounds=12,
            cohort=4,
            steps=40,
            batch=16,
            lr=1e-3,
            budget=budget,
            controller=controller,
            quiet=True,
        )

    runs = [train("FedAvg"), train("duals", duals), train("planner", fb.planner())]
    return (runs,)


@app.cell
def _(mo):
    mo.md(
        """
        FedAvg is over both budgets in every round. The duals break them first and then learn; the
        planner is within them from round 1. What the duals gain in loss they paid for in those
        first rounds.
        """
    )
    return


@app.cell
def _(runs):
    for run in runs:
        counted = run.summary["usage"]["counted"]
        used = {name: counted[name] for name in ("energy", "communication")}
        worst = {name: round(u["worst"] / u["budget"], 2) for name, u in used.items()}
        over = {name: u["rounds_over"] for name, u in used.items()}
        loss = run.summary["validation"]["loss"]
        print(f"{run.plan.name:8} loss {loss:.3f}, worst / budget {worst}, rounds over {over}")
    return


@app.cell
def _(plt, runs):
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for _run in runs:
        limit = _run.plan.budgets["counted"][0]["energy"]
        rounds = [r.round for r in _run.records]
        energy = [max(u["energy"] for u in r.usage["counted"].values()) for r in _run.records]
        left.plot(rounds, _run.losses, label=_run.plan.name)
        middle.plot(rounds, [e / limit for e in energy], label=_run.plan.name)
    for resource in ("energy", "communication"):
        prices = [r.duals.get("*", {}).get(resource, 0.0) for r in runs[1].records]
        right.plot(rounds, prices, label=resource)
    middle.axhline(1, color="grey", linestyle=":")
    left.set(title="Validation loss", xlabel="round")
    middle.set(title="Energy / budget", xlabel="round", ylim=(0, None))
    right.set(title='Duals of the run "duals"', xlabel="round")
    for axes in (left, middle, right):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure
    return (figure,)


if __name__ == "__main__":
    app.run()
