"""compile's artifacts, tokenizer -> `hf/`: the Hugging Face directory at full size."""

import json
from pathlib import Path

AFTER: tuple[str, ...] = ("sanity_export",)
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
WORKER = "package"
MODELING = "bytes"
TIME_LIMIT = 6 * 3600
OUTPUTS = ("hf",)


def inputs(preset: Path, build: Path) -> dict:
    """The compiled payload and the content of the tokenizer."""
    from eulerstack.graph.digest import file_digest

    return {"compile": file_digest(build / "compile.json"), "tokenizer": tokenizer_digest(build)}


def tokenizer_digest(build: Path) -> dict:
    """What the tokenizer that the preset contracts depends on."""
    from eulerstack.export.tokenizer import digest

    ir = json.loads((build / "normalize.json").read_text(encoding="utf-8"))["ir"]
    return digest(ir["tokenizer_contract"], ir["model"]["vocab_size"])


def run(preset: Path, build: Path, out: Path) -> None:
    """Raises ExportError when the tokenizer does not fit."""
    from eulerstack.export.model import export_model
    from eulerstack.ir.types import from_dict

    ir = from_dict(json.loads((build / "normalize.json").read_text(encoding="utf-8"))["ir"])
    export_model(ir, preset.stem, out / "hf")


def summary(out: Path) -> str:
    return describe(out / "hf")


def describe(directory: Path) -> str:
    """Size, and whether the tokenizer is a stand-in."""
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    size = sum(f["size"] for f in manifest["files"].values())
    stand_in = ", stand-in tokenizer" if manifest["tokenizer"]["stand_in"] else ""
    return f"{manifest['parameters']:,} parameters, {size / 1e6:,.1f} MB{stand_in}"
