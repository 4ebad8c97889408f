"""The command line as a user meets it, in a workspace of one's own."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from eulerstack.cli.main import main

TINY = """\
schema_version: 1
model: {name: tiny, d_model: 128, vocab_size: 300, max_seq_len: 64, n_heads: 2, n_kv_heads: 1, d_ff: 48}
tokenizer_contract: {type: byte_bpe}
embedding: {type: learned, positional: rope}
layer_templates:
  attention:
    mixer: {type: attention, attention: {window: 16}}
    ffn: {type: gated_mlp}
  state:
    mixer: {type: mamba, mamba: {variant: mamba2, d_state: 8, head_dim: 64}}
    ffn: {type: moe, moe: {experts: 4, top_k: 2, d_ff: 16}}
layer_schedule:
  - {template: state, repeat: 2}
  - {template: attention}
head: {type: causal_lm}
"""


@dataclass(frozen=True)
class Said:
    """What a command left: exit status, standard output, standard error."""

    status: int
    out: str
    err: str

    @property
    def problems(self) -> list[list[str]]:
        """Standard error as problems of three lines."""
        lines = self.err.splitlines()
        assert len(lines) % 3 == 0, self.err
        problems = [lines[i : i + 3] for i in range(0, len(lines), 3)]
        assert all(fix.startswith("Fix: ") and see.startswith("See: ") for _, fix, see in problems), self.err
        return problems


@pytest.fixture
def refused():
    """A function: the places and texts of the CompileErrors that a command ended with."""

    def find(said: Said) -> dict[str, str]:
        assert (said.status, said.out) == (1, "")
        return dict(first.split(": CompileError: ") for first, *_ in said.problems if ": CompileError: " in first)

    return find


@pytest.fixture
def run(capsys):
    """A function that runs `eulerstack ARGUMENTS...` in this process."""

    def command(*arguments: object) -> Said:
        with pytest.raises(SystemExit) as end:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Said(end.value.code or 0, out, err)

    return command


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """A workspace whose only preset of its own is `tiny`; the current directory."""
    monkeypatch.setenv("EULERSTACK_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "tiny.yml").write_text(TINY)
    return tmp_path


@pytest.fixture
def preset(own):
    """A function that writes a preset: `tiny` with one piece of text replaced. Returns its path."""

    def write(name: str, old: str = "", new: str = "") -> Path:
        assert TINY.count(old) == 1 or not old
        path = own / "presets" / f"{name}.yml"
        path.write_text(TINY.replace(old, new) if old else TINY)
        return path

    return write


def files(folder: Path) -> dict[str, bytes]:
    found = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    return {name: content for name, content in found.items() if not name.startswith("cache/")}


@pytest.fixture
def untouched(own):
    """A function that says whether the workspace, but for its cache, is as it was when this fixture was asked for."""
    before = files(own)
    return lambda: files(own) == before


# Features that are not built yet: a piece of TINY, what to put there, where it is refused, and its name.
ATTENTION, END = "mixer: {type: attention, attention: {window: 16}}", "head: {type: causal_lm}\n"
UNBUILT = {
    "native": (END, f"{END}compatibility: {{compile_target: native}}\n", "16:17", "'native'"),
}


@pytest.fixture(params=UNBUILT)
def unbuilt(request, preset) -> tuple[Path, str, str]:
    """A valid preset with a feature that is not built yet, where, and how it is called."""
    old, new, place, name = UNBUILT[request.param]
    return preset(request.param, old, new), place, name
