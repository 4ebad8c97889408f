"""Stamps: sealed JSON that says with which key an output was made, and what the output is.

    {"seal": sha256 of the rest, "key": {...}, "note": "" or "skipped: ...",
     "outputs": {file: {"sha256", "size"}}, "summary": "..."}

The same document is the entry of a result in the store and the stamp beside the outputs in `build/<preset>/.stamps/`.
"""

import hashlib
import json
import os
from pathlib import Path

from eulerstack.digest import canonical

HEAD = b'{"seal":"'
LENGTH = len(HEAD) + 64 + len(b'",')


def sealed(document: dict) -> bytes:
    """A non-empty JSON object as bytes that `unsealed` can tell from damaged ones."""
    return _with_seal(canonical(document)[1:])


def unsealed(data: bytes) -> dict | None:
    """The document, or None if any byte of `data` is not as it was written."""
    rest = data[LENGTH:-1]
    return json.loads(b"{" + rest) if data == _with_seal(rest) else None


def _with_seal(rest: bytes) -> bytes:
    return HEAD + hashlib.sha256(rest).hexdigest().encode() + b'",' + rest + b"\n"


def read(path: Path) -> dict | None:
    """The document of the file at `path`, or None if there is no sound one."""
    try:
        return unsealed(path.read_bytes())
    except OSError:
        return None


def write(path: Path, document: dict, scratch: Path) -> None:
    """Let `path` be the sealed document, at once, by way of a file in `scratch` on the same file system."""
    place(sealed(document), path, scratch)


def place(data: bytes, path: Path, scratch: Path) -> None:
    """Let the file at `path` hold `data`, whole or not at all."""
    temporary = scratch / f"{path.name}.{os.urandom(6).hex()}"
    with temporary.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.replace(path)


def differences(old, new, where: str = "") -> list[str]:
    """The dotted places where two keys differ, such as `inputs.preset` or `libraries.torch`."""
    if old == new:
        return []
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [where or "all"]
    prefix = f"{where}." if where else ""
    names = sorted(old.keys() | new.keys())
    return [place for name in names for place in differences(old.get(name), new.get(name), f"{prefix}{name}")]
