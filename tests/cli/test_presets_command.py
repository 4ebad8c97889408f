import pytest

from eulerstack.paths import catalogue_dir


def rows(said) -> dict[str, str]:
    return {line.split()[0]: line for line in said.out.splitlines()[1:]}


def test_own_presets_come_first_then_the_catalogue(run, own):
    said = run("presets", "list")
    assert (said.status, said.err) == (0, "")
    found = rows(said)
    catalogue = sorted(path.stem for path in catalogue_dir().glob("*.yml"))
    assert list(found) == ["tiny", *catalogue]
    assert found["tiny"].split()[1] == "3"
    assert found["tiny"].endswith("attention, mamba2")
    assert len(catalogue) >= 32


def test_figures_of_a_column_have_the_same_number_of_digits(run, own):
    figures = [row.split()[column] for row in rows(run("presets", "list")).values() for column in (2, 4)]
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
