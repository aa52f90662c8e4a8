"""The ClientApp of Flower's contestant; a module of its own, because Ray's processes import it."""

from functools import lru_cache
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from plain import train
from workload import Workload


@lru_cache(maxsize=1)
def device(folder: str) -> tuple[Workload, Any, torch.nn.Module]:
    """What a process has: made once, not once a message."""
    torch.set_num_threads(1)
    load = Workload(folder)
    return load, load.data(), load.model()


def client_app(folder: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def local_run(message: Message, context: Context) -> Message:
        load, (x, y), model = device(folder)
        row = int(context.node_config["partition-id"])
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loss = train(model, load, x[row], y[row])
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"train_loss": loss, "num-examples": len(y[row])}),
            }
        )
        return Message(content=content, reply_to=message)

    return app
