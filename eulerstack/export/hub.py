"""Where the tokenizer of a given name lies on this machine, and one short attempt to fetch it.

huggingface_hub itself retries for half a minute when there is no network, and takes a third of a second to import.
So its cache is read here by its documented layout, and it is called only once the hub has answered.
"""

import os
import threading
from functools import cache
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from eulerstack.errors import ExportError
from eulerstack.paths import workspace

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
PATIENCE = 3.0  # seconds until a hub that does not answer counts as out of reach
FALSE = ("", "0", "off", "false", "no")


def locate(name: str) -> Path | None:
    """The directory that holds `tokenizer.json` for a directory or hub name; None if it is not on this machine.

    Raises ExportError for a directory without that file, and for a path that does not exist.
    """
    folder = workspace() / Path(name).expanduser()
    if folder.is_dir():
        if (folder / "tokenizer.json").is_file():
            return folder
        raise _error(name, f"{folder} holds no tokenizer.json", "save the tokenizer in its fast form there")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise _error(name, f"there is no directory {folder}", "give an existing directory or a hub name")
    return _snapshot(name)


def _error(name: str, what: str, fix: str) -> ExportError:
    return ExportError.at(name, what, fix, "docs/language.md#tokenizer_contract", where="tokenizer_contract")


def _snapshot(name: str) -> Path | None:
    """The revision `main` of the hub's cache (huggingface_hub, "Manage the cache": refs and snapshots)."""
    repository = _hub_cache() / f"models--{name.replace('/', '--')}"
    ref = repository / "refs" / "main"
    if not ref.is_file():
        return None
    folder = repository / "snapshots" / ref.read_text().strip()
    return folder if (folder / "tokenizer.json").is_file() else None


def _hub_cache() -> Path:
    """Where huggingface_hub keeps repositories, by the same variables (its `constants.py`)."""

    def place(variable: str, otherwise: Path) -> Path:
        return Path(os.path.expandvars(os.environ.get(variable) or otherwise)).expanduser()

    home = place("HF_HOME", place("XDG_CACHE_HOME", Path("~/.cache")) / "huggingface")
    return place("HF_HUB_CACHE", place("HUGGINGFACE_HUB_CACHE", home / "hub"))


@cache
def fetch(name: str) -> Path | None:
    """Bring the tokenizer files of a hub name into the hub's cache: one attempt per process, None if it fails."""
    offline = any(os.environ.get(key, "").lower() not in FALSE for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    if offline:
        return None
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    if not answers(constants.ENDPOINT, PATIENCE):
        return None
    for file in FILES:
        try:
            hf_hub_download(name, file)
        except EntryNotFoundError:
            continue  # all but the first are optional; `_snapshot` looks for that
        except (OSError, ValueError):  # no such repository, no access, no such name
            return None
    return _snapshot(name)


def answers(url: str, patience: float) -> bool:
    """Whether a server answers at all within `patience` seconds, looking up its name included."""
    answered = threading.Event()

    def ask() -> None:
        try:
            urlopen(Request(url, method="HEAD"), timeout=patience).close()
        except HTTPError as refusal:  # an answer too, and the only one that a private mirror may give
            refusal.close()
        except OSError:
            return
        answered.set()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(patience)
    return answered.is_set()
