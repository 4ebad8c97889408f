import json

import pytest

from eulerstack.cli.levels import OTHER, OWN, group_of, grouped
from eulerstack.ir.costs import costs
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.paths import catalogue_dir

GROUPS = {
    "arch_beginner_gpt2": "beginner",
    "arch_expert_blackmamba": "expert",
    "arch_expert_blackmamba_mini": "expert mini",
    "arch_expert_mini": "expert",
    "llm_0p1b_simple": "llm 0.1 B",
    "llm_16b_moe": "llm 16 B",
    "llm_large_moe": OTHER,
    "my_model": OTHER,
}


def rows(said) -> dict[str, str]:
    """The lines of presets; names of groups and notes begin elsewhere."""
    return {line.split()[0]: line for line in said.out.splitlines()[1:] if line[:2] == "  " != line[1:3]}


def groups(said) -> list[str]:
    return [line for line in said.out.splitlines()[1:] if not line.startswith((" ", "*"))]


@pytest.mark.parametrize("name", GROUPS)
def test_a_name_says_the_level(name):
    assert group_of(name) == GROUPS[name]


def test_levels_come_before_sizes_and_sizes_in_order(tmp_path):
    names = ["zoo", "llm_16b_moe", "llm_2b_moe", "arch_expert_a_mini", "arch_expert_a", "arch_beginner_a", "llm_0p8b_x"]
    found = grouped([tmp_path / f"{name}.yml" for name in names], None)
    assert list(found) == ["beginner", "expert", "expert mini", "llm 0.8 B", "llm 2 B", "llm 16 B", OTHER]


def test_own_presets_come_first_then_the_catalogue(run, own):
    said = run("presets", "list")
    assert (said.status, said.err) == (0, "")
    found = rows(said)
    assert next(iter(found)) == "tiny"
    assert set(found) == {"tiny", *(path.stem for path in catalogue_dir().glob("*.yml"))}
    assert groups(said)[0] == OWN
    assert len(groups(said)) == len(set(groups(said)))


def test_the_catalogue_itself_is_no_workspace(run, monkeypatch):
    monkeypatch.setenv("EULERSTACK_HOME", str(catalogue_dir().parent))
    said = run("presets", "list")
    assert OWN not in groups(said)
    assert "beginner" in groups(said)


def test_the_figures_of_a_row(run, own):
    """362,040 parameters and 15 tokens of 256 bytes, as computed by hand in test_explain_command.py."""
    assert rows(run("presets", "list"))["tiny"].split() == [
        *("tiny", "3", "362.0", "K", "337.5", "K", "3.75", "KiB*", "-", "attention,", "mamba2")
    ]
    row = json.loads(run("presets", "list", "--json").out)[0]
    assert row == {
        "name": "tiny",
        "group": OWN,
        "layers": 3,
        "mixers": ["attention", "mamba2"],
        "params": 362_040,
        "active": 337_464,
        "kv_cache_bytes": 3840,
        "target_ratio": None,
        "max_seq_len": 64,
    }


def test_the_target_and_what_ends_before_the_usual_length(run, own, preset):
    (own / "presets" / "tiny.yml").unlink()
    preset("aimed", "max_seq_len: 64, ", "max_seq_len: 4096, target_params: 355000, ")
    assert rows(run("presets", "list"))["aimed"].split()[6:9] == ["3.75", "KiB", "1.02"]


def test_every_row_is_what_its_preset_costs(run, catalogue):
    found = {row["name"]: row for row in json.loads(run("presets", "list", "--json").out)}
    for name in list(catalogue)[::8]:
        ir = normalize_to_ir(catalogue[name])
        cost = costs(ir, 4096)
        assert (found[name]["params"], found[name]["active"]) == (cost.total, cost.active)
        assert found[name]["kv_cache_bytes"] == cost.kv_cache_bytes
        assert found[name]["layers"] == len(ir.layers)


def test_rows_fit_on_a_page_and_figures_have_four_digits(run, own):
    said = run("presets", "list")
    assert max(map(len, said.out.splitlines())) <= 100
    figures = [row.split()[column] for row in rows(said).values() for column in (2, 4)]
    assert {len(figure.replace(".", "")) for figure in figures} == {4}


def test_an_own_preset_hides_the_catalogue_s_of_its_name(run, preset):
    preset("llm_0p1b_simple")
    assert rows(run("presets", "list"))["llm_0p1b_simple"].split()[1] == "3"


def test_a_broken_preset_among_them_is_said_and_hides_none(run, own, preset):
    preset("broken", "d_model: 128", "d_model: none")
    (own / "presets" / "folder.yml").mkdir()
    (own / "presets" / "binary.yml").write_bytes(b"\xff\xfe\x00")
    said = run("presets", "list")
    assert said.status == 1
    found = rows(said)
    assert "ValidationError: see eulerstack validate -p broken" in found["broken"]
    assert "ParseError: " in found["folder"]
    assert "ParseError: " in found["binary"]
    assert {"tiny", "llm_0p1b_simple"} < set(found)
    said = run("presets", "list", "--json")
    assert said.status == 1
    errors = {row["name"]: row["error"] for row in json.loads(said.out) if "error" in row}
    assert errors == {"broken": "ValidationError", "folder": "ParseError", "binary": "ParseError"}


@pytest.mark.parametrize(
    ("name", "command"), [("of mine", "-p 'of mine'"), ("$(x)", "-p '$(x)'"), ("a\nb", r"-p 'a\nb'")]
)
def test_the_command_for_a_broken_preset_can_be_typed(run, own, name, command):
    (own / "presets" / f"{name}.yml").write_text("{")
    lines = run("presets", "list").out.splitlines()
    assert [line for line in lines if line.endswith(f"ParseError: see eulerstack validate {command}")]


def test_what_is_not_built_yet_is_listed_so(run, unbuilt):
    path, _, _ = unbuilt
    said = run("presets", "list")
    assert said.status == 0
    assert "not built" in rows(said)[path.stem]


@pytest.mark.parametrize("text", ["# naïve\r\nschema_version: 1\n", "no newline at the end", "\tnot: yaml ["])
def test_show_prints_the_file_as_it_is(own, capfdbinary, text):
    (own / "presets" / "odd.yml").write_bytes(text.encode())
    from eulerstack.cli.main import main

    with pytest.raises(SystemExit) as end:
        main(["presets", "show", "odd"])
    assert end.value.code == 0
    assert capfdbinary.readouterr().out == text.encode()


def test_show_of_bytes_that_are_no_text(own, capfdbinary):
    (own / "presets" / "odd.yml").write_bytes(b"\xff\x00")
    from eulerstack.cli.main import main

    with pytest.raises(SystemExit):
        main(["presets", "show", "odd"])
    assert capfdbinary.readouterr().out == b"\xff\x00"


def test_show_nothing(run, own):
    said = run("presets", "show", "nothing")
    assert said.status == 1
    assert len(said.problems) == 1
