"""Asks the API server for our own CustomResourceDefinitions until they know all that this operator writes."""

from __future__ import annotations

import asyncio
import logging

from enginefleet_api.kinds import KINDS

from ..planning import contract
from .client import ApiClient
from .errors import ApiError, Forbidden
from .kinds import CUSTOM_RESOURCES

logger = logging.getLogger(__name__)
PAUSE = 5.0
"""Seconds between two looks at definitions that are too old."""


class Definitions:
    """`trouble`: why the operator waits for newer ones; empty when they are right or nobody may look."""

    def __init__(self, client: ApiClient, pause: float = PAUSE) -> None:
        self._client, self._pause = client, pause
        self.trouble = "the CustomResourceDefinitions were not looked at yet"
        self.right = asyncio.Event()

    async def wait(self) -> None:
        """Until they are right. Told once for each trouble; an API server that does not answer is asked again."""
        while not self.right.is_set():
            try:
                found = {contract.name_of(kind): await self._client.get(CUSTOM_RESOURCES, contract.name_of(kind)) for kind in KINDS}
            except Forbidden as error:
                logger.warning(
                    "whether the CustomResourceDefinitions are of this release cannot be seen (apply deploy/10-rbac.yaml): %s", error
                )
                trouble = ""
            except ApiError as error:
                trouble = str(error)
            else:
                trouble = contract.told({contract.name_of(kind): contract.lacking(kind, found[contract.name_of(kind)]) for kind in KINDS})
            if trouble and trouble != self.trouble:
                logger.error("waiting: %s", trouble)
            self.trouble = trouble
            if not trouble:
                self.right.set()
            else:
                await asyncio.sleep(self._pause)
