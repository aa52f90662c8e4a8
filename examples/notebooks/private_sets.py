import marimo

app = marimo.App(app_title="Private constraint sets")


@app.cell
def _():
    import marimo as mo

    mo.md(
        """
        Three agents fit a model with two weights. Each has a rule about its own weights that it
        tells nobody: a ball round a centre of its own. One shared model cannot obey them all.
        PC-FedAvg gives each agent its own model and learns their mean.
        """
    )
    return (mo,)


@app.cell
def _():
    import torch
    from matplotlib import pyplot as plt
    from torch import nn

    import fedbudget as fb
    from fedbudget.algorithms.fedavg import fedavg
    from fedbudget.algorithms.pc_fedavg import pc_fedavg
    from fedbudget.algorithms.terms import growing, penalty
    from fedbudget.client import Recipe
    from fedbudget.constraints import around, distance, l2_ball

    torch.manual_seed(0)
    centres = torch.tensor([[0.0, 0.2], [2.2, 0.2], [1.1, 2.0]])
    sets = [around(l2_ball(0.6), centre.tolist()) for centre in centres]
    best = torch.tensor([1.6, 1.2])  # what the data alone would say

    x = torch.randn(600, 2)
    y = x @ best + 0.1 * torch.randn(600)
    clients = [(x[i::3], y[i::3]) for i in range(3)]

    def loss(model, inputs, targets):
        return nn.functional.mse_loss(model(inputs).squeeze(-1), targets) / 2

    return (
        Recipe,
        best,
        centres,
        clients,
        distance,
        fb,
        fedavg,
        growing,
        loss,
        nn,
        pc_fedavg,
        penalty,
        plt,
        sets,
        torch,
    )


@app.cell
def _(Recipe, clients, fb, fedavg, growing, loss, nn, pc_fedavg, penalty, sets):
    def train(algorithm, lr):
        return fb.train(
            nn.Linear(2, 1, bias=False),
            clients,
            loss=loss,
            rounds=60,
            steps=5,
            batch=50,
            lr=lr,
            recipe=Recipe(optimizer="sgd"),
            algorithm=algorithm,
            constraints=sets,
            quiet=True,
        )

    # a step counts for the mean with a third of its size, so PC-FedAvg's is three times as large
    own = train(pc_fedavg(agents=3, rho=growing(0.5)), lr=0.3)
    shared = train(fedavg(terms=[penalty(growing(0.5))]), lr=0.1)
    return own, shared


@app.cell
def _(mo):
    mo.md(
        """
        The distance of each agent's model to its own set. The shared model is outside every set: it
        has to give way to all of them at once.
        """
    )
    return


@app.cell
def _(distance, own, sets, shared, torch):
    def weights(module):
        return torch.cat([p.detach().flatten() for p in module.parameters()])

    for run, name in ((own, "PC-FedAvg"), (shared, "penalised FedAvg")):
        far = [float(distance(s, weights(run.personal(i)))) for i, s in enumerate(sets)]
        print(f"{name:17} distance to own set: {', '.join(f'{d:.3f}' for d in far)}")
    return (weights,)


@app.cell
def _(best, centres, own, plt, shared, weights):
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    colours = ("tab:blue", "tab:orange", "tab:green")
    for i, colour in enumerate(colours):
        axes.add_patch(plt.Circle(centres[i].tolist(), 0.6, color=colour, alpha=0.25, lw=0))
        axes.plot(*weights(own.personal(i)), "o", color=colour, label=f"agent {i}'s own model")
    axes.plot(*weights(own.model), "k*", ms=12, label="PC-FedAvg: their mean")
    axes.plot(*weights(shared.model), "kX", ms=8, label="penalised FedAvg: one for all")
    axes.plot(*best, "k+", ms=15, mew=1, label="without any set")
    axes.set(aspect="equal", xlabel="first weight", ylabel="second weight", xlim=(-0.8, 3.0))
    axes.set_ylim(-0.6, 2.8)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    figure
    return (figure,)


if __name__ == "__main__":
    app.run()
