"""Claims: one builder at a time, whatever dies."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection

import pytest

from enginefleet_api.documents import Claim
from enginefleet_api.errors import TransientFault
from enginefleet_builder.store import Store, layout
from enginefleet_builder.store.claims import ClaimHeld, HeldClaim, acquire
from tests.store.proxy import Fault, FaultyProxy
from tests.store.support import Place, race, s3_place, start, stop_here

KEY = "a" * 64


def standing(store: Store) -> Claim:
    stored = store.get(layout.claim(KEY))
    assert stored is not None
    return Claim.model_validate_json(stored.body)


def acquire_when_free(store: Store, holder: str, seconds: float) -> HeldClaim:
    while True:
        try:
            return acquire(store, KEY, holder, seconds)
        except ClaimHeld as held:
            threading.Event().wait(min(0.2, held.wait_seconds))


def test_of_twenty_processes_one_has_the_claim(place: Place) -> None:
    def claim(store: Store, number: int) -> str:
        try:
            acquire(store, KEY, f"builder-{number}", 60)
        except ClaimHeld:
            return "held"
        return f"builder-{number}"

    answers = race(place, 20, claim)
    winners = [answer for answer in answers if answer != "held"]
    assert len(winners) == 1, answers
    assert standing(place.open()).holder == winners[0]


def test_of_twenty_processes_one_takes_over_an_expired_claim(place: Place) -> None:
    store = place.open()
    store.put_if_absent(layout.claim(KEY), Claim(holder="dead", heartbeat="1", expires="2").model_dump_json(by_alias=True).encode())

    def claim(store: Store, number: int) -> str:
        try:
            acquire(store, KEY, f"builder-{number}", 60)
        except ClaimHeld:
            return "held"
        return f"builder-{number}"

    answers = race(place, 20, claim)
    assert len([answer for answer in answers if answer != "held"]) == 1, answers
    assert standing(store).takeovers == 1


def test_the_claim_of_a_killed_builder_is_taken_over_when_it_expired_and_not_before(place: Place) -> None:
    store = place.open()

    def build(pipe: Connection) -> None:
        acquire(place.open(), KEY, "first", 2)
        stop_here(pipe, "holding")

    builder, pipe = start(build)
    assert pipe.recv() == "holding"
    builder.kill()
    builder.join()
    with pytest.raises(ClaimHeld, match="first builds this engine"):
        acquire(store, KEY, "second", 60)
    with acquire_when_free(store, "second", 60) as claim:
        assert (claim.claim.holder, claim.claim.takeovers) == ("second", 1)
        claim.assert_held()


def test_a_claim_that_is_renewed_outlives_its_length(place: Place) -> None:
    with acquire(place.open(), KEY, "first", 2) as claim:
        threading.Event().wait(3)
        assert not claim.lost
        with pytest.raises(ClaimHeld):
            acquire(place.open(), KEY, "second", 2)


def test_a_released_claim_is_free_at_once_and_no_takeover(place: Place) -> None:
    store = place.open()
    acquire(store, KEY, "first", 600).release()
    with acquire(store, KEY, "second", 600) as claim:
        assert claim.claim.takeovers == 0


def test_a_lost_claim_is_noticed_before_anything_is_published(place: Place) -> None:
    store = place.open()
    first = acquire(store, KEY, "first", 600)
    stored = store.get(layout.claim(KEY))
    assert stored is not None
    other = Claim(holder="second", heartbeat="1", expires="9999999999", takeovers=1)
    assert store.replace_if(layout.claim(KEY), stored.etag, other.model_dump_json(by_alias=True).encode())
    with pytest.raises(TransientFault, match="ClaimLost"):
        first.assert_held()
    assert first.lost
    first.release()
    assert standing(store).holder == "second"


def test_a_heartbeat_whose_answer_was_lost_does_not_lose_the_claim(proxy: FaultyProxy) -> None:
    with acquire(s3_place(proxy.endpoint).open(patience=0), KEY, "first", 600) as claim:
        proxy.faults = [Fault("lose-answer", "PUT", times=1)]
        with pytest.raises(TransientFault, match="StoreUnavailable"):
            claim.assert_held()
        claim.assert_held()
        assert not claim.lost
