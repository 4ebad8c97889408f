"""compile's artifacts -> `sanity/`: the same topology at about 50 K parameters, by the same export code."""

import json
from pathlib import Path

from eulerstack.stages.export import LIBRARIES as LIBRARIES
from eulerstack.stages.export import describe, written

AFTER = ("compile",)
WORKER = "package"
MODELING = "bytes"
TIME_LIMIT = 600
OUTPUTS = ("sanity",)


def inputs(preset: Path, build: Path) -> dict:
    """The compiled payload, and the corpus that the small tokenizer is trained on."""
    from eulerstack.data.sample import corpus_digest
    from eulerstack.digest import file_digest

    return {"compile": file_digest(build / "compile.json"), "corpus": corpus_digest()}


def run(preset: Path, build: Path, out: Path) -> None:
    from eulerstack.export.model import export_model
    from eulerstack.ir.shrink import shrink
    from eulerstack.ir.types import from_dict

    ir = from_dict(json.loads((build / "normalize.json").read_text(encoding="utf-8"))["ir"])
    export_model(shrink(ir), preset.stem, out / "sanity", variant="small")


def summary(out: Path) -> str:
    return describe(out / "sanity")


def digests(out: Path) -> dict[str, str]:
    """What the writer has hashed already."""
    return written(out / "sanity")
