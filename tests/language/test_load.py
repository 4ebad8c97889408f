"""Whole files: every broken preset gets exactly the problems its first lines announce, every valid one none."""

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from eulerstack.errors import CompatibilityError, EulerStackError, ParseError, ValidationError
from eulerstack.language.load import check, load_preset
from eulerstack.language.schema_json import json_schema

HERE = Path(__file__).parent
REPO = HERE.parents[1]
BROKEN = sorted((HERE / "broken").glob("*.yml"))
VALID = sorted((HERE / "valid").glob("*.yml")) + sorted((REPO / "presets").glob("*.yml"))
EXPECTED = re.compile(r"# (\w+):(\d+):(\d+) (.+)")


def announced(path: Path) -> list[tuple[str, int, int, list[str]]]:
    """`# Category:line:column words | words` in the first lines of a broken preset, one line per problem."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not (match := EXPECTED.fullmatch(line)):
            return found
        category, row, column, words = match.groups()
        found.append((category, int(row), int(column), words.split(" | ")))
    return found


@pytest.mark.parametrize("path", BROKEN, ids=lambda p: p.stem)
def test_a_broken_preset_gets_its_problems_at_their_places(path):
    with pytest.raises(EulerStackError) as caught:
        load_preset(path)
    problems, wanted = caught.value.problems, announced(path)
    assert [(p.category, p.line, p.column) for p in problems] == [w[:3] for w in wanted]
    for problem, (*_, words) in zip(problems, wanted, strict=True):
        for word in words:
            assert word in str(problem)


@pytest.mark.parametrize("path", BROKEN, ids=lambda p: p.stem)
def test_a_problem_is_three_lines(path):
    with pytest.raises(EulerStackError) as caught:
        load_preset(path)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines[1::3]] == ["Fix"] * len(caught.value.problems)
    assert [line.split(":")[0] for line in lines[2::3]] == ["See"] * len(caught.value.problems)
    assert all(line.startswith(f"{path}:") for line in lines[::3])


def test_every_category_of_the_language_is_broken_somewhere():
    categories = {category for path in BROKEN for category, *_ in announced(path)}
    assert categories == {"ParseError", "ValidationError", "CompatibilityError"}
    assert len(BROKEN) >= 20


@pytest.mark.parametrize("path", VALID, ids=lambda p: p.stem)
def test_a_valid_preset_is_checked(path):
    checked = load_preset(path)
    assert checked.spec.schema_version == 1
    assert checked.spec.model.name == path.stem


@pytest.mark.parametrize("path", VALID, ids=lambda p: p.stem)
def test_the_dict_of_a_file_means_the_same(path):
    # PyYAML reads `3e-4` as text, so the dict is taken from a tree that is already read.
    assert check(load_preset(path).source.tree).spec == load_preset(path).spec


@pytest.mark.parametrize("path", sorted((REPO / "presets").glob("*.yml")), ids=lambda p: p.stem)
def test_what_pyyaml_loads_means_the_same(path):
    assert check(yaml.safe_load(path.read_text(encoding="utf-8"))).spec == load_preset(path).spec


def test_the_exception_is_of_the_first_problem_in_the_file():
    kinds = {"duplicate_key": ParseError, "unknown_key": ValidationError, "heads_do_not_divide": CompatibilityError}
    for name, kind in kinds.items():
        with pytest.raises(kind):
            load_preset(HERE / "broken" / f"{name}.yml")


def test_problems_of_a_dict_have_no_line(plain):
    plain["model"]["bogus"] = 1
    with pytest.raises(ValidationError, match=r"^here: ValidationError: model\.bogus: unknown key"):
        check(plain, path="here")


def test_the_given_dict_is_left_alone(plain):
    plain["model"]["d_model"] = "${64 * 4}"
    plain["vendor.acme.x"] = {"a": [1]}
    before = copy.deepcopy(plain)
    check(plain)
    assert plain == before


@pytest.mark.parametrize("key", ["experimental.x", "future.y", "vendor.acme.z"])
def test_reserved_keys_are_kept_with_a_warning_at_any_level(plain, key):
    plain[key] = {"deep": ["${not an expression"]}
    plain["layer_templates"]["block"]["mixer"][key] = 3
    plain["layer_schedule"][0][key] = None
    checked = check(plain)
    assert checked.reserved == {
        key: {"deep": ["${not an expression"]},
        f"layer_templates.block.mixer.{key}": 3,
        f"layer_schedule[0].{key}": None,
    }
    assert [w.category for w in checked.warnings] == ["Warning"] * 3


@pytest.mark.parametrize("key", ["experimental", "experimental.", "vendor.acme", "vendor..x", "futures.x"])
def test_what_only_looks_reserved_is_unknown(plain, key):
    plain[key] = 1
    with pytest.raises(ValidationError, match="unknown key"):
        check(plain)


@pytest.mark.parametrize("key", ["training_hints", "compatibility", "execution_modes"])
def test_a_block_of_defaults_may_be_left_empty(plain, key):
    plain[key] = None
    assert getattr(check(plain).spec, key) == getattr(check({k: v for k, v in plain.items() if k != key}).spec, key)


@pytest.mark.parametrize("key", ["norm", "residual", "state"])
def test_a_template_part_of_defaults_may_be_left_empty(plain, key):
    plain["layer_templates"]["block"][key] = None
    check(plain)


def test_a_rule_is_not_an_echo_of_a_wrong_field(plain):
    # n_kv_heads is unreadable, so what it divides is not asked; the template it has nothing to do with is.
    plain["model"]["n_kv_heads"] = "three"
    plain["layer_schedule"][0]["template"] = "blok"
    with pytest.raises(EulerStackError) as caught:
        check(plain)
    assert [p.where for p in caught.value.problems] == ["model.n_kv_heads", "layer_schedule[0].template"]


def test_see_points_to_headings_that_exist():
    text = (REPO / "docs" / "language.md").read_text(encoding="utf-8")
    anchors = {heading.strip().lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    emitted = set()
    for path in BROKEN:
        with pytest.raises(EulerStackError) as caught:
            load_preset(path)
        emitted |= {problem.see for problem in caught.value.problems}
    emitted |= {warning.see for warning in load_preset(HERE / "valid" / "everything.yml").warnings}
    assert {see.split("#")[0] for see in emitted} == {"docs/language.md"}
    assert {see.split("#")[1] for see in emitted} <= anchors
    assert len(emitted) >= 12


def test_checking_a_preset_needs_neither_torch_nor_long():
    script = (
        "import sys, time; started = time.process_time()\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from eulerstack.language.load import load_preset\n"
        "load_preset(sys.argv[1]); print(time.process_time() - started)"
    )
    command = [sys.executable, "-c", script, str(VALID[0])]
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2


def test_the_valid_presets_use_every_key():
    """The files in valid/ name each key of each block at least once."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((HERE / "valid").glob("*.yml")))
    schema = json_schema()
    keys = {key for block in [schema, *schema["$defs"].values()] for key in block.get("properties", {})}
    assert {key for key in keys if not re.search(rf"\b{re.escape(key)}:", text)} == set()


def test_problems_are_json():
    with pytest.raises(EulerStackError) as caught:
        load_preset(HERE / "broken" / "unknown_key.yml")
    assert json.dumps([vars(p) for p in caught.value.problems])
