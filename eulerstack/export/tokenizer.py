"""From the preset's tokenizer contract to the files of a tokenizer that any transformers from 4.57 on loads.

A tokenizer at hand (a directory, or a hub name in the hub's cache) keeps its tokens and their ids; where it cannot be
reached, a byte-level BPE of the contracted size stands in for it and says so. The marks at both ends of a text are put
there by `tokenizer.json` itself, so that every reader of the file adds the same ones.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path

from eulerstack.errors import ExportError
from eulerstack.export import byte_bpe, hub

VERSION = 1
SEE = byte_bpe.SEE
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "cls_token", "mask_token", "pad_token")
# What someone else's tokenizer_config.json may say on; the rest of it describes files that are written anew here.
KEPT = ("add_prefix_space", "chat_template", "clean_up_tokenization_spaces", "model_max_length", "padding_side")
MARKING = ("TemplateProcessing", "BertProcessing", "RobertaProcessing")  # post-processors that add tokens


@dataclass(frozen=True, kw_only=True)
class Contract:
    """`tokenizer_contract` of a preset, as plain data: whoever only needs a key need not load the language."""

    type: str
    pretrained: str | None = None
    corpus: str | None = None
    add_bos: bool = True
    add_eos: bool = True
    pad_token: str | None = None

    @classmethod
    def of(cls, given: object) -> "Contract":
        """From the block of a preset or of an IR, from its JSON, or from another contract."""
        if isinstance(given, Mapping):
            return cls(**given)
        return cls(**{field.name: getattr(given, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class Tokenizer:
    """The files of one tokenizer by name, and what the rest of the export needs to know of it.

    `size` is one more than the largest id; an id is None where there is no such token. `stand_in` says that another
    tokenizer was contracted; `source` says for people where this one is from.
    """

    files: dict[str, bytes]
    stand_in: bool
    source: str
    size: int
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None

    @cached_property
    def digest(self) -> str:
        """sha256 over the files, in hex."""
        return hashlib.sha256(json.dumps(_sums(self.files), sort_keys=True).encode()).hexdigest()

    def id_of(self, token: str) -> int:
        """The id of a token that was added. KeyError if it is none."""
        added = json.loads(self.files["tokenizer.json"])["added_tokens"]
        return {entry["content"]: entry["id"] for entry in added}[token]

    def write(self, folder: Path) -> None:
        """Write the files into an existing directory."""
        for name, data in self.files.items():
            (folder / name).write_bytes(data)


def extra_tokens(transition: object) -> tuple[str, ...]:
    """The special tokens that a preset adds to its tokenizer: that of `transition`, a block or its JSON, or None."""
    read = transition.get if isinstance(transition, Mapping) else partial(getattr, transition)
    token = read("token") if transition else None
    return (token,) if token else ()


def digest(contract: object, vocab_size: int, extra_tokens: tuple[str, ...] = ()) -> dict:
    """All that `resolve` depends on, as JSON, found without network or training; raises what `hub.locate` raises."""
    contract = Contract.of(contract)
    found = _locate(contract)
    return {
        "version": VERSION,
        "contract": asdict(contract),
        "vocab_size": vocab_size,
        "extra_tokens": list(extra_tokens),
        "tokenizers": version("tokenizers"),
        "files": _sums(_read(found)) if found else None,
        "trained": None if found else byte_bpe.key(vocab_size, contract.corpus),
    }


def resolve(
    contract: object,
    vocab_size: int | None,
    *,
    extra_tokens: tuple[str, ...] = (),
    max_length: int | None = None,
    fetch: bool = False,
) -> Tokenizer:
    """The tokenizer that the contract (see `Contract.of`) asks for, or its stand-in of exactly `vocab_size` tokens.

    `extra_tokens` become special tokens, `max_length` becomes `model_max_length`, `fetch` allows one short attempt to
    download. With `vocab_size` None a tokenizer at hand may have any size, and nothing stands in for it.
    Raises ExportError if the tokenizer has more tokens than `vocab_size`, or its files cannot be read.
    """
    contract = Contract.of(contract)
    named = [contract.pad_token] if contract.pad_token else []
    added = list(dict.fromkeys([*named, *extra_tokens]))
    found = _locate(contract)
    if found is None and fetch and contract.type == "hf":
        found = hub.fetch(contract.pretrained)
    draft = _read(found) if found else _trained(contract, vocab_size, added)
    state, config, ids = _assembled(draft, added, contract)
    size = max(ids.values()) + 1
    if vocab_size is not None and size > vocab_size:
        what = f"the tokenizer has {size} tokens, the model's vocabulary {vocab_size}"
        raise _error(contract, what, f"set model.vocab_size to {size} or more, or name another tokenizer")
    if max_length is not None:
        config["model_max_length"] = max_length
    special = {name: config[name] for name in (*NAMED, "additional_special_tokens") if name in config}
    files = {
        "tokenizer.json": json.dumps(state, ensure_ascii=False).encode(),
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=2).encode(),
        "special_tokens_map.json": json.dumps(special, ensure_ascii=False, indent=2).encode(),
    }
    return Tokenizer(
        files | {name: draft[name] for name in ("chat_template.jinja",) if name in draft},
        stand_in=contract.type == "hf" and found is None,
        source=_source(contract, found, size),
        size=size,
        **{f"{name}_id": ids.get(config.get(name)) for name in ("bos_token", "eos_token", "pad_token")},
    )


def _locate(contract: Contract) -> Path | None:
    return hub.locate(contract.pretrained) if contract.type == "hf" else None


def _read(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in hub.FILES if (folder / name).is_file()}


def _trained(contract: Contract, vocab_size: int | None, added: list[str]) -> dict[str, bytes]:
    """The same files for a tokenizer trained here, smaller than `vocab_size` by what is still to be added."""
    if vocab_size is None:
        what = "this tokenizer cannot be reached, and its size is not known"
        raise _error(contract, what, "give the directory of a tokenizer, or connect to the hub once")
    room = vocab_size - len(set(added) - {byte_bpe.BOS, byte_bpe.EOS})
    config = {"bos_token": byte_bpe.BOS, "eos_token": byte_bpe.EOS}
    text = byte_bpe.trained(room, contract.corpus)
    return {"tokenizer.json": text.encode(), "tokenizer_config.json": json.dumps(config).encode()}


def _assembled(draft: dict[str, bytes], added: list[str], contract: Contract) -> tuple[dict, dict, dict[str, int]]:
    """Content of tokenizer.json and of tokenizer_config.json, and the ids of all tokens."""
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_buffer(draft["tokenizer.json"])
        given = {k: v for f in reversed(hub.FILES[1:3]) if f in draft for k, v in json.loads(draft[f]).items()}
    except Exception as error:  # the library has no class of its own for a file it cannot read
        raise _error(contract, f"its files cannot be read: {error}", "save the tokenizer again") from error
    backend.no_truncation()
    backend.no_padding()
    backend.add_special_tokens(added)
    ids = backend.get_vocab(with_added_tokens=True)
    config = _config(given, added, contract, ids)
    state = json.loads(backend.to_str())
    marks = [config.get(name) if wanted else None for name, wanted in _wanted(contract)]
    state["post_processor"] = _marked(state["post_processor"], *marks, ids)
    return state, config, ids


def _wanted(contract: Contract) -> tuple[tuple[str, bool], ...]:
    return ("bos_token", contract.add_bos), ("eos_token", contract.add_eos)


def _config(given: dict, added: list[str], contract: Contract, ids: dict[str, int]) -> dict:
    """tokenizer_config.json: the class that every version knows, and special tokens as plain strings."""
    named = {name: _content(given.get(name)) for name in NAMED}
    named["pad_token"] = contract.pad_token or named["pad_token"]
    others = [_content(token) for token in given.get("additional_special_tokens") or []]
    others += [token for token in added if token != contract.pad_token]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **{key: given[key] for key in KEPT if key in given},
        **{name: token for name, token in named.items() if token in ids},
        **{f"add_{name}": wanted for name, wanted in _wanted(contract)},
        "additional_special_tokens": [token for token in dict.fromkeys(others) if token in ids],
    }


def _content(token: str | dict | None) -> str | None:
    return token["content"] if isinstance(token, dict) else token


def _marked(post: dict | None, bos: str | None, eos: str | None, ids: dict[str, int]) -> dict | None:
    """The post-processor that adds these marks and no others, and does what else it did."""
    steps = post["processors"] if post and post["type"] == "Sequence" else [post] if post else []
    steps = [step for step in steps if step["type"] not in MARKING]

    def piece(sequence: str, type_id: int) -> list[dict]:
        row = [("SpecialToken", bos), ("Sequence", sequence), ("SpecialToken", eos)]
        return [{kind: {"id": name, "type_id": type_id}} for kind, name in row if name is not None]

    marks = {mark: {"id": mark, "ids": [ids[mark]], "tokens": [mark]} for mark in (bos, eos) if mark is not None}
    template = {"single": piece("A", 0), "pair": piece("A", 0) + piece("B", 1), "special_tokens": marks}
    steps.append({"type": "TemplateProcessing", **template})
    return steps[0] if len(steps) == 1 else {"type": "Sequence", "processors": steps}


def _source(contract: Contract, found: Path | None, size: int) -> str:
    if found:
        return f"the tokenizer {contract.pretrained}"
    trained = f"a byte-level BPE of {size} tokens trained on {contract.corpus or 'the embedded corpus'}"
    return trained if contract.type == "byte_bpe" else f"a stand-in for {contract.pretrained}: {trained}"


def _sums(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def _error(contract: Contract, what: str, fix: str) -> ExportError:
    return ExportError.at(contract.pretrained or contract.type, what, fix, SEE, where="tokenizer_contract")
