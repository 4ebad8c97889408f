"""The tutorials run as they are written, block after block, in the place that their first line names.

| block | what happens |
|---|---|
| bash | runs, and ends with status 0, or with that of a first line `# exit 1` |
| python | runs; names live on in the blocks below |
| python, `# file: x/y.py` | is only written there |
| none | is what the block above it printed, measured numbers and widths of columns aside; `...` stands for any lines |
| yaml, `# file: presets/x.yml` | is written there, and is a valid preset |
| yaml, `# in: NAME` | occurs in that preset of the catalogue or of examples/primitives |
| text | is only shown |

What stands under a heading `GPU mode` runs where there is a CUDA device, and what stands under one that ends with
`(needs trl, peft)` where these are installed: the extra `consumers`.
"""

import re
import tomllib
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
import yaml

from eulerstack.compiler.judge import judge
from eulerstack.errors import EulerStackError
from eulerstack.paths import catalogue_dir
from eulerstack.stages.gpu_sanity import devices

REPO = Path(__file__).resolve().parents[2]
TUTORIALS = sorted(f"docs/tutorials/{path.name}" for path in REPO.glob("docs/tutorials/*.md"))
GPU = "GPU mode"
WITH_GPU = [name for name in TUTORIALS if f"\n## {GPU}\n" in (REPO / name).read_text(encoding="utf-8")]
# The line under the title, for whoever follows it.
WHERE = re.compile(r"\A# .+\n\n\*Follow it (anywhere|in a workspace|in a checkout)\b[^*]*\*\n\n")
SHARED = "blocks share one session"
VARIES = "differ a little from machine to machine"
STATUS = re.compile(r"# exit (\d+)\n")
DIRECTIVE = re.compile(r"# (file|in): (\S+)\n")
NEEDS = re.compile(r"\(needs ([\w, ]+)\)$")
WITH_NEEDS = [name for name in TUTORIALS if re.search(r"\n##? .*\(needs ", (REPO / name).read_text("utf-8"))]


@pytest.fixture
def follow(shell, place, same):
    """A function that runs blocks in order."""

    def run(blocks, name: str) -> None:
        stand(name, place, shell)
        scope: dict = {"__name__": "tutorial"}
        printed = None
        for block in blocks:
            at = f"{name}:{block.line}"
            match block.language:
                case "bash":
                    found = STATUS.match(block.text)
                    printed = shell(block.text, int(found[1]) if found else 0)
                case "python" if block.text.startswith("# file: "):
                    printed = None
                    written(place / DIRECTIVE.match(block.text)[2], block.text)
                case "python":
                    printed = executed(block, name, scope)
                case "yaml":
                    printed = None
                    hold(block.text, place, at)
                case "":
                    assert printed is not None, f"{at}: no block above it that prints"
                    assert same(printed, block.text), f"{at} is not what was printed:\n{printed}"
                case other:
                    assert other == "text", f"{at} is of a language that nothing runs"

    return run


def stand(name: str, place: Path, shell) -> None:
    """Make of the workplace, which has the tasks of a checkout, the place where a tutorial says that it is followed."""
    found = WHERE.match((REPO / name).read_text(encoding="utf-8")) if name in TUTORIALS else None
    if found and found[1] != "in a checkout":
        (place / "dodo.py").unlink()
    if found and found[1] == "in a workspace":
        shell("eulerstack init .")


def executed(block, name: str, scope: dict) -> str:
    """What a block of Python prints, with its own lines in a traceback."""
    out = StringIO()
    with redirect_stdout(out):
        exec(compile("\n" * (block.line - 1) + block.text, name, "exec"), scope)
    return out.getvalue()


def hold(text: str, place: Path, at: str) -> None:
    """A block of YAML to what its first line says of it."""
    found = DIRECTIVE.match(text)
    assert found, f"{at}: YAML begins with '# file: presets/NAME.yml' or '# in: NAME'"
    if found[1] == "file":
        path = written(place / found[2], text)
        assert judge(path).unbuilt == (), at
        return
    files = (catalogue_dir() / f"{found[2]}.yml", REPO / "examples" / "primitives" / f"{found[2]}.yml")
    present = [path for path in files if path.is_file()]
    assert present, f"{at}: no preset {found[2]}"
    fragment = yaml.safe_load(text)
    assert fragment, f"{at}: an empty fragment"
    assert occurs(fragment, yaml.safe_load(present[0].read_text(encoding="utf-8"))), f"{at}: not in {present[0].name}"


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def needed(block) -> list[str]:
    """The libraries without which a block does not run."""
    found = NEEDS.search(block.heading)
    return found[1].split(", ") if found else []


