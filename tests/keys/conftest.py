"""What is needed to see a key act: every key of the schema, small presets, and where an effect can show.

An observer takes a preset as a tree and returns what can be compared: tensors by name, or plain values.
"""

import copy
import hashlib
import json
import re
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
import torch

from eulerstack.compiler.runtime import runtime_config
from eulerstack.errors import EulerStackError
from eulerstack.export.build import build, build_on_meta, plan
from eulerstack.export.draws import chunk
from eulerstack.export.tokenizer import extra_tokens, resolve
from eulerstack.ir.costs import costs
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.language.load import check
from eulerstack.language.realism import judge_realism
from eulerstack.language.schema import Spec
from eulerstack.modeling.recipe import generate

TOKENS = torch.randint(0, 270, (2, 24), generator=torch.Generator().manual_seed(0))
ONE_OF_SEVERAL = ("layer_templates.*.mixer", "layer_templates.*.ffn")
TEXT = "The key is turned, and the door does open."


def keys_of(kind: Any = Spec, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of the schema that holds a value and no block, with the type of the value.

    A list of blocks adds `[]` to the path, a map of them `.*`, and a kind of mixer or FFN its `<type>`.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from keys_of(args[0], path)
    elif origin in (Union, UnionType):
        for option in args:
            if option is not NoneType:
                yield from keys_of(option, path)
    elif origin is dict:
        yield from keys_of(args[1], f"{path}.*")
    elif origin is tuple and any(True for _ in _blocks(args[0])):
        yield from keys_of(args[0], f"{path}[]")
    elif hasattr(kind, "__pydantic_fields__"):
        fields = kind.__pydantic_fields__
        tag = f"<{get_args(fields['type'].annotation)[0]}>" if path in ONE_OF_SEVERAL else ""
        for name, field in fields.items():
            yield from keys_of(field.annotation, f"{path}{tag}.{field.alias or name}".lstrip("."))
    else:
        yield path, kind


def _blocks(kind: Any) -> Iterator[type]:
    """The blocks anywhere in a type."""
    if hasattr(kind, "__pydantic_fields__"):
        yield kind
    elif get_origin(kind) is not Literal:
        for part in get_args(kind):
            yield from _blocks(part)


@pytest.fixture(scope="session")
def schema() -> dict[str, list[Any]]:
    """Every key with the types its values may have."""
    found: dict[str, list[Any]] = {}
    for key, kind in keys_of():
        found.setdefault(key, []).append(kind)
    return found


def _address(key: str) -> list[str]:
    """Where a key of the schema lies in the preset that is changed: template `one`, the first entry of a list."""
    return re.sub("<.*?>", "", key).replace("[]", ".0").replace(".*", ".one").split(".")


def _put(tree: dict, key: str, value: Any) -> None:
    *path, last = _address(key)
    node: Any = tree
    for step in path:
        node = node[int(step)] if isinstance(node, list) else node.setdefault(step, {})
    if value is ...:
        node.pop(last, None)
    else:
        node[last] = copy.deepcopy(value)


@pytest.fixture
def preset(workspace):
    """`preset({key: value, ...})`: a small preset with these values; `...` leaves a key out."""
    _write_corpus(workspace)

    def changed(values: dict[str, Any]) -> dict:
        tree = {
            "schema_version": 1,
            "model": {"name": "keys", "d_model": 16, "vocab_size": 270, "max_seq_len": 64, "n_heads": 4},
            "tokenizer_contract": {"type": "byte_bpe"},
            "embedding": {"type": "learned", "positional": "rope"},
            "layer_templates": {"one": {"mixer": {"type": "attention"}, "ffn": {"type": "gated_mlp"}}},
            "layer_schedule": [{"template": "one"}, {"template": "one"}],
            "head": {"type": "causal_lm"},
        }
        for key, value in values.items():
            _put(tree, key, value)
        return tree

    return changed


def _write_corpus(workspace) -> None:
    """`corpus.jsonl`, and the tokenizer of another corpus in `tok/`, in the workspace."""
    for name, words in (("corpus", "the door does open "), ("other", "a key is turned ")):
        (workspace / f"{name}.jsonl").write_text(json.dumps({"id": "1", "text": words * 20}) + "\n")
    folder = workspace / "tok"
    if not folder.is_dir():
        folder.mkdir()
        resolve({"type": "byte_bpe", "corpus": "other.jsonl"}, 265).write(folder)


def _model(tree: dict, dtype: torch.dtype = torch.float64):
    """The model of a preset; a parameter of one name and shape has the same values in every model."""
    model = build(runtime_config(normalize_to_ir(tree)), dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6])
            values = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            parameter.copy_(0.4 * values + (0.2 if name.endswith("norm.weight") else 0.0))
    return model


def _logits(tree: dict, dtype: torch.dtype = torch.float64, training: bool = False) -> torch.Tensor:
    torch.manual_seed(0)
    with torch.no_grad():
        return _model(tree, dtype).train(training)(input_ids=TOKENS, use_cache=False).logits


