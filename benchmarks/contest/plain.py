"""A plain PyTorch loop, written with care: copy the weights in, train, add up, divide.

    python plain.py FOLDER [--processes N] [--threads N]
With more than one process each trains its share of the cohort and adds it up in shared memory.
"""

import argparse
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from line import Line
from torch import Tensor, multiprocessing, nn
from workload import Workload, loss_of, optimizer, save


def train(model: nn.Module, load: Workload, x: Tensor, y: Tensor) -> float:
    """One client's local run; returns its mean loss."""
    model.train()
    steps = optimizer(load.settings, model.parameters(), load.lr)
    total = 0.0
    for i in range(load.steps):
        part = slice(i * load.batch, (i + 1) * load.batch)
        steps.zero_grad()
        loss = loss_of(model, x[part], y[part])
        loss.backward()
        steps.step()
        total += loss.item()
    return total / max(1, load.steps)


class Loop:
    """A model, the data, and rounds over some clients."""

    def __init__(self, load: Workload) -> None:
        self.load = load
        self.data = load.data()
        self.model = load.model()
        self.rows = {client: i for i, client in enumerate(load.clients)}

    def sums(self, weights: dict[str, Tensor], clients: list[int], out: dict[str, Tensor]) -> float:
        """The clients' weights after training, added up into `out`; the sum of their losses."""
        total = 0.0
        for value in out.values():
            value.zero_()
        for client in clients:
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    parameter.copy_(weights[name])
            row = self.rows[client]
            total += train(self.model, self.load, self.data[0][row], self.data[1][row])
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    out[name] += parameter
        return total


def follow(pipe: Connection, folder: str, weights: Any, out: Any) -> None:
    """A second process: it trains the clients it is told, from and into shared memory."""
    torch.set_num_threads(1)
    loop = Loop(Workload(folder))
    pipe.send(0.0)
    while True:
        try:
            clients = pipe.recv()
        except EOFError:
            return
        pipe.send(loop.sums(weights, clients, out))


class Team:
    """Processes that share a cohort; with one it is the plain sequential loop."""

    def __init__(self, load: Workload, processes: int) -> None:
        self.load = load
        self.loop = Loop(load)
        self.weights = {n: w.clone().share_memory_() for n, w in load.weights.items()}
        self.mine = {n: torch.zeros_like(w) for n, w in load.weights.items()}
        self.others: list[tuple[Connection, dict[str, Tensor]]] = []
        context = multiprocessing.get_context("spawn")
        for _ in range(processes - 1):
            here, there = context.Pipe()
            out = {n: torch.zeros_like(w).share_memory_() for n, w in load.weights.items()}
            arguments = (there, str(load.folder), self.weights, out)
            context.Process(target=follow, args=arguments, daemon=True).start()
            here.recv()
            self.others.append((here, out))

    def round(self, clients: list[int]) -> float:
        """Mean weights after a round; returns the mean training loss."""
        n = 1 + len(self.others)
        for i, (pipe, _) in enumerate(self.others):
            pipe.send(clients[i + 1 :: n])
        total = self.loop.sums(self.weights, clients[::n], self.mine)
        for pipe, _ in self.others:
            total += pipe.recv()
        with torch.no_grad():
            for name, value in self.weights.items():
                value.copy_(self.mine[name])
                for _, out in self.others:
                    value += out[name]
                value /= len(clients)
        return total / len(clients)

    def start_over(self) -> None:
        for name, value in self.weights.items():
            value.copy_(self.load.weights[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    line = Line()
    load = Workload(given.folder)
    team = Team(load, given.processes)
    team.round(load.cohort(1))  # the first one fills caches
    team.start_over()
    line.say(ready=True, version=f"torch {torch.__version__}")
    number = 0
    for command in line.commands():
        if command["op"] == "save":
            save(command["path"], team.weights)
            line.say()
            continue
        number += 1
        if not load.goes_on:
            team.start_over()
        started = time.perf_counter()
        loss = team.round(load.cohort(number))
        line.say(seconds=time.perf_counter() - started, loss=loss)


if __name__ == "__main__":
    main()