def occurs(part: object, tree: object) -> bool:
    """Whether `part` is in `tree`, at any depth."""
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return has(tree, part) or any(occurs(part, child) for child in children)


def has(node: object, part: object) -> bool:
    """Whether a node is `part` with perhaps more: other keys in its mappings, other items around those of its lists."""
    if isinstance(part, dict) and part:
        return isinstance(node, dict) and all(key in node and has(node[key], value) for key, value in part.items())
    if isinstance(part, list) and part:
        if not isinstance(node, list):
            return False
        windows = (node[i : i + len(part)] for i in range(len(node) - len(part) + 1))
        return any(all(map(has, window, part)) for window in windows)
    return type(node) is type(part) and node == part


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs_on_the_cpu(blocks, follow, name):
    chosen = [block for block in blocks(name) if block.heading != GPU and not needed(block)]
    assert {block.language for block in chosen} & {"bash", "python"}
    follow(chosen, name)


@pytest.mark.filterwarnings("default")  # theirs are not ours
@pytest.mark.parametrize("name", WITH_NEEDS)
def test_a_tutorial_runs_with_the_libraries_that_it_names(blocks, follow, name):
    chosen = [block for block in blocks(name) if block.heading != GPU]
    absent = sorted({library for block in chosen for library in needed(block) if find_spec(library) is None})
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}: the blocks under a heading with '(needs ...)' did not run")
    follow(chosen, name)


@pytest.mark.parametrize("name", WITH_NEEDS)
def test_the_libraries_that_a_tutorial_names_can_be_had(blocks, name):
    """A name that is misspelt would be skipped for ever."""
    extras = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    known = {re.match(r"\w+", requirement)[0] for requirement in extras["consumers"]}
    named = {library for block in blocks(name) for library in needed(block)}
    assert named
    assert named - known == set()


@pytest.mark.parametrize("name", WITH_GPU)
def test_a_tutorial_runs_on_a_gpu(blocks, follow, name):
    import torch

    assert any(block.heading == GPU for block in blocks(name))
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: the blocks under 'GPU mode' did not run")
    follow(blocks(name), name)


