"""Manifests in the docs: an API server takes them, and nothing in them is refused later as not supported yet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from enginefleet_api.resources import HardwareClassSpec
from enginefleet_operator.planning.support import unsupported_class
from tests.contract.manifests import Object
from tests.contract.server import ApiServer

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hardware-classes.md"
CLASSES: list[Object] = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)]


@pytest.mark.parametrize("written", CLASSES, ids=lambda written: written["metadata"]["name"])
def test_a_hardware_class_in_the_docs_is_accepted_and_supported(api: ApiServer, written: Object) -> None:
    api.create(written, dry_run=True, strict=True)
    assert list(unsupported_class(HardwareClassSpec.model_validate(written["spec"]))) == []
