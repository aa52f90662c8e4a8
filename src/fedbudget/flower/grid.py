"""The grid engine: our rounds over Flower's Grid. Flower carries; nothing here is a transport."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedbudget.algorithms.algorithm import Sent
from fedbudget.codecs import frame
from fedbudget.codecs.frame import Packed
from fedbudget.engines.assess import Figures
from fedbudget.engines.embedded import InProcess
from fedbudget.errors import UserError
from fedbudget.flower import records
from fedbudget.flower.fleet import Fleet
from fedbudget.flower.store import Shelf
from fedbudget.plan import Plan
from fedbudget.types import Ack, Job, Reply

log = logging.getLogger("flwr.fedbudget")


@dataclass(frozen=True)
class Patience:
    """How long the server waits, and for whom."""

    least: int = 1
    """clients that must be there before a round starts"""
    wait: float = 600.0
    """seconds to wait for them"""
    deadline: float = 0.0
    """seconds that a round may take; later replies are counted and dropped; 0 waits for all"""
    poll: float = 0.02
    """seconds between two looks for replies"""
    greeting: float = 300.0
    """seconds that a new node has to say which client it is"""


class GridEngine:
    """Jobs to nodes and replies back. Client state stays on the nodes."""

    kind = "flower"

    def __init__(
        self,
        grid: Grid,
        plan: Plan,
        patience: Patience | None = None,
        fleet: Fleet | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        self.grid = grid
        self.plan = plan
        self.patience = patience or Patience()
        self.fleet = fleet or Fleet(len(plan.clients))
        self.home = InProcess(plan)
        self.late = 0
        self.overdue: dict[str, Job] = {}
        """message id -> a job whose round is over"""
        self.greeted: dict[str, tuple[int, float]] = {}
        """message id -> (node, until when it may answer)"""
        self.known: set[int] = set()
        self.floors: dict[int, int] = {}
        self.simulated = shelf is not None
        if shelf is not None:  # a simulation: all nodes' disks are here
            self.home.states = shelf
        self.states = self.home.states

    def available(self, round: int) -> Sequence[int]:
        """Wait for the least number of clients; a simulation has all from the start."""
        until = time.monotonic() + self.patience.wait
        while True:
            self._meet()
            present = self.fleet.present(round)
            if len(self.fleet.nodes) >= self.patience.least and not self._expected():
                return present
            if time.monotonic() > until:
                raise UserError(
                    f"{len(self.fleet.nodes)} of the {self.patience.least} clients that a round "
                    f"needs are connected after {self.patience.wait:g} s"
                )
            time.sleep(self.patience.poll)

    def run(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        pending: dict[str, Job] = {}
        started = time.monotonic()
        frames: dict[int, ConfigRecord] = {}
        for job in jobs:
            down = frames.get(id(job.payload))
            if down is None:
                down = frames[id(job.payload)] = records.framed(job.payload)
            content = records.job_content(job, down, self.floors.get(job.client, 0))
            sent = self._push(content, self.fleet.nodes[job.client], records.TRAIN, job.round)
            if sent is None:
                yield self._ended(job, Reply.failure(job, "Flower did not take its message"))
            else:
                pending[sent] = job
        while pending:
            for message in self.grid.pull_messages([*pending, *self.overdue]):
                to = message.metadata.reply_to_message_id
                if to in pending:
                    job = pending.pop(to)
                    yield self._ended(job, records.read_reply(message, job))
                elif self.overdue.pop(to, None) is not None and not message.has_error():
                    self.late += 1
            if not pending:
                return
            if 0 < self.patience.deadline < time.monotonic() - started:
                break
            time.sleep(self.patience.poll)
        for sent, job in pending.items():
            self.overdue[sent] = job
            reason = f"no reply within {self.patience.deadline:g} s"
            yield self._ended(job, Reply.failure(job, reason))

    def evaluate(self, weights: Tensor) -> dict[str, float] | None:
        return self.home.evaluate(weights)

    def saved(self, acks: Mapping[int, Ack]) -> None:
        self.floors = {client: ack.round for client, ack in acks.items()}

    def assess(self, sent: Sent, acks: Mapping[int, Ack]) -> dict[str, float]:
        if self.simulated:
            return self.home.assess(sent, acks)
        found = self._ask(records.ASSESS, sent, acks, ("objective", "infeasibility"))
        return {
            "objective": _mean(found, "objective"),
            "infeasibility": _mean(found, "infeasibility"),
            "worst_infeasibility": max(f["infeasibility"] for f in found),
        }

    def final(
        self, sent: Sent, acks: Mapping[int, Ack]
    ) -> tuple[Figures, Iterator[tuple[int, Tensor]]]:
        if self.simulated:
            return self.home.final(sent, acks)
        found = self._ask(records.FINAL, sent, acks, ("projected_sparsity",))
        return {"projected_sparsity": _mean(found, "projected_sparsity")}, iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def _push(self, content: RecordDict, node: int, kind: str, group: int) -> str | None:
        message = Message(content, node, kind, group_id=str(group))
        ids = list(self.grid.push_messages([message]))
        return ids[0] if ids and ids[0] else None

    def _ended(self, job: Job, reply: Reply) -> Reply:
        self.fleet.heard(job.client, job.round, reply.error is None)
        return reply

    def _meet(self) -> None:
        """Ask nodes that are new which client they are, and hear those that were asked."""
        connected = set(self.grid.get_node_ids())
        self.fleet.left(connected)
        self.known &= connected
        for node in sorted(connected - self.known):
            sent = self._push(RecordDict(), node, records.WHO, 0)
            if sent is not None:
                self.known.add(node)
                self.greeted[sent] = (node, time.monotonic() + self.patience.greeting)
        if not self.greeted:
            return
        for message in self.grid.pull_messages(list(self.greeted)):
            node, _ = self.greeted.pop(message.metadata.reply_to_message_id)
            problem = self._introduced(node, message)
            if problem:
                log.warning("node %d is not used: %s", node, problem)
        for sent in [s for s, (_, until) in self.greeted.items() if until < time.monotonic()]:
            node, _ = self.greeted.pop(sent)
            log.warning("node %d did not say which client it is", node)
            self.known.discard(node)  # it is asked again

    def _introduced(self, node: int, message: Message) -> str | None:
        if message.has_error():
            return message.error.reason
        try:
            return self.fleet.met(node, records.read_header(message.content, "who").get("client"))
        except ValueError as problem:
            return str(problem)

    def _expected(self) -> bool:
        """Whether a node that is connected has not yet said who it is."""
        return bool(self.greeted)

    def _ask(
        self, kind: str, sent: Sent, acks: Mapping[int, Ack], needs: Sequence[str]
    ) -> list[dict[str, float]]:
        """A question to every client that is there; answers of finite numbers only."""
        down = records.framed(self._packed(sent))
        pending = set()
        for client, node in self.fleet.nodes.items():
            ack = acks.get(client)
            ask = records.header({"ack": [ack.round, *ack.counts] if ack else None})
            pushed = self._push(RecordDict({"ask": ask, "down": down}), node, kind, 0)
            if pushed is not None:
                pending.add(pushed)
        found: list[dict[str, float]] = []
        limit = self.patience.deadline or self.patience.wait
        started = time.monotonic()
        while pending and time.monotonic() - started < limit:
            for message in self.grid.pull_messages(list(pending)):
                pending.discard(message.metadata.reply_to_message_id)
                answer = _numbers(message, needs)
                if answer is not None:
                    found.append(answer)
            time.sleep(self.patience.poll if pending else 0)
        if not found:
            raise UserError(f"no node answered within {limit:g} s how its own model does")
        return found

    def _packed(self, sent: Sent) -> Packed:
        layout = self.home.host.model.layout
        plan = self.plan
        return frame.pack(
            sent, layout, run=plan.run, round=0, client=-1, seed=plan.seed, codec=layout.raw
        )


def _numbers(message: Message, needs: Sequence[str]) -> dict[str, float] | None:
    if message.has_error():
        return None
    try:
        fields: dict[str, Any] = records.read_header(message.content, "found")
        answer = {name: float(fields[name]) for name in needs}
    except (ValueError, TypeError, KeyError):
        return None
    return answer if all(map(math.isfinite, answer.values())) else None


def _mean(found: Sequence[Mapping[str, float]], name: str) -> float:
    return math.fsum(f[name] for f in found) / len(found)


MakeEngine = Callable[[], GridEngine]
