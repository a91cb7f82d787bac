"""By hand a manifest is refused for what an API server refuses it for, in the same words: the table of wrong manifests, without an API server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from celpy.evaluation import base_functions

from enginefleet_api.errors import PermanentError
from enginefleet_builder import by_hand, manifest_rules
from tests.contract.manifests import FULL, MINIMAL, Object, changed
from tests.contract.wrong import LOCAL, LOCAL_HOSTS, OTHER_HOSTS, WRONG, Wrong

ROOT = Path(__file__).resolve().parents[2]
WRONG_DEPLOYMENTS = [wrong for wrong in WRONG if wrong.base["kind"] == "ModelDeployment"]
ADDRESSES_OF_THIS_MACHINE = ["a model of a file", "a model as a bare path", "calibration from a file"]

OWN_WORDS = {
    "Required value": "Field required",
    "supported values: ": "Input should be '",
    "must be of type string: ": "Input should be a valid string",
    "should have at least 1 items": "should have at least 1 item",
}
"""What the API server says of a schema, and what is said by hand."""


def said(manifest: Object) -> str:
    return "\n".join(str(problem) for problem in manifest_rules.problems(manifest["spec"], name=manifest["metadata"]["name"]))


def written(folder: Path, value: object) -> Path:
    path = folder / "spec.yaml"
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return path


@pytest.mark.parametrize("wrong", WRONG_DEPLOYMENTS, ids=lambda wrong: wrong.title)
def test_refuses_what_an_api_server_refuses(wrong: Wrong) -> None:
    message = said(changed(wrong.base, wrong.changes))
    ours = [ours for theirs, ours in OWN_WORDS.items() if theirs in wrong.says]
    if ours:
        field = re.sub(r"\.(\d+)", r"[\1]", next(iter(wrong.changes)))
        assert re.search(rf"^{re.escape(field)}\S*: .*{re.escape(ours[0])}", message, re.MULTILINE), message
    else:
        assert wrong.says in message


@pytest.mark.parametrize("host", LOCAL_HOSTS)
def test_refuses_a_model_on_a_host_that_is_local_to_the_pod(host: str) -> None:
    message = said(changed(MINIMAL, {"spec.model.uri": f"https://{host}/model.onnx"}))
    assert LOCAL in message or "write https://<host>/<path>" in message


@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_accepts_a_model_on_any_other_host(host: str) -> None:
    assert said(changed(MINIMAL, {"spec.model.uri": f"https://{host}/model.onnx"})) == ""


@pytest.mark.parametrize(
    "url", ["https://h%41st/a", "https://a b/c", "https://host:port/a", "https://host/%zz", "https://[::1/a", "https://a\x7f/"]
)
def test_a_text_that_is_no_url(url: str) -> None:
    assert "write https://<host>/<path>" in said(changed(MINIMAL, {"spec.model.uri": url}))


def test_the_table_has_rows_of_each_sort() -> None:
    titles = {wrong.title for wrong in WRONG_DEPLOYMENTS}
    assert len(titles) > 100
    assert set(ADDRESSES_OF_THIS_MACHINE) <= titles
    assert all(any(theirs in wrong.says for wrong in WRONG_DEPLOYMENTS) for theirs in OWN_WORDS)


# ---- what is good


def examples() -> dict[str, Object]:
    """Every manifest of a ModelDeployment, or part of one, in the documentation and the demo."""
    texts = {path.name: [path.read_text()] for path in (ROOT / "demo" / "manifests").glob("*.yaml")}
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        texts[path.name] = re.findall(r"```yaml\n(.*?)```", path.read_text(), re.DOTALL)
    documents = [(name, one) for name, blocks in texts.items() for text in blocks for one in yaml.safe_load_all(text)]
    wanted = [
        (name, one) for name, one in documents if one.get("kind") == "ModelDeployment" or (name == "by-hand.md" and "kind" not in one)
    ]
    return {f"{name} {number}": one for number, (name, one) in enumerate(wanted)} | {"full": FULL, "minimal": MINIMAL}


@pytest.mark.parametrize("manifest", examples().values(), ids=examples().keys())
def test_accepts_what_the_documentation_shows(tmp_path: Path, manifest: Object, capsys: pytest.CaptureFixture[str]) -> None:
    by_hand.spec(written(tmp_path, manifest), {})
    assert capsys.readouterr().err == ""


def test_the_documentation_shows_some() -> None:
    assert {name.split()[0] for name in examples()} >= {"README.md", "by-hand.md", "30-digits.yaml", "40-too-strict.yaml"}


def test_null_is_as_good_as_nothing(tmp_path: Path) -> None:
    nulls = {"spec.calibration": None, "spec.precision": None, "spec.storeRef": None, "spec.serving": {"replicas": None}}
    assert by_hand.spec(written(tmp_path, changed(MINIMAL, nulls)), {}).precision == "fp32"


def test_aliases_are_copied_once() -> None:
    """Twenty lines of YAML stand for 9^20 values."""
    value: Any = ["x"]
    for _ in range(20):
        value = [value] * 9
    copied = manifest_rules.without_null({"a": value, "b": None})
    assert copied == {"a": copied["a"]}
    assert copied["a"][0] is copied["a"][8]


# ---- as files, with flags


@pytest.mark.parametrize("title", ADDRESSES_OF_THIS_MACHINE)
def test_addresses_of_this_machine_are_good_by_hand(tmp_path: Path, title: str) -> None:
    wrong = next(wrong for wrong in WRONG_DEPLOYMENTS if wrong.title == title)
    by_hand.spec(written(tmp_path, changed(wrong.base, wrong.changes)), {})


PERCENT: Any = {"validation": {"uri": "d.npz", "acceptance": {"maxDrop": "5"}}}


@pytest.mark.parametrize(
    ("manifest", "flags", "says"),
    [
        (changed(FULL, {"metadata.name": "a" * 64}), {}, "write at most 63 characters"),
        (changed(FULL, {"spec.validation.acceptance.maxDrop": "5"}), {}, 'spec.validation.acceptance: .* write "0.95" for 95 %'),
        (changed(FULL, {"spec.model.uri": "gs://a/b"}), {}, "spec.model.uri: write s3://<bucket>/<path>"),
        (changed(FULL, {"spec.model.uri": "https:/a/b"}), {}, "spec.model.uri: write s3://<bucket>/<path>"),
        (changed(MINIMAL, {"spec.model": {}}), {"model": {"uri": "a.onnx"}}, "spec.model.uri: Field required"),
        (
            changed(FULL, {"spec.rollout.maxUnavailable": 2**63}),
            {},
            r"yaml: spec\.rollout\.maxUnavailable: .* less than or equal to 100000\. ",
        ),
        (changed(MINIMAL, {"spec.paused": "yes"}), {}, "spec.paused: Input should be a valid boolean"),
        (changed(MINIMAL, {"spec.historyLimit": "3"}), {}, "spec.historyLimit: Input should be a valid integer"),
        (changed(MINIMAL, {"spec.colour": "red"}), {}, 'unknown field "spec.colour"'),
        (changed(MINIMAL, {"spec.model.credentials_secret_ref": {"name": "a"}}), {}, 'unknown field "spec.model.credentials_secret_ref"'),
        (PERCENT, {}, 'write "0.95" for 95 %'),
        (FULL, PERCENT, 'write "0.95" for 95 %'),
        ({"rollout": {"maxUnavailable": "120%"}}, {}, "spec.rollout.maxUnavailable: write a percentage from 0% to 100%"),
        ({"rollout": {"maxUnavailable": True}}, {}, "spec.rollout.maxUnavailable: Input should be a valid integer"),
    ],
)
def test_refuses_a_file_by_itself_and_with_flags(tmp_path: Path, manifest: Object, flags: dict[str, Any], says: str) -> None:
    with pytest.raises(PermanentError, match=says):
        by_hand.spec(written(tmp_path, manifest), flags)


@pytest.mark.parametrize(
    ("manifest", "flags"),
    [
        ({"precision": "int8"}, {}),
        ({"validation": {"uri": "d.npz"}}, {}),
        ({"model": {"uri": "https://localhost/a.onnx", "endpoint": "http://127.0.0.1:9000"}}, {}),
        (MINIMAL, {"precision": "int8", "validation": {"uri": "d.npz"}}),
        (FULL, {"validation": {"uri": "file:///tmp/d", "acceptance": {"maxDrop": "0.05"}}}),
    ],
    ids=["scales in the model", "no threshold", "a server of this machine", "both by flags", "a local copy"],
)
def test_by_hand_less_is_needed(tmp_path: Path, manifest: Object, flags: dict[str, Any]) -> None:
    by_hand.spec(written(tmp_path, manifest), flags)


def test_without_cel_python_it_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "celpy", None)
    by_hand.spec(written(tmp_path, PERCENT), {})
    assert "are not checked, since cel-python is missing" in capsys.readouterr().err
    with pytest.raises(PermanentError, match=r"spec\.validation\.acceptance\.maxDrop: String should match pattern"):
        by_hand.spec(written(tmp_path, {"validation": {"uri": "d.npz", "acceptance": {"maxDrop": "5%"}}}), {})


# ---- the rules themselves


@pytest.mark.parametrize("text", ["s" * 31 + "!", "9" * 31 + "h"])
def test_no_duration_takes_forever(text: str) -> None:
    """cel-python's own takes 2^30 steps for the first."""
    assert "spec.benchmark.sustained: write " in said(changed(MINIMAL, {"spec.benchmark": {"sustained": text}}))


def test_a_rule_of_transition_does_not_apply() -> None:
    schema = {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "write more"}]}
    assert list(manifest_rules._walk(schema, 1, "spec", rules=True)) == []


def test_every_function_that_a_rule_calls_is_there() -> None:
    """One that is missing would show in no row of the table where `||` hides it."""
    text = yaml.safe_dump(manifest_rules._schema(), width=10_000)
    rules = re.sub(r"r'[^']*'|'[^']*'", "", "\n".join(re.findall(r"rule: (.*)", text)))
    macros = {"has", "all", "exists", "exists_one"}
    called = set(re.findall(r"\b(\w+)\(", rules))
    assert {"matches", "isURL", "duration"} <= called
    assert called - macros - base_functions.keys() - manifest_rules._functions().keys() == set()


def test_commands_load_it_when_they_need_it() -> None:
    code = "import sys, enginefleet_builder.main; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert [name for name in ("celpy", "lark", "yaml", "enginefleet_api.schema") if f"'{name}'" in loaded] == []
