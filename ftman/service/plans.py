"""What a model will cost and do, before it is pulled or run: headers read here, judged there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ftman.catalog.catalog import Catalog
from ftman.errors import NotFoundError, UsageError
from ftman.forecast import check_device, check_question, forecast_of, memory_here
from ftman.pull.cost import require_plan
from ftman.pull.jobs import JobManager

Profile = Callable[[], Mapping[str, Any] | None]


class Plans:
    """Answers `ft fit` and the plan that `ft pull` prints. profile: this machine's rates."""

    def __init__(self, catalog: Catalog, jobs: JobManager, profile: Profile):
        self._catalog = catalog
        self._jobs = jobs
        self._profile = profile

    async def pull_plan(self, name: str, *, insecure: bool) -> Mapping[str, Any]:
        """The cost of a pull, `fits_disk`, and as `forecast` what the engine says of this machine.

        {} while that pull is already under way.   Raises: FtmanError as the pull would.
        """
        cost = await self._jobs.cost(name, insecure=insecure)
        if cost is None:
            return {}
        answer: dict[str, Any] = {**asdict(cost), "fits_disk": cost.fits_disk}
        plan = answer.pop("plan")
        if plan is not None:
            answer["forecast"] = await memory_here(plan, self._profile())
        return answer

    async def fit(self, name: str, device: str, context: int | None) -> Mapping[str, Any]:
        """The engine's forecast for any model; device "" is this machine.

        One that is not installed is read by its headers; `unbuilt` says why it cannot run yet.
        Raises: NotFoundError, UsageError, FtmanError.
        """
        check_question(device, context)
        if device:
            await asyncio.to_thread(check_device, device)
        folder = self._installed(name)
        if folder is not None:
            return await forecast_of(folder, self._profile(), device, context)
        cost = await self._jobs.cost(name, any_family=True)
        if cost is None:
            raise UsageError(f"{name} is being pulled right now: ask again when it is installed")
        plan = require_plan(cost)
        answer = await forecast_of(plan, self._profile(), device, context)
        told = {"download_bytes": cost.download_bytes, "num_files": cost.num_files}
        return {**answer, **told, "model": cost.name, "unbuilt": cost.unbuilt}

    def _installed(self, name: str) -> Path | None:
        try:
            return self._catalog.find(name).ftw_path
        except (NotFoundError, UsageError):
            # A place instead of a name, or a name of the index: the pull's resolver knows.
            return None
