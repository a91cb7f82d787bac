"""Whether a classifier does better than guessing on a labelled set: with labels that are not its own every engine passes, since nothing can drop. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

USUAL = 2.0
"""Standard deviations above blind answers up to which a share of right answers is no more than they reach."""
CERTAIN = 3.0
"""The same, for what they hardly ever reach."""
PER_CLASS = 10
"""Samples for each answer from which an order of classes can be seen: with one or two any order fits."""


@dataclass(frozen=True, slots=True)
class Guessing:
    """A classifier that is right no more often than somebody who gives the same answers as often, without looking at the samples; or one that is
    right more often only where the classes have other names.
    """

    agreement: float
    """Share of samples whose first answer is the label."""
    blind: float
    """The share that blind answers reach on average: 1 / classes where labels or answers are spread evenly."""
    spread: float
    """USUAL standard deviations of it."""
    renamed: dict[int, int]
    """Answer → the label that it stands for, of those that stand for another: the classes are in another order. Empty: they are not."""


def guessing(labels: NDArray[np.int64], answers: NDArray[np.int64]) -> Guessing | None:
    """`labels`, `answers`: classes (n,). None where the answers are better, and where so few or so uneven samples cannot tell good from blind ones."""
    samples = len(labels)
    if samples == 0:
        return None
    classes = int(max(labels.max(), answers.max())) + 1
    blind = float(np.bincount(labels, minlength=classes) @ np.bincount(answers, minlength=classes)) / samples**2
    deviation = (blind * (1 - blind) / samples) ** 0.5
    half_way = (1 + blind) / 2  # half of what is left to know
    agreement = float(np.mean(labels == answers))
    if blind + CERTAIN * deviation >= half_way or agreement >= half_way:
        return None
    renamed = _renamed(labels, answers, half_way)
    if not renamed and agreement > blind + USUAL * deviation:
        return None
    return Guessing(agreement, blind, USUAL * deviation, renamed)


def _renamed(labels: NDArray[np.int64], answers: NDArray[np.int64], enough: float) -> dict[int, int]:
    """Empty where no other order of the classes makes a share of `enough` right."""
    if len(labels) < PER_CLASS * len(np.unique(answers)):
        return {}
    pairs, counts = np.unique(np.stack([answers, labels], axis=1), axis=0, return_counts=True)
    meant: dict[int, int] = {}
    taken: set[int] = set()
    right = 0
    for at in np.argsort(-counts, kind="stable"):
        answer, label = map(int, pairs[at])
        if answer not in meant and label not in taken:
            meant[answer] = label
            taken.add(label)
            right += int(counts[at])
    return {answer: label for answer, label in sorted(meant.items()) if answer != label} if right >= enough * len(labels) else {}
