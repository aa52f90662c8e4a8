"""A ClientApp that answers our engine, and beside it what Flower's quickstart does, untrained."""

from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedbudget.flower.node import client_app
from fedbudget.models.gpt import GPT


def make(size: str) -> torch.nn.Module:
    layers, width = map(int, size.split("x"))
    return GPT(65, 128, layers, width, width // 32)


@lru_cache(maxsize=1)
def module(size: str) -> torch.nn.Module:
    return make(size)


def with_stock(size, device) -> ClientApp:
    """Our ClientApp with a second train function."""
    app = client_app(device)

    @app.train("stock")
    def stock(message: Message, context: Context) -> Message:
        net = module(size)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    return app
