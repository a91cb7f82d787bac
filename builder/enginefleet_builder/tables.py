"""Tables that come with the program as JSON and that a person may replace: chosen, read, checked, and told what is wrong with them.

A table of somebody's own never breaks a Job: one that is wrong, or older than ours, is left aside and the error that says so becomes a
warning, for ours always serves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pydantic import ValidationError

from enginefleet_api.base import Contract
from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import TABLES_VARIABLE

MOST_BYTES = 1 << 20
"""Size of a table or manifest that is still read."""

TableT = TypeVar("TableT", bound=Contract)


class Dated(Protocol):
    @property
    def updated(self) -> str: ...


DatedT = TypeVar("DatedT", bound=Dated)


@dataclass(frozen=True, slots=True)
class Chosen(Generic[DatedT]):
    """`problems`: of those that were to be used and are not."""

    table: DatedT
    problems: tuple[PermanentError, ...] = ()


def candidates(name: str, variable: str) -> tuple[Path, ...]:
    """Files that are to replace the table `name`, the first one rather: of the mounted folder, and the one that `variable` names."""
    folder, named = os.environ.get(TABLES_VARIABLE), os.environ.get(variable)
    mounted = [Path(folder, name)] if folder and Path(folder, name).exists() else []
    return (*mounted, *([Path(named)] if named else []))


def choose(
    ours: DatedT, others: tuple[Path, ...], read: Callable[[Path], DatedT], invalid: Callable[[Path, str], PermanentError]
) -> Chosen[DatedT]:
    """The first of `others` that `read` takes and that is not older than `ours`, else ours. Raises nothing for what is in a file."""
    problems: list[PermanentError] = []
    for path in others:
        try:
            table = read(path)
        except PermanentError as error:
            problems.append(error)
            continue
        if table.updated >= ours.updated:
            return Chosen(table, tuple(problems))
        # left behind by an older release of ours, it would hide what was learnt since
        problems.append(invalid(path, f"updated is {table.updated!r}, older than the program's own table of {ours.updated!r}"))
    return Chosen(ours, tuple(problems))


def told(problem: PermanentError) -> str:
    """A problem as a warning."""
    return f"{problem.reason}: {problem.message} The program's own table is used."


def read_table(path: Path, kind: type[TableT], check: Callable[[TableT], None], invalid: Callable[[Path, str], Exception]) -> TableT:
    """The table of model `kind` at `path`. `check` raises ValueError or re.error; whatever is wrong is raised as `invalid(path, what)`."""
    try:
        with path.open("rb") as file:
            table = kind.model_validate_json(file.read(MOST_BYTES))
        check(table)
    except OSError as error:
        raise invalid(path, error.strerror or str(error)) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise invalid(path, f"{'.'.join(str(part) for part in first['loc']) or 'the document'}: {first['msg']}") from error
    except (ValueError, re.error) as error:
        raise invalid(path, str(error)) from error
    return table
