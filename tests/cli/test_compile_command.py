import json

import pytest

from eulerstack.compiler.runtime import runtime_config
from eulerstack.ir.costs import costs
from eulerstack.ir.normalizer import normalize_to_ir


def test_print_config(run, own):
    said = run("compile", "-p", "tiny", "--print-config")
    assert (said.status, said.err) == (0, "")
    assert json.loads(said.out) == runtime_config(normalize_to_ir(own / "presets" / "tiny.yml"))


def test_validate_only(run, untouched):
    said = run("compile", "-p", "tiny", "--validate-only")
    assert said.status == 0
    assert "compiles, " in said.out
    assert untouched()


def test_output(run, own):
    said = run("compile", "-p", "tiny", "--output", "out/tiny.json")
    assert (said.status, said.err) == (0, "")
    written = json.loads((own / "out" / "tiny.json").read_text())
    ir = normalize_to_ir(own / "presets" / "tiny.yml")
    assert written["config"] == runtime_config(ir)
    assert written["costs"]["total"] == costs(ir).total
    assert written["preset"] == "tiny"
    assert len(written["ir_digest"]) == 64
    assert [p.name for p in (own / "out").iterdir()] == ["tiny.json"]


def test_output_again_replaces_its_own_file(run, own, preset):
    run("compile", "-p", "tiny", "-o", "out.json")
    first = (own / "out.json").read_text()
    preset("tiny", "d_ff: 48", "d_ff: 50")
    assert run("compile", "-p", "tiny", "-o", "out.json").status == 0
    assert (own / "out.json").read_text() != first


@pytest.mark.parametrize("content", ["", "text", "[1]", "3", '{"a": 1}', None])
def test_output_never_replaces_another_file(run, own, untouched, content):
    """`None` is the preset itself."""
    target = own / "presets" / "tiny.yml"
    if content is not None:
        target = own / "other.json"
        target.write_text(content)
    before = target.read_bytes()
    for more in ([], ["--dry-run"]):
        said = run("compile", "-p", "tiny", "--output", target, *more)
        assert said.status == 1
        assert said.problems[0][0] == f"{target}: ExportError: is a file of something else"
    assert target.read_bytes() == before


def test_output_to_a_directory_is_wrong_usage(run, untouched):
    assert run("compile", "-p", "tiny", "--output", "presets").status == 2
    assert untouched()


def test_output_where_nothing_can_be_written(run, untouched):
    said = run("compile", "-p", "tiny", "--output", "presets/tiny.yml/below.json")
    assert (said.status, said.out) == (1, "")
    assert "ExportError: cannot be written: " in said.problems[0][0]
    assert "below.json: " in said.problems[0][0]
    assert ".tmp" not in said.err
    assert untouched()


def test_output_dir(run, own):
    said = run("compile", "-p", "tiny", "--output-dir", "model")
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith("model: ")
    manifest = json.loads((own / "model" / "manifest.json").read_text())
    assert manifest["parameters"] == costs(normalize_to_ir(own / "presets" / "tiny.yml")).total
    assert {p.name for p in (own / "model").iterdir()} == {*manifest["files"], "manifest.json"}
    assert [p.name for p in own.iterdir() if p.name.startswith(".")] == []


def test_output_dir_says_that_a_tokenizer_stands_in(run, preset, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = preset("hub", "{type: byte_bpe}", "{type: hf, pretrained: nobody/has-this}")
    said = run("compile", "-p", path, "-d", "model")
    assert said.status == 0
    assert said.err.startswith("tokenizer: a stand-in for nobody/has-this: ")


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_output_dir_overwrites_nothing(run, own, untouched, more):
    said = run("compile", "-p", "tiny", "--output-dir", "presets", *more)
    assert (said.status, said.out) == (1, "")
    assert said.problems[-1][0].endswith("presets: ExportError: is a directory of something else")
    assert untouched()
    assert not (own / "cache").exists()  # said before any work


def test_output_dir_over_a_file_or_an_empty_name_is_wrong_usage(run, untouched):
    for target in ("presets/tiny.yml", ""):
        assert run("compile", "-p", "tiny", "--output-dir", target).status == 2
    assert untouched()


def test_output_dir_where_nothing_can_be_written(run, untouched):
    said = run("compile", "-p", "tiny", "--output-dir", "presets/tiny.yml/model")
    assert said.status == 1
    assert "ExportError: cannot be written: " in said.problems[-1][0]
    assert untouched()


@pytest.mark.parametrize("target", [[], ["--output", "x.json"], ["--output-dir", "x"]])
def test_a_dry_run_says_what_it_would_write_and_writes_nothing(run, untouched, target):
    said = run("compile", "-p", "tiny", "--dry-run", *target)
    assert (said.status, said.err) == (0, "")
    assert f"would write {target[-1] if target else 'nothing'}" in said.out
    assert "mixer_mamba2.py" in said.out
    assert "modeling_eulerstack_tiny.py" in said.out
    assert "mixer_mamba1.py" not in said.out
    assert untouched()


@pytest.mark.parametrize(
    "options",
    [[], ["-o", "x.json", "-d", "x"], ["--print-config", "--validate-only"], ["-d", "x", "--print-config"]],
)
def test_exactly_one_thing_is_done(run, untouched, options):
    said = run("compile", "-p", "tiny", *options)
    assert said.status == 2
    assert "give one of" in said.err
    assert untouched()


@pytest.mark.parametrize("how", [["--validate-only"], ["--print-config"], ["-o", "x.json"], ["-d", "x"], ["--dry-run"]])
def test_what_is_not_built_yet_is_refused_with_its_place(run, refused, unbuilt, untouched, how):
    path, place, name = unbuilt
    found = refused(run("compile", "-p", path, *how))
    assert list(found) == [f"{path}:{place}"]
    assert found[f"{path}:{place}"].endswith(f": {name} is not built yet")
    assert untouched()


def test_an_invalid_preset_writes_nothing(run, own, preset):
    preset("broken", "d_model: 128", "d_model: 127")
    broken = run("compile", "-p", "broken", "-o", "x.json")
    assert broken.status == 1
    assert not (own / "x.json").exists()


def test_warnings_go_to_stderr(run, preset):
    preset("far", "d_ff: 48}", "d_ff: 48, target_params: 9000000}")
    said = run("compile", "-p", "far", "--print-config")
    assert json.loads(said.out)["hidden_size"] == 128
    assert "Warning: " in said.problems[0][0]
