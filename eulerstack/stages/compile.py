"""IR -> `compile.json` (payload of config.json, exact costs) and `code.json` (modeling files with their digests)."""

import json
from pathlib import Path

AFTER = ("normalize",)
LIBRARIES = ("pydantic",)
WORKER = "front"
MODELING = None
TIME_LIMIT = 60
OUTPUTS = ("compile.json", "code.json")


def inputs(preset: Path, build: Path) -> dict:
    """The IR, the preset's name, and the bytes of the modeling files that its parts reach."""
    from eulerstack.compiler.closure import reachable_files
    from eulerstack.digest import file_digest

    source = build / "normalize.json"
    parts = json.loads(source.read_text(encoding="utf-8"))["parts"]
    code = {path.name: file_digest(path) for path in reachable_files(parts)}
    return {"normalize": file_digest(source), "name": preset.stem, "modeling": code}


def run(preset: Path, build: Path, out: Path) -> None:
    """Raises CompileError for everything that cannot be built, placed in the preset."""
    from eulerstack.compiler.compile import compile_ir
    from eulerstack.compiler.runtime import refuse
    from eulerstack.errors import CompileError
    from eulerstack.ir.types import from_dict
    from eulerstack.language.load import load_preset

    ir = from_dict(json.loads((build / "normalize.json").read_text(encoding="utf-8"))["ir"])
    try:
        compiled = compile_ir(ir, name=preset.stem)
    except CompileError:
        refuse(ir, load_preset(preset))  # says it again with places, which the IR has not
        raise
    (out / "compile.json").write_text(compiled.to_json(), encoding="utf-8")
    (out / "code.json").write_text(compiled.code_json(), encoding="utf-8")


def summary(out: Path) -> str:
    costs = json.loads((out / "compile.json").read_text(encoding="utf-8"))["costs"]
    return f"{costs['total']:,} parameters, {costs['active']:,} active"
