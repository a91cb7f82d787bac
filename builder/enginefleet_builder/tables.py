"""Tables that come with the program as JSON and that a person may replace: chosen, read, checked, and told what is wrong with them.

A table of somebody's own never breaks a Job: one that is wrong, or older than ours, is left aside and the error that says so becomes a
warning, for ours always serves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, Literal, TypeVar

from pydantic import ValidationError

from enginefleet_api.base import Contract
from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import TABLES_VARIABLE

MOST_BYTES = 1 << 20
"""Size of a table or manifest that is still read."""


class DatedTable(Contract):
    """What every table says of itself. `updated`: a date as 2026-12-31."""

    schema_version: Literal[1]
    updated: str


TableT = TypeVar("TableT", bound=DatedTable)


@dataclass(frozen=True, slots=True)
class Chosen(Generic[TableT]):
    """`problems`: of those that were to be used and are not."""

    table: TableT
    problems: tuple[PermanentError, ...] = ()


class Replaceable(Generic[TableT]):
    """The table `ours`, which comes with the program, and the places that may hold another one.

    `kind`: its model; `check` raises ValueError or re.error; `of`: what it is a table of, and `reason` that of a PermanentError where one is
    wrong; `variable` names a file that replaces it, where the mounted folder has none.
    """

    def __init__(self, ours: Path, kind: type[TableT], check: Callable[[TableT], None], *, of: str, reason: str, variable: str) -> None:
        self._ours, self._kind, self._check = ours, kind, check
        self._of, self._reason, self._variable = of, reason, variable
        self._read = cache(self._read_file)
        self._choose = cache(self._choose_of)

    def load(self, path: Path | None = None) -> TableT:
        """The table at `path`, for which PermanentError names what is wrong; without it the one that is in use."""
        return self._read(path) if path else self.chosen().table

    def chosen(self) -> Chosen[TableT]:
        """The first that is right and not older than ours: the mounted one, that of the variable, ours. Raises nothing for what is in a file."""
        folder, named = os.environ.get(TABLES_VARIABLE), os.environ.get(self._variable)
        mounted = [Path(folder, self._ours.name)] if folder and Path(folder, self._ours.name).exists() else []
        return self._choose((*mounted, *([Path(named)] if named else [])))

    def _choose_of(self, others: tuple[Path, ...]) -> Chosen[TableT]:
        ours = self._read(self._ours)
        problems: list[PermanentError] = []
        for path in others:
            try:
                table = self._read(path)
            except PermanentError as error:
                problems.append(error)
                continue
            if table.updated >= ours.updated:
                return Chosen(table, tuple(problems))
            # left behind by an older release of ours, it would hide what was learnt since
            problems.append(self._invalid(path, f"updated is {table.updated!r}, older than the program's own table of {ours.updated!r}"))
        return Chosen(ours, tuple(problems))

    def _read_file(self, path: Path) -> TableT:
        try:
            with path.open("rb") as file:
                table = self._kind.model_validate_json(file.read(MOST_BYTES))
            self._check(table)
        except OSError as error:
            raise self._invalid(path, error.strerror or str(error)) from error
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise self._invalid(path, f"{'.'.join(str(part) for part in first['loc']) or 'the document'}: {first['msg']}") from error
        except (ValueError, re.error) as error:
            raise self._invalid(path, str(error)) from error
        return table

    def _invalid(self, path: Path, what: str) -> PermanentError:
        hint = f"Correct the file (of the ConfigMap, or the one that {self._variable} names), or remove it."
        return PermanentError(self._reason, f"{path} is not a usable table of {self._of} (schema version 1): {what}.", hint)


def without(problem: PermanentError) -> str:
    """What is wrong with a table, and what is used instead."""
    return f"{problem.message} The program's own table is used."
