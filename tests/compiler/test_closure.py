import ast
import subprocess
import sys
from pathlib import Path

import pytest

from eulerstack.compiler.closure import MODELING, auto_map, closure, entry_name, parts, reachable_files
from eulerstack.errors import CompileError

PAYLOAD = {
    "blocks": {
        "a": {"mixer": {"type": "attention"}, "ffn": {"type": "mlp"}, "residual": {"type": "sequential"}},
        "b": {"mixer": {"type": "attention"}, "ffn": {"type": "none"}, "residual": {"type": "sequential"}},
    },
    "head_type": "causal_lm",
}


@pytest.fixture
def modeling(tmp_path: Path):
    """Writes a folder of modeling files, the two that always ship included, and returns it."""

    def write(**sources: str) -> Path:
        always = {
            "configuration_eulerstack": "",
            "decoder": "from .context import Context\n",
            "causal_lm": "from .decoder import Decoder\n",
            "context": "import torch\n",
        }
        for name, source in (always | {"mixer_attention": "", "ffn_mlp": ""} | sources).items():
            (tmp_path / f"{name}.py").write_text(source)
        return tmp_path

    return write


def test_parts_leave_out_none():
    assert parts(PAYLOAD) == ["ffn_mlp", "mixer_attention"]


def test_everything_that_a_payload_names_is_a_part():
    branches = {"x": {"type": "mamba1"}, "y": {"type": "none"}, "z": {"type": "attention"}}
    block = {
        "mixer": {"type": "branched", "branches": branches},
        "memory": {"type": "retrieval"},
        "ffn": {"type": "none"},
        "residual": {"type": "hyper_connection"},
        "shape_change": {"d_out": 8},
        "depth_gating": {"capacity": 0.5},
    }
    payload = {
        "blocks": {"a": block},
        "schedule": [{"type": "plain"}, {"type": "parallel"}, {"type": "integrator"}],
        "head_type": "causal_lm_mtp",
        "quantisation": {"dtype": "fp8"},
    }
    found = ["depth_gate", "fake_quant", "head_causal_lm_mtp", "memory_retrieval", "mixer_attention", "mixer_branched"]
    found += ["mixer_mamba1", "recipe", "residual_hyper_connection", "run_integrator", "run_parallel", "shape_change"]
    assert parts(payload) == found


def test_files_are_the_parts_and_what_they_import(modeling):
    folder = modeling(mixer_attention="from .op_x import x\n", op_x="from .op_y import y\n", op_y="", mixer_mamba1="")
    code = closure(PAYLOAD, "p", folder)
    names = [
        "causal_lm",
        "configuration_eulerstack",
        "context",
        "decoder",
        "ffn_mlp",
        "mixer_attention",
        "op_x",
        "op_y",
    ]
    assert list(code.files) == [f"{name}.py" for name in names]


def test_a_comment_changes_the_bytes_alone(modeling):
    folder = modeling(ffn_mlp="A = 1\n")
    before = closure(PAYLOAD, "p", folder).files
    (folder / "ffn_mlp.py").write_text("# one\nA = 1\n")
    after = closure(PAYLOAD, "p", folder).files
    assert before["ffn_mlp.py"].bytes != after["ffn_mlp.py"].bytes
    assert before["ffn_mlp.py"].meaning == after["ffn_mlp.py"].meaning
    assert {name for name in before if before[name] != after[name]} == {"ffn_mlp.py"}


def test_the_entry_imports_every_file_and_defines_all_classes(modeling):
    code = closure(PAYLOAD, "my_preset", modeling(ffn_mlp="from .op_x import x\n", op_x="x = 1\n"))
    tree = ast.parse(code.entry_text)
    assert {f"{n.module}.py" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)} == set(code.files)
    classes = ["EulerStackConfig", "EulerStackModel", "EulerStackForCausalLM"]
    assert [n.name for n in tree.body if isinstance(n, ast.ClassDef)] == classes
    assert "my_preset" in ast.get_docstring(tree)


