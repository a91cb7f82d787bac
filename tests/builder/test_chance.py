"""Whether a classifier's answers have to do with the labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from enginefleet_builder.gate.chance import guessing

LABELS = np.arange(1000) % 10


def right(share: float, labels: NDArray[np.int64] = LABELS) -> NDArray[np.int64]:
    """Answers of which that share is right and the others are anything else."""
    rng = np.random.default_rng(0)
    wrong = (labels + rng.integers(1, 10, len(labels))) % 10
    return np.where(rng.random(len(labels)) < share, labels, wrong)


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_answers_that_are_better_than_guessing_are_no_concern(share: float) -> None:
    assert guessing(LABELS, right(share)) is None


def test_shuffled_labels_are_guessing() -> None:
    found = guessing(np.random.default_rng(1).permutation(LABELS), LABELS)
    assert found is not None
    assert found.blind == pytest.approx(0.1)
    assert found.agreement <= found.blind + found.spread
    assert found.renamed == {}


def test_labels_in_another_order_are_seen_as_such() -> None:
    text_order = np.array([0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9])
    labels = np.arange(1100) % 11
    found = guessing(labels, text_order[labels])
    assert found is not None
    assert (found.renamed[10], found.renamed[2], found.renamed[3]) == (2, 3, 4)
    assert len(found.renamed) == 9


def test_two_classes_that_are_mixed_up_are_no_other_order() -> None:
    swapped = np.array([0, 1, 2, 3, 4, 5, 6, 7, 9, 8])
    assert guessing(LABELS, swapped[LABELS]) is None


def test_one_answer_for_everything_is_guessing() -> None:
    found = guessing(LABELS, np.full(1000, 7))
    assert found is not None
    assert found.agreement == pytest.approx(0.1)
    assert found.blind == pytest.approx(0.1)
    assert found.renamed == {}


def test_a_rare_class_that_is_never_found_is_guessing_where_samples_suffice() -> None:
    labels = np.repeat([0, 1], [900, 100])
    assert guessing(labels, np.zeros(1000, np.int64)) is not None
    assert guessing(labels[::20], np.zeros(50, np.int64)) is None  # 50 samples cannot tell


def test_a_set_of_one_class_says_nothing() -> None:
    assert guessing(np.zeros(1000, np.int64), np.zeros(1000, np.int64)) is None


def test_few_samples_say_nothing() -> None:
    assert guessing(LABELS[:4], LABELS[1:5]) is None
    assert guessing(LABELS[:0], LABELS[:0]) is None


def test_a_label_that_no_answer_reaches_is_counted() -> None:
    assert guessing(LABELS, np.zeros(1000, np.int64)) is not None
    assert guessing(np.full(1000, 12), LABELS) is not None


@given(st.integers(0, 2**32 - 1), st.integers(2, 20), st.integers(50, 400))
def test_perfect_answers_are_never_called_guessing(seed: int, classes: int, samples: int) -> None:
    labels = np.random.default_rng(seed).integers(0, classes, samples)
    assert guessing(labels, labels) is None


def test_blind_answers_are_found_out_nearly_always() -> None:
    found = [guessing(rng.integers(0, 5, 300), rng.integers(0, 5, 300)) for rng in (np.random.default_rng(seed) for seed in range(200))]
    assert sum(one is not None for one in found) >= 190
