"""A pass over a plan that is longer than one."""

from __future__ import annotations

import logging

import pytest

from enginefleet_operator.kube.act import PASS, is_more_than_a_pass, one_pass
from enginefleet_operator.planning.model import Action, CreateService, LabelNode


def flip(number: int, value: str = "r1-1") -> LabelNode:
    return LabelNode(f"n{number:03d}", "7", {"release.enginefleet.io/abc": value}, "its turn")


def test_what_is_not_about_a_node_is_done_in_every_pass_and_nodes_in_their_order() -> None:
    actions: list[Action] = [*map(flip, range(PASS + 50)), CreateService("digits")]
    assert list(one_pass(actions)) == [*map(flip, range(PASS)), CreateService("digits")]
    assert is_more_than_a_pass(actions)
    assert not is_more_than_a_pass(actions[:PASS])


def test_a_pass_is_one_line_in_the_log_for_all_nodes_to_which_the_same_was_done(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        list(one_pass([flip(1), flip(2), flip(3), flip(4), flip(5, "r2-2")]))
    assert [record.getMessage() for record in caplog.records] == [
        "nodes n001, n002, n003 and 1 more: release.enginefleet.io/abc=r1-1 (its turn)",
        "node n005: release.enginefleet.io/abc=r2-2 (its turn)",
    ]


def test_what_was_done_before_a_failure_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(ValueError, match="conflict"):  # noqa: PT012 - the second action fails
        for number, _ in enumerate(one_pass([flip(1), flip(2)])):
            if number == 1:
                raise ValueError("conflict")
    assert [record.getMessage() for record in caplog.records] == ["node n001: release.enginefleet.io/abc=r1-1 (its turn)"]
