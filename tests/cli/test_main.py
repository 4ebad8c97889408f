import subprocess
import sys
import textwrap

import pytest

from eulerstack import __version__, cli
from eulerstack.cli.main import main

COMMANDS = ["cache", "compile", "diff", "explain", "init", "new", "presets", "schema", "validate", "why"]


def test_version(run):
    said = run("--version")
    assert (said.status, said.out) == (0, f"eulerstack, version {__version__}\n")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_names_every_command_and_the_graph(run, option):
    said = run(option)
    assert said.status == 0
    assert all(f"  {name} " in said.out for name in COMMANDS)
    assert "doit list" in said.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(run, name):
    said = run(name, "--help")
    assert said.status == 0
    assert said.out.startswith(f"Usage: eulerstack {name}")


def test_nothing_asked_is_a_usage_error_that_helps(run):
    said = run()
    assert said.status == 2
    assert "Commands:" in said.err


def test_an_unknown_command_gets_a_hint(run):
    said = run("expalin", "-p", "tiny")
    assert said.status == 2
    assert "no command 'expalin'. Did you mean 'explain'? Commands: cache, compile, diff, explain, init," in said.err
    assert "Did you mean" not in run("zzz").err


@pytest.mark.parametrize("arguments", [["validate"], ["validate", "-p"], ["explain", "-p", "tiny", "--legnth", "3"]])
def test_wrong_usage_is_status_2(run, own, arguments):
    assert run(*arguments).status == 2


def test_an_unknown_preset_gets_three_lines_and_the_nearest_name(run, own):
    said = run("validate", "-p", "tinny")
    assert said.status == 1
    assert said.problems == [
        [
            "tinny: ValidationError: no such preset",
            "Fix: did you mean 'tiny'?",
            "See: docs/tutorials/02_presets.md#your-own-presets",
        ]
    ]


@pytest.mark.parametrize("given", ["presets", "presets/nothing.yml", "/", ".", ""])
def test_a_path_that_is_no_preset_gets_three_lines(run, own, given):
    said = run("explain", "-p", given)
    assert said.status == 1
    assert len(said.problems) == 1


@pytest.mark.parametrize("command", [["validate"], ["explain", "--brief"], ["compile", "--print-config"]])
def test_a_preset_is_an_argument_or_an_option(run, own, command):
    as_option = run(*command, "--preset", "tiny")
    for named in (run(*command, "tiny"), run(*command, "presets/tiny.yml")):
        assert (named.status, named.err) == (0, "")
        assert named.out.replace(str(own) + "/", "") == as_option.out.replace(str(own) + "/", "")
    for wrong in (run(*command), run(*command, "tiny", "-p", "tiny"), run(*command, "tiny", "tiny")):
        assert (wrong.status, wrong.out) == (2, "")
    assert "give one preset" in run(*command).err


def test_a_preset_by_name_by_path_and_from_the_catalogue(run, own):
    assert run("validate", "-p", "tiny").status == 0
    assert run("validate", "-p", "presets/tiny.yml").status == 0
    assert run("validate", "-p", own / "presets" / "tiny.yml").status == 0
    assert run("validate", "-p", "llm_0p1b_simple").status == 0


def test_debug_shows_the_traceback(own):
    from eulerstack.errors import ValidationError

    with pytest.raises(ValidationError):
        main(["--debug", "validate", "-p", "nothing"])
    with pytest.raises(ValidationError):
        main(["validate", "-p", "nothing", "--debug"])


def test_a_file_that_cannot_be_read_gets_three_lines(run, own):
    (own / "presets" / "loop.yml").symlink_to(own / "presets" / "loop.yml")
    for arguments in (["presets", "show", "loop"], ["validate", "-p", "loop"]):
        said = run(*arguments)
        assert said.status == 1
        assert "loop.yml: " in said.problems[0][0]


BLOCKED = """
    import sys

    class Blocked:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.partition(".")[0] in ("torch", "transformers", "tokenizers", "safetensors", "numpy"):
                raise ModuleNotFoundError(f"{name} is blocked", name=name)

    sys.meta_path.insert(0, Blocked)
    from eulerstack.cli.main import main
    for arguments in %r:
        try:
            main(arguments)
        except SystemExit as end:
            assert not end.code, arguments
    """


def test_the_front_needs_no_torch(own):
    """Nor transformers, nor what they bring: a preset is checked and counted without them."""
    commands = [
        ["validate", "-p", "tiny", "--report"],
        ["explain", "-p", "tiny"],
        ["explain", "-p", "tiny", "--json"],
        ["explain", "-p", "tiny", "--brief"],
        ["diff", "tiny", "llm_0p1b_jamba"],
        ["diff", "tiny", "tiny", "--json"],
        ["presets", "list"],
        ["presets", "list", "--json"],
        ["presets", "show", "tiny"],
        ["schema"],
        ["schema", "--json"],
        ["compile", "-p", "tiny", "--print-config"],
        ["compile", "-p", "tiny", "--validate-only"],
        ["compile", "-p", "tiny", "--dry-run"],
        ["compile", "-p", "tiny", "--output", "tiny.json"],
        ["init", "elsewhere"],
        ["why", "tiny"],
        ["cache", "stats"],
        ["cache", "gc"],
        ["cache", "verify"],
        ["new", "other", "--from", "tiny"],
        ["--version"],
    ]
    code = textwrap.dedent(BLOCKED) % commands
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=own, capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""


def test_each_command_is_a_file():
    import pkgutil

    assert sorted(m.name for m in pkgutil.iter_modules(cli.__path__) if m.name.endswith("_command")) == [
        f"{name}_command" for name in COMMANDS
    ]