def test_any_name_of_a_preset_makes_a_valid_entry(modeling):
    for preset in ('a"""b', "a\\", "a\\N", "é\n"):
        ast.parse(closure(PAYLOAD, preset, modeling()).entry_text)


def test_the_entry_text_has_no_import_that_transformers_would_misread(modeling):
    from transformers.dynamic_module_utils import get_relative_imports

    folder = modeling()
    code = closure(PAYLOAD, "p", folder)
    path = folder / f"{code.entry_name}.py"
    path.write_text(code.entry_text)
    assert {f"{name}.py" for name in get_relative_imports(path)} == set(code.files)


def test_entry_names_differ_and_are_identifiers():
    names = {preset: entry_name(preset) for preset in ("llm_0p1b", "llm-0p1b", "LLM_0p1b", "llm 0p1b", "0.1", "é")}
    assert len(set(names.values())) == len(names)
    assert all(name.isidentifier() and name.isascii() for name in names.values())
    assert names["llm_0p1b"] == "modeling_eulerstack_llm_0p1b"


def test_auto_map_points_into_the_entry():
    assert auto_map("e") == {
        "AutoConfig": "e.EulerStackConfig",
        "AutoModel": "e.EulerStackModel",
        "AutoModelForCausalLM": "e.EulerStackForCausalLM",
    }


@pytest.mark.parametrize(
    ("source", "line", "what"),
    [
        ("from . import context\n", 1, "cannot ship"),
        ("\nfrom .. import x\n", 2, "cannot ship"),
        ("from .sub.part import x\n", 1, "cannot ship"),
        ("def f():\n    from eulerstack.errors import x\n", 2, "'eulerstack' cannot ship"),
        ("import importlib.util\n", 1, "'importlib' cannot ship"),
        ("import numpy as np\n", 1, "'numpy' may not be installed"),
        ("try:\n    x = 1\nexcept ImportError:\n    import triton\n", 4, "'triton' may not be installed"),
        ("from .gone import x\n", 1, "there is no modeling file gone.py"),
        ('"""Example:\n\nfrom .context import Context\n"""\n', None, "by text"),
        ("if True: from .context import Context\n", None, "by text"),
        ("x = (\n", 1, "not valid Python"),
    ],
)
def test_what_may_not_ship(modeling, source, line, what):
    with pytest.raises(CompileError, match=what) as caught:
        closure(PAYLOAD, "p", modeling(ffn_mlp=source))
    (problem,) = caught.value.problems
    assert problem.path.endswith("ffn_mlp.py")
    assert problem.line == line


@pytest.mark.parametrize(
    "source",
    [
        "import math\nfrom collections.abc import Callable\n",
        "from torch import nn\nfrom transformers import PreTrainedModel\n",
        "try:\n    import triton\nexcept ImportError:\n    triton = None\n",
        "from __future__ import annotations\n",
    ],
)
def test_what_may_ship(modeling, source):
    assert "ffn_mlp.py" in closure(PAYLOAD, "p", modeling(ffn_mlp=source)).files


def test_a_part_without_a_file_is_an_error(modeling):
    block = PAYLOAD["blocks"]["a"] | {"mixer": {"type": "fourier"}}
    payload = PAYLOAD | {"blocks": {"a": block}}
    with pytest.raises(CompileError, match=r"no modeling file mixer_fourier\.py"):
        closure(payload, "p", modeling())


def test_every_problem_is_told_at_once(modeling):
    with pytest.raises(CompileError) as caught:
        closure(PAYLOAD, "p", modeling(ffn_mlp="import numpy\nfrom . import x\n", mixer_attention="import scipy\n"))
    assert len(caught.value.problems) == 3


def test_every_file_of_the_package_may_ship():
    everything = [path.stem for path in MODELING.glob("*.py") if path.name != "__init__.py"]
    assert {path.stem for path in reachable_files(everything)} == set(everything)


def test_no_part_reaches_another_mixer():
    for part in (path.stem for path in MODELING.glob("mixer_*.py")):
        assert [path.stem for path in reachable_files([part]) if path.stem.startswith("mixer_")] == [part]


def test_imports_no_torch():
    code = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; import eulerstack.compiler.closure"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
