"""Looks at the runs once a second while somebody is watching, and not at all otherwise."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from fedbudget.dashboard.folders import DAMAGE
from fedbudget.dashboard.rows import Row
from fedbudget.dashboard.shelf import Shelf

EVERY_S = 1.0
BEAT_S = 15.0
"""a stream says something at least this often, so that a dead one is noticed"""


@dataclass
class Watch:
    shelf: Shelf
    watchers: int = 0
    rows: Mapping[str, Row] = field(default_factory=dict)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    closing: bool = False
    task: asyncio.Task[None] | None = None
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def look(self) -> Mapping[str, Row]:
        """The runs as they are now; told to every stream."""
        async with self.busy:
            rows = await asyncio.to_thread(self.shelf.scan)
        if rows is not self.rows:
            self.rows = rows
            async with self.changed:
                self.changed.notify_all()
        return rows

    async def close(self) -> None:
        """End every stream."""
        self.closing = True
        if self.task:
            self.task.cancel()
        async with self.changed:
            self.changed.notify_all()

    async def stream(self) -> AsyncIterator[str]:
        """Server-sent events: all runs first, then those that changed. A slow reader misses
        nothing but what was overtaken."""
        seen: Mapping[str, Row] = {}
        first = True
        self.watchers += 1
        try:
            rows = await self.look()
            if self.task is None or self.task.done():
                self.task = asyncio.create_task(self._keep_looking())
            while not self.closing:
                if first or rows is not seen:
                    yield f"data: {json.dumps(difference(seen, rows, first))}\n\n"
                    seen, first = rows, False
                else:
                    yield ": still here\n\n"
                async with self.changed:
                    if self.rows is seen and not self.closing:
                        with suppress(TimeoutError):
                            await asyncio.wait_for(self.changed.wait(), BEAT_S)
                rows = self.rows
        finally:
            self.watchers -= 1

    async def _keep_looking(self) -> None:
        while self.watchers and not self.closing:
            await asyncio.sleep(EVERY_S)
            with suppress(*DAMAGE):  # a disk that is away for a moment: the next look may do
                await self.look()


def difference(seen: Mapping[str, Row], rows: Mapping[str, Row], first: bool) -> dict[str, Any]:
    """What a page that has `seen` must be told."""
    return {
        "all": first,
        "runs": [asdict(row) for id, row in rows.items() if seen.get(id) != row],
        "gone": [id for id in seen if id not in rows],
    }
