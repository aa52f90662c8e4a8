"""The fleet: which node plays which client, who is there, and who is given a rest."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Fleet:
    """Nodes come and go; one that fails again and again rests, each time twice as long."""

    clients: int
    """client numbers run from 0 to below this"""
    rest_after: int = 2
    """failures in a row before a rest"""
    rest: int = 2
    """rounds of the first rest"""
    nodes: dict[int, int] = field(default_factory=dict)
    """client -> node id"""
    failures: dict[int, int] = field(default_factory=dict)
    """client -> failures in a row"""
    back_in: dict[int, int] = field(default_factory=dict)
    """client -> round in which its rest ends"""

    def met(self, node: int, client: object) -> str | None:
        """A node says which client it is; returns why that cannot be, or None."""
        if (
            not isinstance(client, int)
            or isinstance(client, bool)
            or not 0 <= client < self.clients
        ):
            return f"it says it is client {client}; clients are 0 to {self.clients - 1}"
        other = self.nodes.get(client, node)
        if other != node:
            return f"it says it is client {client}, and so does node {other}"
        self.nodes[client] = node
        return None

    def left(self, connected: Iterable[int]) -> None:
        """Forget the nodes that are no longer connected; their clients may come back as others."""
        there = set(connected)
        self.nodes = {client: node for client, node in self.nodes.items() if node in there}

    def present(self, round: int) -> list[int]:
        """Clients that are there and awake; all that are there where none is awake."""
        there = sorted(self.nodes)
        awake = [client for client in there if self.back_in.get(client, 0) <= round]
        return awake or there

    def heard(self, client: int, round: int, well: bool) -> None:
        """How a client's job ended."""
        if well:
            self.failures.pop(client, None)
            self.back_in.pop(client, None)
            return
        failed = self.failures[client] = self.failures.get(client, 0) + 1
        if failed >= self.rest_after:
            self.back_in[client] = round + 1 + self.rest * 2 ** min(failed - self.rest_after, 6)