def _continued(tree: dict) -> torch.Tensor:
    """Logits of a call that begins a document and continues the cache of the call before."""
    model, places = _model(tree), torch.arange(12).expand(2, -1)
    with torch.no_grad():
        past = model(input_ids=TOKENS[:, :12], position_ids=places, use_cache=True).past_key_values
        return model(input_ids=TOKENS[:, 12:], position_ids=places, past_key_values=past, use_cache=True).logits


def _shapes(tree: dict) -> dict:
    model = _model(tree)
    return {name: tuple(p.shape) for name, p in (*model.named_parameters(), *model.named_buffers())}


def _loss(tree: dict) -> torch.Tensor:
    with torch.no_grad():
        return _model(tree)(input_ids=TOKENS, labels=TOKENS, use_cache=False).loss


def _gradients(tree: dict) -> dict:
    """Of the loss, for every parameter."""
    model = _model(tree)
    model(input_ids=TOKENS, labels=TOKENS, use_cache=False).loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def _training(tree: dict) -> torch.Tensor:
    """The loss of a training step."""
    with torch.no_grad():
        return _model(tree).train()(input_ids=TOKENS, labels=TOKENS, use_cache=False).loss


def _phases(tree: dict) -> dict:
    """What is generated in phases, and their names."""
    ir, model = normalize_to_ir(tree), _model(tree)
    if ir.transition and ir.transition.token:
        made = resolve(ir.tokenizer_contract, ir.model.vocab_size, extra_tokens=extra_tokens(ir.transition))
        model.config.transition["token_id"] = made.id_of(ir.transition.token)
    words = {"phases": True, "return_phases": True, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    return dict(generate(model, TOKENS[:, :6], attention_mask=torch.ones_like(TOKENS[:, :6]), **words))


def _labels(tree: dict) -> dict:
    return _model(tree).phase_labels(TOKENS, lengths=torch.tensor([[9], [7]]), prompt_lengths=3)


def _moved(tree: dict) -> dict:
    """The buffers after one training step has been taken."""
    model = _model(tree).train()
    model(input_ids=TOKENS, labels=TOKENS, use_cache=False)
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def _drawn(tree: dict) -> dict:
    """The bits of every weight as an export writes them."""
    ir = normalize_to_ir(tree)
    tensors = plan(build_on_meta(runtime_config(ir)))
    return {t.name: [chunk(t, ir.training_hints.seed, n).tolist() for n in range(t.chunks)] for t in tensors}


def _stored(tree: dict) -> dict:
    return {tensor.name: str(tensor.dtype) for tensor in plan(build_on_meta(runtime_config(normalize_to_ir(tree))))}


def _tokenizer(tree: dict) -> tuple:
    from tokenizers import Tokenizer

    ir = normalize_to_ir(tree)
    made = resolve(ir.tokenizer_contract, ir.model.vocab_size, extra_tokens=extra_tokens(ir.transition))
    backend = Tokenizer.from_buffer(made.files["tokenizer.json"])
    special = [token.content for token in backend.get_added_tokens_decoder().values()]
    return backend.encode(TEXT).ids, made.size, made.pad_token_id, special


def _warnings(tree: dict) -> list[tuple[str, str]]:
    checked = check(tree)
    estimate = costs(normalize_to_ir(tree)).total
    found = (*checked.warnings, *judge_realism(checked, estimate=estimate))
    return sorted((problem.where, problem.what) for problem in found)


def _verdict(tree: dict) -> str:
    """ "valid", or the category of what the language says against it."""
    try:
        check(tree)
    except EulerStackError as error:
        return error.problems[0].category
    return "valid"


OBSERVERS = {
    "logits": _logits,
    "train": lambda tree: _logits(tree, training=True),
    "bfloat16": lambda tree: _logits(tree, torch.bfloat16),
    "continued": _continued,
    "shapes": _shapes,
    "loss": _loss,
    "gradients": _gradients,
    "training": _training,
    "phases": _phases,
    "labels": _labels,
    "moved": _moved,
    "drawn": _drawn,
    "stored": _stored,
    "tokenizer": _tokenizer,
    "warnings": _warnings,
    "verdict": _verdict,
    "config": lambda tree: runtime_config(normalize_to_ir(tree)),
    "positions": lambda tree: runtime_config(normalize_to_ir(tree))["max_position_embeddings"],
    "hints": lambda tree: runtime_config(normalize_to_ir(tree))["training_hints"],
    "name": lambda tree: normalize_to_ir(tree).name,
    "names": lambda tree: [s.stream for run in normalize_to_ir(tree).schedule for s in getattr(run, "streams", ())],
    "depth": lambda tree: len(normalize_to_ir(tree).layers),
}


@pytest.fixture(scope="session")
def observe():
    """`observe(name, tree)`; names are those of OBSERVERS."""
    return lambda name, tree: OBSERVERS[name](tree)


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and bool((a - b).abs().max() <= 1e-6 * a.double().std(correction=0) + 1e-12)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_alike(a[key], b[key]) for key in a)
    return a == b


@pytest.fixture(scope="session")
def alike():
    """Whether two observations are the same but for rounding."""
    return _alike
