"""A whole Hugging Face directory: configuration, code, weights, tokenizer, manifest. It appears at once, by rename."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from torch.nn import Module

import eulerstack
from eulerstack.compiler.closure import auto_map, entry, entry_name, parts, reachable_files
from eulerstack.errors import ExportError
from eulerstack.export.build import build_on_meta, plan
from eulerstack.export.card import card
from eulerstack.export.draws import Planned
from eulerstack.export.files import SEE, FileRecord, appearing, explained, write_atomically, write_bytes
from eulerstack.export.tokenizer import Tokenizer
from eulerstack.export.weights import SHARD_BYTES, write_weights

__all__ = ["Exported", "write_atomically", "write_directory"]

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
MANIFEST = "manifest.json"
PRODUCER = "eulerstack"
MARGIN = 16 << 20  # bytes for everything but the weights


@dataclass(frozen=True)
class Exported:
    """A written directory; `parameters` and `buffers` count elements, ties once."""

    path: Path
    parameters: int
    buffers: int
    bytes: int
    tokenizer: Tokenizer


def write_directory(
    payload: dict,
    tokenizer: Tokenizer,
    target: Path,
    *,
    preset_name: str,
    ir_digest: str,
    seed: int,
    predicted_params: int,
    variant: str = "full",
    replace: bool = False,
    threads: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write the model of a `config.json` payload, with weights drawn from `seed`, into the new directory `target`.

    `variant` is "full" or "small"; `replace` allows `target` to hold an earlier export with no file added to it;
    `progress` is called with the bytes of weights done and in all. The files depend on nothing but the arguments, this
    package and the versions in the manifest.

    Raises ExportError if `target` is taken, there is no room, a write fails, or the model has not exactly
    `predicted_params` parameters; and CompileError if a part of it has no file.
    """
    target = Path(target).absolute()
    weights = partial(write_weights, seed=seed, threads=threads, shard_bytes=shard_bytes, progress=progress)
    about = {"preset": preset_name, "variant": variant, "seed": seed}
    try:
        with appearing(target) as folder:
            check_free(target, replace)
            model = build_on_meta(payload)
            tensors = plan(model)
            about |= _counts(target, model, tensors, predicted_params)
            _check_room(folder, target, tensors)
            texts = _texts(payload, tokenizer, about) | _recipe(model)
            files = {name: write_bytes(folder / name, data) for name, data in texts.items()}
            files |= weights(tensors, folder)
            about |= {"ir_digest": ir_digest, "dtype": payload["dtype"]}
            write_bytes(folder / MANIFEST, _json(_manifest(about, tokenizer, files)))
    except OSError as error:
        raise explained(target, error) from error
    size = sum(record.size for record in files.values())
    return Exported(target, about["parameters"], about["buffers"], size, tokenizer)


def check_free(target: Path, replace: bool) -> None:
    """ExportError unless `target` can become a new export: absent, empty, or, with `replace`, an unchanged old one."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ExportError.at(target, "is a link or a file, not a directory", "choose another directory", SEE)
    if not target.exists() or not any(target.iterdir()):
        return
    known = _files_of(target)
    if known is None:
        raise ExportError.at(target, "is a directory of something else", "choose another directory", SEE)
    if not replace:
        raise ExportError.at(target, "already holds an export", "remove it, or choose another directory", SEE)
    if added := sorted({str(p.relative_to(target)) for p in target.rglob("*") if not p.is_dir()} - known):
        what = f"has files that the export did not write: {', '.join(added[:5])}"
        raise ExportError.at(target, what, "move them away, or choose another directory", SEE)


def _files_of(folder: Path) -> set[str] | None:
    """The files an export wrote into `folder`, by its manifest, or None if it is not one of ours."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return {*manifest["files"], MANIFEST} if manifest["producer"] == PRODUCER else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _counts(target: Path, model: Module, tensors: list[Planned], predicted: int) -> dict[str, int]:
    """Elements of the model's parameters, as predicted, and of its persistent buffers."""
    parameters = sum(p.numel() for p in model.parameters())
    if parameters != predicted:
        what = f"the model has {parameters:,} parameters, but {predicted:,} were predicted"
        raise ExportError.at(target, what, "correct the arithmetic of its mixers and feed-forward layers", SEE)
    return {"parameters": parameters, "buffers": sum(t.elements for t in tensors) - parameters}


def _check_room(folder: Path, target: Path, tensors: list[Planned]) -> None:
    needed, free = sum(t.size for t in tensors) + MARGIN, shutil.disk_usage(folder).free
    if free < needed:
        what = f"needs {needed / 1e9:.2f} GB, and its disk has {free / 1e9:.2f} GB free"
        raise ExportError.at(target, what, "free some space, or choose a directory on another disk", SEE)


def _texts(payload: dict, tokenizer: Tokenizer, about: dict) -> dict[str, bytes]:
    """Every file but the weights and the manifest: name -> bytes."""
    files = reachable_files(parts(payload))
    main = entry_name(about["preset"])
    config = _config(payload, tokenizer, main)
    written = {
        "config.json": _json(config),
        "generation_config.json": _json(_generation(config)),
        "README.md": card(config, tokenizer, about).encode(),
        f"{main}.py": entry(payload, about["preset"], [path.stem for path in files]).encode(),
    }
    return written | {path.name: path.read_bytes() for path in files} | tokenizer.files


def _recipe(model: Module) -> dict[str, bytes]:
    """The file that transformers looks for where a model generates in its own way, if this one does."""
    return {"custom_generate/generate.py": model.parts["recipe"].TEXT.encode()} if "recipe" in model.parts else {}


def _config(payload: dict, tokenizer: Tokenizer, entry: str) -> dict:
    """The payload with what only an export knows: its code, its tokenizer's special ids, its library."""
    known = {"auto_map": auto_map(entry), "transformers_version": version("transformers")}
    if (payload.get("transition") or {}).get("token"):
        known["transition"] = payload["transition"] | {"token_id": tokenizer.id_of(payload["transition"]["token"])}
    return payload | known | {key: getattr(tokenizer, key) for key in IDS}


def _generation(config: dict) -> dict:
    kept = {key: config[key] for key in (*IDS, "transformers_version")}
    return {key: value for key, value in kept.items() if value is not None}


def _manifest(about: dict, tokenizer: Tokenizer, files: dict[str, FileRecord]) -> dict:
    versions = {name: version(name) for name in LIBRARIES} | {"eulerstack": eulerstack.__version__}
    return about | {
        "producer": PRODUCER,
        "versions": versions,
        "tokenizer": {"digest": tokenizer.digest, "stand_in": tokenizer.stand_in, "source": tokenizer.source},
        "files": {name: asdict(record) for name, record in files.items()},
    }


def _json(document: dict) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
