"""The account's balance at both ends of a run, where the endpoint profile asks for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kvbench.endpoints.balance import Balances, spent
from kvbench.errors import KvbenchError
from kvbench.model import Spent, Warning

Tell = Callable[[str, dict[str, str]], Any]
"""(phase, total balance by currency): what is kept of each reading."""


class Account:
    """`start()` before the first turn and `end()` after the last; a balance that cannot be read ends no run."""

    def __init__(self, read: Callable[[], Awaitable[Balances]] | None, tell: Tell) -> None:
        self._read = read
        self._tell = tell
        self._before: Balances | None = None
        self._after: Balances | None = None
        self.warnings: list[Warning] = []

    async def start(self) -> None:
        self._before = await self._reading("start")

    async def end(self) -> None:
        self._after = await self._reading("end")

    @property
    def spent(self) -> tuple[Spent, ...] | None:
        return spent(self._before, self._after)

    async def _reading(self, phase: str) -> Balances | None:
        if self._read is None:
            return None
        try:
            balances = await self._read()
        except KvbenchError as error:
            self.warnings.append(
                Warning(
                    code="balance_not_read",
                    message=f"the account's balance at the {phase} of the run could not be read: {error.message}",
                    advice="what the run cost cannot be bounded by the balance; leave balance out of the profile where "
                    "the endpoint has none",
                )
            )
            return None
        self._tell(phase, {currency: str(amount) for currency, amount in balances.items()})
        return balances