@pytest.mark.parametrize("name", TUTORIALS)
def test_every_fence_belongs_to_a_block(blocks, name):
    """One that is indented, or says more than a language, would not be seen and would turn text and code around."""
    fences = re.findall(r"^\s*(?:```|~~~)", (REPO / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(name))


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_says_where_to_follow_it_and_what_to_expect(blocks, name, measures):
    said = WHERE.match((REPO / name).read_text(encoding="utf-8"))
    assert said, "its first line says where to follow it"
    python = [block for block in blocks(name) if block.language == "python"]
    assert (SHARED in " ".join(said[0].split())) == (len(python) > 1)
    assert (VARIES in " ".join(said[0].split())) == any(measures(b.text) for b in blocks(name) if b.language == "")


@pytest.mark.skipif(bool(devices()), reason="there is a CUDA device, so the stage runs")
def test_without_a_device_the_gpu_stage_says_that_it_is_skipped(shell):
    """And not that it passed."""
    said = shell("doit gpu_sanity:llm_0p1b_simple")
    assert re.search(r"^gpu_sanity:llm_0p1b_simple +skipped .* no CUDA device$", said, re.MULTILINE)
    assert "skipped" in shell("doit list gpu_sanity:llm_0p1b_simple")


@pytest.fixture
def lesson(tmp_path_factory, blocks, follow):
    """A function that follows a tutorial of these blocks, each a language and a text."""
    path = tmp_path_factory.mktemp("lesson") / "lesson.md"

    def run(*parts: tuple[str, str]) -> None:
        path.write_text("\n".join(f"```{language}\n{text}\n```\n" for language, text in parts))
        follow(blocks(path), "lesson")

    return run


JAMBA = yaml.safe_load((catalogue_dir() / "llm_0p1b_jamba.yml").read_text())
ANY = {"model": {"d_model": JAMBA["model"]["d_model"]}}


def test_what_is_printed_is_held_against_what_is_shown(lesson):
    three = ("bash", "echo one 1; echo '  two  2.5e-3'; echo three")
    lesson(three, ("", "one 1\n two 1e-4\nthree"))
    lesson(three, ("", "...\nthree"))
    lesson(three, ("", "one 1\n..."))
    lesson(three, ("", "...\ntwo 2e0\n...\nthree\n..."))
    for wrong in ("one 1\nthree", "one 1\ntwo 2e0\nfour", "...\ntwo 2e0", "three\n...", "...\nfour\n...", "one 2\n..."):
        with pytest.raises(AssertionError, match="lesson:6 is not what was printed"):
            lesson(three, ("", wrong))
    with pytest.raises(AssertionError, match="not what was printed"):
        lesson(("python", "x = 'a'"), ("python", "print(x)"), ("", "b"))


def test_a_command_ends_as_it_says(lesson):
    lesson(("bash", "# exit 3\nexit 3"))
    lesson(
        ("bash", "# exit 1\neulerstack validate --preset nothing"),
        ("", "nothing: ValidationError: no such preset\n..."),
    )
    for wrong in ("false", "false | true", "false\ntrue", "# exit 1\ntrue", "# exit 1\nexit 2", "\n# exit 1\nexit 1"):
        with pytest.raises(AssertionError):
            lesson(("bash", wrong))
    with pytest.raises(ZeroDivisionError):
        lesson(("python", "1 / 0"))


def test_a_preset_is_written_and_valid(lesson, place):
    text = "# file: presets/mine.yml\n" + (catalogue_dir() / "llm_0p1b_jamba.yml").read_text()
    lesson(("yaml", text), ("bash", 'eulerstack validate --preset mine; test -d "$EXAMPLES/primitives"'), ("", "..."))
    assert (place / "presets" / "mine.yml").read_text() == text + "\n"
    with pytest.raises(EulerStackError, match="d_modle"):
        lesson(("yaml", text.replace("d_model", "d_modle")))


def test_a_module_is_written_and_does_not_run(lesson, place):
    text = "# file: a/b.py\nraise ValueError"
    lesson(("python", text), ("bash", "cat a/b.py"), ("", text))


def test_a_fragment_is_in_the_preset_that_it_names(lesson):
    text = yaml.safe_dump(ANY)
    lesson(("yaml", f"# in: llm_0p1b_jamba\n{text}"))
    for wrong in ("d_model: 1\n", "d_model: '512'\n", "nothing: 1\n", ""):
        with pytest.raises(AssertionError, match="lesson:2"):
            lesson(("yaml", f"# in: llm_0p1b_jamba\n{wrong}"))
    with pytest.raises(AssertionError, match="no preset nothing"):
        lesson(("yaml", f"# in: nothing\n{text}"))


def test_a_part_of_a_tree():
    tree = {"a": [{"b": 1, "c": True}, {"b": 2}, {"b": 3}], "e": None}
    there = [{"b": 2}, [{"b": 2}, {"b": 3}], {"a": [{"c": True}]}, {"e": None}, {"a": [{"b": 1}], "e": None}]
    absent = [{"b": 4}, [{"b": 1}, {"b": 3}], {"c": 1}, {"b": True}, {"b": {}}, {"a": {"b": 1}}, {"e": {}}, {"a": []}]
    assert [part for part in there if not occurs(part, tree)] == []
    assert [part for part in absent if occurs(part, tree)] == []


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ([("", "a")], "no block above it"),
        ([("bash", "echo a"), ("yaml", "# in: llm_0p1b_jamba\n" + yaml.safe_dump(ANY)), ("", "a")], "no block above"),
        ([("yaml", "a: 1")], "YAML begins with"),
        ([("console", "true")], "that nothing runs"),
    ],
)
def test_a_block_that_nothing_can_hold_is_noticed(lesson, parts, what):
    with pytest.raises(AssertionError, match=what):
        lesson(*parts)
