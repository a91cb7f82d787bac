"""What may import what, and what pure code may not even reach through others.

import-linter (pyproject.toml) holds the layers by direct imports; this looks further: through our own modules to what they import in the
end, and at names that need no import (`open`) or hide behind one (`datetime.now`). Packages of others are not looked into.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import grimp
import pytest

API, OPERATOR, AGENT, BUILDER = "enginefleet_api", "enginefleet_operator", "enginefleet_agent", "enginefleet_builder"
PURE = (API, f"{OPERATOR}.planning", f"{OPERATOR}.render")

GENERATORS = {f"{API}.crd": "writes crds/*.yaml for developers; no module imports it, which is checked below"}
"""Modules that need not be pure, with the reason."""

IMPURE = {
    "clients": (
        "kopf",
        "kubernetes",
        "aiohttp",
        "httpx",
        "requests",
        "urllib3",
        "boto3",
        "botocore",
        "prometheus_client",
        "http",
        "socket",
        "ssl",
        "urllib",
    ),
    "clock": ("time", "sched", "signal"),
    "randomness": ("random", "secrets", "uuid", "numpy"),
    "environment": (
        "os",
        "sys",
        "pathlib",
        "io",
        "tempfile",
        "shutil",
        "glob",
        "platform",
        "subprocess",
        "multiprocessing",
        "getpass",
        "importlib",
        "argparse",
    ),
    "concurrency": ("asyncio", "threading", "concurrent", "queue", "contextvars"),
    "messages": ("logging", "warnings"),
}
NO_NAMES = {
    "open": "reads or writes files",
    "print": "writes to standard output",
    "input": "reads standard input",
    "exec": "runs text",
    "eval": "runs text",
    "__import__": "imports unseen",
    "hash": "differs between processes (PYTHONHASHSEED)",
    "id": "differs between processes",
    "datetime.datetime.now": "reads the clock",
    "datetime.datetime.utcnow": "reads the clock",
    "datetime.datetime.today": "reads the clock",
    "datetime.date.today": "reads the clock",
}


def reached(graph: grimp.ImportGraph, sources: Iterable[str], forbidden: Iterable[str]) -> list[str]:
    """Chains of imports, written `a -> b -> c`, from a source (or any module below it) to a forbidden module."""
    modules = {module for source in sources if source in graph.modules for module in (source, *graph.find_descendants(source))}
    targets = [name for name in forbidden if name in graph.modules]
    chains = [graph.find_shortest_chain(module, target, as_packages=False) for module in sorted(modules) for target in targets]
    return [" -> ".join(chain) for chain in chains if chain]


def impure_names(source: str, names: Mapping[str, str] = NO_NAMES) -> Iterator[str]:
    """`line: name: why` for each use of a forbidden name, whatever it was imported as."""
    tree = ast.parse(source)
    known = {name: name for name in names if "." not in name}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {
                alias.asname or alias.name.partition(".")[0]: alias.name if alias.asname else alias.name.partition(".")[0]
                for alias in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = _dotted(node, known)
            if name in names:
                yield f"{node.lineno}: {name}: {names[name]}"


def _dotted(node: ast.expr, known: Mapping[str, str]) -> str:
    match node:
        case ast.Name(id=name):
            return known.get(name, "")
        case ast.Attribute(value=value, attr=attribute) if base := _dotted(value, known):
            return f"{base}.{attribute}"
        case _:
            return ""


def path_of(module: str) -> Path:
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(API, OPERATOR, AGENT, BUILDER, include_external_packages=True, cache_dir=None)


@pytest.fixture(scope="module")
def run_time(graph: grimp.ImportGraph) -> grimp.ImportGraph:
    """The graph without the generators."""
    without = grimp.build_graph(API, OPERATOR, include_external_packages=True, cache_dir=None)
    for module in GENERATORS:
        without.remove_module(module)
    return without


@pytest.mark.parametrize("what", IMPURE)
def test_the_contract_planning_and_render_reach_no(run_time: grimp.ImportGraph, what: str) -> None:
    assert reached(run_time, PURE, IMPURE[what]) == []


def test_the_contract_planning_and_render_use_no_impure_name(run_time: grimp.ImportGraph) -> None:
    modules = [module for package in PURE for module in (package, *run_time.find_descendants(package))]

    assert [f"{module}:{use}" for module in sorted(modules) for use in impure_names(path_of(module).read_text(encoding="utf-8"))] == []


def test_the_modules_that_are_looked_at_are_there(run_time: grimp.ImportGraph) -> None:
    """A renamed package would pass all of the above."""
    assert [package for package in PURE if not run_time.find_descendants(package)] == []


def test_no_module_imports_a_generator(graph: grimp.ImportGraph) -> None:
    assert {module: graph.find_modules_that_directly_import(module) for module in GENERATORS} == {module: set() for module in GENERATORS}


@pytest.mark.parametrize("one", [OPERATOR, AGENT, BUILDER])
def test_operator_agent_and_builder_never_reach_each_other(graph: grimp.ImportGraph, one: str) -> None:
    others = [module for other in (OPERATOR, AGENT, BUILDER) if other != one for module in (other, *graph.find_descendants(other))]

    assert reached(graph, [one], others) == []


def test_the_contract_reaches_nothing_of_ours(graph: grimp.ImportGraph) -> None:
    others = [module for other in (OPERATOR, AGENT, BUILDER) for module in (other, *graph.find_descendants(other))]

    assert reached(graph, [API], others) == []


@pytest.mark.parametrize("package", ["pydantic", "pydantic_core", "yaml", "numpy", "boto3", "kubernetes"])
def test_the_node_agent_needs_the_standard_library_only(graph: grimp.ImportGraph, package: str) -> None:
    """It runs on every node, and in images that hold nothing else."""
    assert reached(graph, [AGENT], [package]) == []


# ---- the checks above can fail


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A package of its own name for each test, since Python keeps what it found."""
    folder = tmp_path / f"sample_{request.node.name.removeprefix('test_')}"
    (folder / "planning").mkdir(parents=True)
    for name in ("__init__.py", "planning/__init__.py", "helper.py", "planning/pure.py"):
        (folder / name).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def graph_of(folder: Path) -> grimp.ImportGraph:
    return grimp.build_graph(folder.name, include_external_packages=True, cache_dir=None)


