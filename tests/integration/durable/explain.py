"""What a statement of a queue really touches, told by PostgreSQL and not by a watch."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection

from agent_reach.durable import Settlement
from agent_reach.durable.claims import Claimed

from .ground import RowQueue


@dataclass(frozen=True, slots=True)
class Cost:
    """What one execution touched.

    Attributes:
        rows: that it changed or returned.
        buffers: pages that it looked at.
        milliseconds: that PostgreSQL took for it.
    """

    rows: int
    buffers: int
    milliseconds: float

    @property
    def beside_its_rows(self) -> int:
        """The pages that cannot be explained by the work on the rows (index look-ups, a new version, its entries)."""
        return self.buffers - 25 * self.rows


class _ExplainedError(Exception):
    pass


class _Explaining:
    """A connection that explains the first statement instead of executing it for its result."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection

    def cursor(self, **_: object) -> _Explaining:
        return self

    async def execute(self, statement: str, parameters: Mapping[str, object]) -> None:
        cursor = await self._connection.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement}", parameters
        )
        ((plans,),) = await cursor.fetchall()
        plan = plans[0]["Plan"]
        buffers = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        milliseconds = plans[0]["Planning Time"] + plans[0]["Execution Time"]
        raise _ExplainedError(Cost(int(plan["Actual Rows"]), buffers, milliseconds))


async def explained(connection: AsyncConnection[Any], call: Callable[[Any], Awaitable[object]]) -> Cost:
    """Returns what a method of a queue touches, called with a connection; what it wrote is undone."""
    try:
        async with connection.transaction():
            await call(_Explaining(connection))
    except _ExplainedError as result:
        cost: Cost = result.args[0]
        return cost
    raise AssertionError("it executed nothing")


class ExplainedQueue(RowQueue):
    """A queue that notes what its claims cost. Every `every`-th is explained, and then done."""

    def __init__(self, every: int = 1) -> None:
        super().__init__()
        self.costs: list[Cost] = []
        self.seconds: list[float] = []
        self.settled = 0
        self._every = every

    def timing(self) -> str:
        """Returns how long the claims took, as the engine saw it, and those explained as PostgreSQL saw it."""
        here = _spread([1000 * seconds for seconds in self.seconds])
        there = _spread([cost.milliseconds for cost in self.costs])
        return f"{here}; of these in PostgreSQL {there}"

    async def claim(self, connection: AsyncConnection[Any], owner: UUID, limit: int, **options: Any) -> Claimed:
        claim = super().claim
        if len(self.seconds) % self._every == 0:
            self.costs.append(await explained(connection, lambda c: claim(c, owner, limit, **options)))
        began = time.perf_counter()
        claimed = await claim(connection, owner, limit, **options)
        self.seconds.append(time.perf_counter() - began)
        return claimed

    async def apply(self, connection: AsyncConnection[Any], settled: Sequence[Settlement]) -> None:
        await super().apply(connection, settled)
        self.settled += len(settled)


def _spread(milliseconds: Sequence[float]) -> str:
    ordered = sorted(milliseconds)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    return f"{len(ordered)} claims, ms: p50 {p50:.1f}, p99 {p99:.1f}, most {ordered[-1]:.1f}"
