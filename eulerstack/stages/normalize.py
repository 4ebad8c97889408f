"""preset -> `normalize.json`: the IR with every default written out, and the names of the parts that build it."""

import json
from pathlib import Path

AFTER: tuple[str, ...] = ()
LIBRARIES = ("pydantic", "pyyaml")
WORKER = "front"
MODELING = None
TIME_LIMIT = 60
OUTPUTS = ("normalize.json",)


def inputs(preset: Path, build: Path) -> dict:
    """The bytes of the preset: a comment re-runs this stage and no other."""
    from eulerstack.digest import file_digest

    return {"preset": file_digest(preset)}


def run(preset: Path, build: Path, out: Path) -> None:
    """Raises the errors of the language, all of them at once."""
    from eulerstack.compiler.closure import parts
    from eulerstack.compiler.runtime import payload_of
    from eulerstack.ir.normalizer import normalize_to_ir
    from eulerstack.ir.types import to_dict

    ir = normalize_to_ir(preset)
    document = {"ir": to_dict(ir), "parts": parts(payload_of(ir))}
    (out / "normalize.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def summary(out: Path) -> str:
    ir = json.loads((out / "normalize.json").read_text(encoding="utf-8"))["ir"]
    return f"{len(ir['layers'])} layers"
