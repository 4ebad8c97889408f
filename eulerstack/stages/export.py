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
    from eulerstack.digest import file_digest

    return {"compile": file_digest(build / "compile.json"), "tokenizer": tokenizer_digest(build)}


def prepare(preset: Path, build: Path) -> None:
    """One short attempt to fetch the tokenizer, before a key says what is at hand."""
    from eulerstack.export.hub import fetch, locate

    contract = _ir(build)["tokenizer_contract"]
    if contract["type"] == "hf" and locate(contract["pretrained"]) is None:
        fetch(contract["pretrained"])


def tokenizer_digest(build: Path) -> dict:
    """What the tokenizer that the preset contracts depends on."""
    from eulerstack.export.tokenizer import digest, extra_tokens

    ir = _ir(build)
    return digest(ir["tokenizer_contract"], ir["model"]["vocab_size"], extra_tokens(ir["transition"]))


def run(preset: Path, build: Path, out: Path) -> None:
    """Raises ExportError when the tokenizer does not fit."""
    from eulerstack.export.model import export_model
    from eulerstack.ir.types import from_dict

    export_model(from_dict(_ir(build)), preset.stem, out / "hf")


def summary(out: Path) -> str:
    return describe(out / "hf")


def digests(out: Path) -> dict[str, str]:
    """What the writer has hashed already."""
    return written(out / "hf")


def written(directory: Path) -> dict[str, str]:
    """`<directory>/<file>` -> sha256, from the manifest."""
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    return {f"{directory.name}/{name}": file["sha256"] for name, file in manifest["files"].items()}


def describe(directory: Path) -> str:
    """Size, and whether the tokenizer is a stand-in."""
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    size = sum(f["size"] for f in manifest["files"].values())
    stand_in = ", stand-in tokenizer" if manifest["tokenizer"]["stand_in"] else ""
    return f"{manifest['parameters']:,} parameters, {size / 1e6:,.1f} MB{stand_in}"


def _ir(build: Path) -> dict:
    return json.loads((build / "normalize.json").read_text(encoding="utf-8"))["ir"]
