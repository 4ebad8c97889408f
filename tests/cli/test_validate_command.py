def test_a_valid_preset(run, own):
    said = run("validate", "-p", "tiny")
    assert (said.status, said.err) == (0, "")
    assert said.out == f"{own / 'presets' / 'tiny.yml'}: valid\n"


def test_every_error_at_once_with_its_place(run, preset):
    path = preset("broken", "{window: 16}", "{windw: 16}")
    path.write_text(path.read_text().replace("n_heads: 2", "n_heads: 0"))
    said = run("validate", "-p", "broken")
    assert (said.status, said.out) == (1, "")
    where = [problem[0] for problem in said.problems]
    assert where[0].startswith(f"{path}:2:")
    assert where[1] == (f"{path}:7:42: ValidationError: layer_templates.attention.mixer.attention.windw: unknown key")
    assert said.problems[1][1].startswith("Fix: did you mean 'window'? Allowed: attention_sinks, attn_drop, ")


def test_a_report(run, preset):
    preset("tiny", "d_ff: 48}", "d_ff: 48, target_params: 300000}")
    said = run("validate", "-p", "tiny", "--report")
    lines = dict(line.split(maxsplit=1) for line in said.out.splitlines()[:-1])
    assert lines["model"] == "tiny"
    assert lines["layers"] == "3 of 2 templates: attention, state"
    total, active = lines["parameters"].removesuffix(" active").split(", ")
    assert total.endswith(" K")
    assert float(active.split()[0]) < float(total.split()[0])
    assert lines["target"].startswith("300 K, off by ")


def test_a_warning_is_shown_counted_and_can_be_switched_off(run, preset):
    path = preset("tiny", "d_ff: 48}", "d_ff: 48, target_params: 9000000}")
    said = run("validate", "-p", "tiny")
    assert said.status == 0
    assert said.out == f"{path}: valid, 1 warning\n"
    assert "Warning: model.target_params: " in said.problems[0][0]
    assert "[target_params_mismatch]" in said.problems[0][0]
    silent = run("validate", "-p", "tiny", "--disable", "target_params_mismatch")
    assert (silent.status, silent.err, silent.out) == (0, "", f"{path}: valid\n")


def test_a_file_that_is_not_called_as_its_model_gets_a_warning(run, preset):
    path = preset("river")
    said = run("validate", "river")
    assert (said.status, said.out) == (0, f"{path}: valid, 1 warning\n")
    assert said.problems[0][0] == f"{path}:2:15: Warning: model.name: 'tiny', and the file is river.yml"


def test_one_template_is_one(run, preset):
    preset("tiny", "  - {template: state, repeat: 2}\n", "")
    assert "layers      1 of 1 template: attention\n" in run("validate", "tiny", "--report").out


def test_an_unknown_rule_is_wrong_usage_and_the_rules_are_named(run, own):
    said = run("validate", "-p", "tiny", "--disable", "nothing")
    assert said.status == 2
    assert "no realism rule nothing" in said.err
    assert "target_params_mismatch" in said.err


def test_what_is_not_built_yet_is_valid_and_reported(run, unbuilt):
    path, _, name = unbuilt
    said = run("validate", "-p", path, "--report")
    assert said.status == 0
    assert "not built   " in said.out
    assert name in said.out
    assert "parameters" not in said.out
