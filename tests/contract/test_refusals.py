"""Wrong manifests are refused by the API server, with a message that says what to write instead."""

from __future__ import annotations

import pytest

from tests.contract.manifests import MINIMAL, changed
from tests.contract.server import ApiServer, Refused
from tests.contract.wrong import LOCAL, LOCAL_HOSTS, OTHER_HOSTS, WRONG, Wrong

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.title)
def test_refuses(api: ApiServer, wrong: Wrong) -> None:
    with pytest.raises(Refused) as refused:
        api.create(changed(wrong.base, wrong.changes), dry_run=True)

    assert refused.value.status == 422
    assert wrong.says in refused.value.message
    assert "evaluating rule" not in refused.value.message, "a rule fell over instead of answering"


@pytest.mark.parametrize("host", LOCAL_HOSTS)
def test_refuses_a_model_on_a_host_that_is_local_to_the_pod(api: ApiServer, host: str) -> None:
    with pytest.raises(Refused) as refused:
        api.create(changed(MINIMAL, {"spec.model.uri": f"https://{host}/model.onnx"}), dry_run=True)

    assert LOCAL in refused.value.message or "write https://<host>/<path>" in refused.value.message


@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_accepts_a_model_on_any_other_host(api: ApiServer, host: str) -> None:
    api.create(changed(MINIMAL, {"spec.model.uri": f"https://{host}/model.onnx"}), dry_run=True)


def test_the_table_is_as_long_as_it_should_be() -> None:
    """Each row is one mistake; two rows of one title would hide one another."""
    assert len({wrong.title for wrong in WRONG}) == len(WRONG) >= 45
