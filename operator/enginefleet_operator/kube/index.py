"""Which nodes each HardwareClass and each ModelDeployment is about: kept up to date as nodes, records of them and classes change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..planning.concerns import concerns
from ..planning.engines import Recorded
from ..planning.model import HardwareClass, Node
from .nodes import NodeView

NOTHING: frozenset[str] = frozenset()


class NodeIndex:
    """Keys are names of classes and release keys: see planning.concerns. It reads what reflectors hold; they tell it when that has changed."""

    def __init__(
        self, nodes: Mapping[str, NodeView], recorded: Mapping[str, Recorded | None], classes: Mapping[str, HardwareClass | None]
    ) -> None:
        self._nodes, self._recorded, self._classes = nodes, recorded, classes
        self._keys: dict[str, frozenset[str]] = {}
        self._names: dict[str, set[str]] = {}
        self._stale = False

    def of(self, node: str) -> frozenset[str]:
        """What a node is about."""
        self._refresh()
        return self._keys.get(node, NOTHING)

    def nodes(self, keys: Iterable[str]) -> list[Node]:
        """Nodes that are about any of these, in name order."""
        self._refresh()
        names = set().union(*(self._names.get(key, ()) for key in keys))
        return [self._nodes[name].node for name in sorted(names)]

    def update(self, node: str) -> frozenset[str]:
        """After a change of a node or of what is recorded of it: all that it was about or is."""
        before, after = self._keys.get(node, NOTHING), self._find(node)
        for key in before - after:
            self._names[key].discard(node)
            if not self._names[key]:
                del self._names[key]
        for key in after - before:
            self._names.setdefault(key, set()).add(node)
        if after:
            self._keys[node] = after
        else:
            self._keys.pop(node, None)
        return before | after

    def rebuild(self) -> None:
        """After a change of a class's selector: done when somebody asks, as classes come many at a time."""
        self._stale = True

    def _refresh(self) -> None:
        if self._stale:
            self._stale = False
            for name in self._nodes:
                self.update(name)

    def _find(self, node: str) -> frozenset[str]:
        view = self._nodes.get(node)
        if view is None:
            return NOTHING
        record = self._recorded.get(node)
        observed = {o.hardware_class for o in record.spec.observations} if record is not None else ()
        return concerns(view.labels, [c for c in self._classes.values() if c is not None], observed)