def test_an_import_inside_a_function_is_found(sample: Path) -> None:
    name = sample.name
    (sample / "planning" / "pure.py").write_text("def now():\n    import time\n    return time.time()\n")

    assert reached(graph_of(sample), [f"{name}.planning"], IMPURE["clock"]) == [f"{name}.planning.pure -> time"]


def test_an_import_through_others_is_found(sample: Path) -> None:
    name = sample.name
    (sample / "planning" / "pure.py").write_text("from ..helper import now\n")
    (sample / "helper.py").write_text(f"from {name}.deep import now\n")
    (sample / "deep.py").write_text("from time import time as now\n")

    chains = reached(graph_of(sample), [f"{name}.planning"], IMPURE["clock"])

    assert chains == [f"{name}.planning.pure -> {name}.helper -> {name}.deep -> time"]


def test_an_import_for_types_only_is_an_import(sample: Path) -> None:
    """Cheap to avoid, and a cycle in waiting."""
    name = sample.name
    (sample / "planning" / "pure.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import kubernetes.client\n")

    assert reached(graph_of(sample), [f"{name}.planning"], IMPURE["clients"]) == [f"{name}.planning.pure -> kubernetes"]


def test_a_clean_package_passes(sample: Path) -> None:
    (sample / "planning" / "pure.py").write_text("import json, hashlib\nfrom datetime import datetime\n")
    (sample / "helper.py").write_text("import time, socket, os\n")

    assert reached(graph_of(sample), [f"{sample.name}.planning"], [name for names in IMPURE.values() for name in names]) == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import datetime\ndatetime.datetime.now()", "datetime.datetime.now"),
        ("import datetime as d\nd.datetime.utcnow()", "datetime.datetime.utcnow"),
        ("from datetime import datetime as clock\nclock.now(tz)", "datetime.datetime.now"),
        ("from datetime import date\nkey = date.today", "datetime.date.today"),
        ("def f():\n    from datetime import datetime\n    return datetime.now", "datetime.datetime.now"),
        ("open('x')", "open"),
        ("keys = sorted(x, key=hash)", "hash"),
        ("print(1)", "print"),
        ("__import__('time')", "__import__"),
    ],
)
def test_an_impure_name_is_found(source: str, name: str) -> None:
    assert [found.split(": ")[1] for found in impure_names(source)] == [name]


@pytest.mark.parametrize(
    "source",
    [
        "def f(now):\n    return now.replace()",
        "from datetime import datetime\ndatetime.fromisoformat(x)",
        "spec.open()",
        "id: str = 'x'",
        "x.now()",
        "f(id=1)",
    ],
)
def test_names_that_only_look_alike_pass(source: str) -> None:
    assert list(impure_names(source)) == []
