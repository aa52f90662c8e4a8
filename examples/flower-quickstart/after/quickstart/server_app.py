"""The server: FedAvg, and the test set after every round."""

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedbudget.flower import Budgeted
from quickstart.task import Net, load_test, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    settings = context.run_config
    steps, batch = settings["local-steps"], settings["batch-size"]
    images = load_test(settings["test-images"])
    net = Net()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = test(net, images)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    strategy = FedAvg(fraction_evaluate=0.0)
    strategy = Budgeted(
        strategy,
        model=net,
        example=images,
        budget={"energy": "50%", "communication": "25%"},
        steps=steps,
        batch=batch,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net.state_dict()),
        num_rounds=settings["num-server-rounds"],
        train_config=ConfigRecord({"lr": settings["lr"], "steps": steps, "batch": batch}),
        evaluate_fn=evaluate,
    )
