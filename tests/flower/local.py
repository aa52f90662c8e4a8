"""A Grid whose nodes answer in this process: what a SuperLink does, without its processes."""

import time
from dataclasses import dataclass, field

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


@dataclass
class Node:
    app: object
    context: Context
    slow: float = 0.0
    """seconds until a reply to a train message is there"""
    connected: bool = True


@dataclass
class LocalGrid(Grid):
    nodes: dict[int, Node] = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)
    answered: list[Message] = field(default_factory=list)
    tamper: object = None
    """a function of (node id, reply) -> reply"""
    waiting: dict[str, tuple[float, Message]] = field(default_factory=dict)

    def add(self, node_id, app, partition, slow=0.0, **config):
        about = {"partition-id": partition, **config}
        context = Context(1, node_id, about, RecordDict(), {})
        self.nodes[node_id] = Node(app, context, slow)

    def get_node_ids(self):
        return [i for i, node in self.nodes.items() if node.connected]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            to = message.metadata.dst_node_id
            name = f"message-{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            self.sent.append(message)
            ids.append(name)
            node = self.nodes[to]
            if not node.connected:
                continue
            try:
                reply = node.app(message, node.context)
            except Exception as error:
                reply = Message(Error(code=0, reason=str(error)), reply_to=message)
            training = message.metadata.message_type == "train"
            if training and self.tamper is not None:
                reply = self.tamper(to, reply)
            self.answered.append(reply)
            wait = node.slow if training else 0.0
            self.waiting[name] = (time.monotonic() + wait, reply)
        return ids

    def pull_messages(self, message_ids):
        now = time.monotonic()
        ready = [i for i in message_ids if i in self.waiting and self.waiting[i][0] <= now]
        return [self.waiting.pop(i)[1] for i in ready]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError
