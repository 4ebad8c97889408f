"""Where everything lives, and the environment variables that move it.

| variable | moves | otherwise |
|---|---|---|
| `EULERSTACK_HOME` | the workspace | the current directory |
| `EULERSTACK_BUILD` | built artifacts | `build/` in the workspace |
| `EULERSTACK_CACHE` | everything that can be made again | `cache/` in the workspace |

A relative value counts from the workspace. Nothing here creates a directory or imports anything heavy.
"""

import difflib
import os
from pathlib import Path

from eulerstack.errors import CacheError, ValidationError

SUFFIXES = (".yml", ".yaml")
PACKAGE = Path(__file__).resolve().parent


def workspace() -> Path:
    """The directory that holds `presets/`, `build/` and `cache/`."""
    return Path(os.environ.get("EULERSTACK_HOME") or ".").resolve()


def catalogue_dir() -> Path:
    """The presets that come with EulerStack: package data when installed, `presets/` beside it in a checkout."""
    packaged = PACKAGE / "presets"
    return packaged if packaged.is_dir() else PACKAGE.parent / "presets"


def docs_dir() -> Path:
    """The pages that the `See:` lines name: package data when installed, `docs/` beside the package in a checkout."""
    packaged = PACKAGE / "docs"
    return packaged if packaged.is_dir() else PACKAGE.parent / "docs"


def presets_dir() -> Path:
    """The workspace's own `presets/`, or the catalogue where the workspace has none."""
    own = workspace() / "presets"
    return own if own.is_dir() else catalogue_dir()


def build_dir() -> Path:
    """Where `<preset>/` directories of artifacts are written."""
    return workspace() / (os.environ.get("EULERSTACK_BUILD") or "build")


def cache_dir() -> Path:
    """Where results, tokenizers, the corpus and token shards are kept; losing it costs only time."""
    value = os.environ.get("EULERSTACK_CACHE") or "cache"
    if "://" in value:
        raise CacheError.at(
            "EULERSTACK_CACHE",
            f"{value!r} is not a local directory",
            "give the path of a directory",
            "docs/building.md#cache",
        )
    return workspace() / value


def presets_in(folder: Path) -> dict[str, Path]:
    """The presets of a folder by name (the file name without its suffix), sorted; `.yml` goes before `.yaml`.

    Hidden files are what editors and file managers leave beside them.
    """
    files = [path for suffix in reversed(SUFFIXES) for path in folder.glob(f"[!.]*{suffix}")]
    return dict(sorted((path.stem, path) for path in files))


def all_presets() -> list[Path]:
    """The workspace's presets, then those of the catalogue whose name it does not use itself."""
    own, catalogue = presets_in(presets_dir()), presets_in(catalogue_dir())
    return [*own.values(), *(path for name, path in catalogue.items() if name not in own)]


def find_preset(name_or_path: str | os.PathLike) -> Path:
    """The file of a preset, given its path or its name in the workspace, else in the catalogue.

    Raises ValidationError, with the nearest name, if there is no such preset.
    """
    given = os.fspath(name_or_path)
    known = {path.stem: path for path in all_presets()}
    is_path = given.endswith(SUFFIXES) or Path(given).name != given
    if is_path and Path(given).is_file():
        return Path(given)
    if not is_path and given in known:
        return known[given]
    near = difflib.get_close_matches(Path(given).stem, known, n=1)
    what = "no such preset file" if is_path else "no such preset"
    if is_path and Path(given).is_dir():
        what = "a directory, not a preset file"
    fix = f"did you mean '{near[0]}'?" if near else "`eulerstack presets list` names them all"
    raise ValidationError.at(given, what, fix, "docs/tutorials/02_presets.md#your-own-presets")
