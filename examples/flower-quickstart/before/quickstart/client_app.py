"""A node: trains the model it is sent on its own images."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, load_train
from quickstart.task import train as train_net

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    net.train()
    config = msg.content["config"]
    steps, batch = config["steps"], config["batch"]
    data = load_train(
        context.node_config["partition-id"],
        context.node_config["num-partitions"],
    )
    loss = train_net(net, data, steps, batch, config["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data)})
    arrays = ArrayRecord(net.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
