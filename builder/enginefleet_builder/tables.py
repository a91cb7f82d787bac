"""Tables that come with the program as JSON and that a person may replace: read, checked, and told what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from enginefleet_api.base import Contract

MOST_BYTES = 1 << 20
"""Size of a table or manifest that is still read."""

TableT = TypeVar("TableT", bound=Contract)


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
