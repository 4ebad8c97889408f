"""The same topology at about 50 K parameters: what is checked on a CPU in seconds, for a model of any size.

Kept: each kind of layer and each kind of neighbours, in the order they come in; the ratio of query heads to key-value
heads; fewer experts chosen than there are; windows that bind; ties, norms, biases, positions and their scaling. A part
says itself what it looks like small (`language/block.py`, Part).
"""

import math
from dataclasses import replace
from itertools import count, cycle, islice, pairwise

from eulerstack.errors import CompatibilityError
from eulerstack.ir.law import verify
from eulerstack.ir.quantised import scoped
from eulerstack.ir.tensors import inner_dims, parameters
from eulerstack.ir.types import IR, Layer, PlainRun, Run, dims_of, from_dict, layers_of, to_dict
from eulerstack.language.block import Dims
from eulerstack.language.hints import Compatibility, ExecutionMode, TrainingHints
from eulerstack.language.schema import Embedding, Model

SMALL_VOCAB = 320
SMALL_WIDTH = 32
SMALL_LENGTH = 64
SMALL_DEPTH = 4
SMALL_STEPS = 3
SEE = "docs/language.md#model"


def shrink(
    ir: IR,
    *,
    vocab_size: int = SMALL_VOCAB,
    d_model: int | None = None,
    n_heads: int | None = None,
    n_layers: int | None = None,
    max_seq_len: int | None = None,
) -> IR:
    """`ir` at small sizes, or at those given; `n_layers` is the fewest wanted, since every kind of layer stays.

    Raises CompatibilityError when the given d_model and n_heads do not go together.
    """
    model = _model(ir, d_model or SMALL_WIDTH, n_heads, max_seq_len)
    model = replace(model, vocab_size=vocab_size, target_params=None)
    embedding = _embedding(ir, model)
    dims, small = ir.dims, dims_of(model, embedding)
    depth = n_layers or min(len(ir.layers), SMALL_DEPTH)
    layers, schedule = _rebuilt(ir, [_layer(layer, dims, small) for layer in ir.layers], depth)
    mtp = ir.mtp_layer and replace(_layer(ir.mtp_layer, dims, small), index=len(layers))
    contract = replace(ir.tokenizer_contract, type="byte_bpe", pretrained=None, corpus=None)
    hints = _hints(ir.training_hints, ir.model.d_model / model.d_model)
    changes = {"model": model, "embedding": embedding, "tokenizer_contract": contract, "mtp_layer": mtp}
    changes |= {"training_hints": hints, "execution_modes": _phases(ir, model.max_seq_len)}
    changes |= {"head": replace(ir.head, mtp=ir.head.mtp.shrunk())} if ir.head.mtp else {}
    small_ir = replace(ir, **changes, layers=layers, schedule=schedule)
    return verify(from_dict(to_dict(replace(small_ir, compatibility=_compatibility(small_ir)))))


def _compatibility(small: IR) -> Compatibility:
    """Patterns of layers that have gone are dropped; if all of them have, every matrix is quantised."""
    quantised = small.compatibility.quant_aware_training
    if quantised is None:
        return small.compatibility
    _, idle = scoped(parameters(small), quantised.scope)
    scope = tuple(pattern for pattern in quantised.scope if pattern not in idle)
    return replace(small.compatibility, quant_aware_training=replace(quantised, scope=scope))


def _model(ir: IR, d_model: int, n_heads: int | None, max_seq_len: int | None) -> Model:
    model, ratio = ir.model, ir.model.n_heads // ir.model.n_kv_heads
    if n_heads is None:
        n_kv_heads = min(model.n_kv_heads, 4 if ratio == 1 else 2)
        heads = ratio * n_kv_heads
    else:
        heads = n_heads
        n_kv_heads = max(n for n in range(1, heads + 1) if heads % n == 0 and n <= max(1, heads // ratio))
    return replace(
        model,
        d_model=d_model,
        n_heads=heads,
        n_kv_heads=n_kv_heads,
        head_dim=_head_dim(ir, d_model, heads, chosen=n_heads is not None),
        d_ff=max(4, min(3 * d_model // 2, d_model * model.d_ff // model.d_model)),
        max_seq_len=max_seq_len or min(model.max_seq_len, SMALL_LENGTH),
    )


def _head_dim(ir: IR, d_model: int, heads: int, *, chosen: bool) -> int:
    """d_model / heads where rope can turn it, else the next size it can; a choice of heads is taken at its word.

    Heads that are wider or narrower together than the model stay so, and odd ones odd.
    """
    embedding, old = ir.embedding, ir.model
    whole = old.n_heads * old.head_dim
    if not chosen and whole != old.d_model:
        sizes = count(d_model // heads + 1) if whole > old.d_model else range(d_model // heads, 1, -1)
        apart = (n for n in sizes if embedding.turns(n) and n % 2 == old.head_dim % 2 and n * heads != d_model)
        if size := next(apart, None):
            return size
    if d_model % heads == 0 and embedding.turns(d_model // heads) and (chosen or d_model // heads >= 4):
        return d_model // heads
    if chosen:
        what = f"d_model {d_model} does not split into {heads} heads" + (" that rope can turn" * (d_model % heads == 0))
        fix = "give another n_heads, or leave both out"
        raise CompatibilityError.at("shrink", what, fix, SEE, where="model.n_heads")
    return next(size for size in count(max(4, d_model // heads // 2 * 2), 2) if embedding.turns(size))


def _hints(hints: TrainingHints, ratio: float) -> TrainingHints:
    """Narrow matrices start with larger numbers, so that every branch weighs in the residual stream as it did and a
    fault in any of them shows in the logits. Up to a point, so that the first loss stays near that of a guess."""
    return replace(hints, init=replace(hints.init, std=hints.init.std * math.sqrt(min(max(ratio, 1.0), 32.0))))


def _phases(ir: IR, length: int) -> tuple[ExecutionMode, ...]:
    """Budgets keep their share of max_seq_len, and room for a token before the one that ends the phase."""
    share, modes = length / ir.model.max_seq_len, ir.execution_modes
    return tuple(replace(m, max_tokens=min(m.max_tokens, max(2, int(m.max_tokens * share)))) for m in modes)


def _embedding(ir: IR, model: Model) -> Embedding:
    """A scale of sqrt(d_model) stays one, and the trained length of a rope scaling keeps its share of max_seq_len."""
    embedding, scaling = ir.embedding, ir.embedding.rope_scaling
    scale = embedding.scale and embedding.scale * math.sqrt(model.d_model / ir.model.d_model)
    if scaling is not None and scaling.original_max_position_embeddings is not None:
        original = scaling.original_max_position_embeddings * model.max_seq_len // ir.model.max_seq_len
        scaling = replace(scaling, original_max_position_embeddings=max(1, original))
    return replace(embedding, scale=scale, rope_scaling=scaling)


def _layer(layer: Layer, dims: Dims, small: Dims) -> Layer:
    change = layer.shape_change and layer.shape_change.shrunk(dims, small)
    shrunk = replace(layer, shape_change=change)
    inner = inner_dims(layer, dims), inner_dims(shrunk, small)
    mixer, ffn = (part.shrunk(*inner) for part in (layer.mixer, layer.ffn))
    return replace(shrunk, mixer=mixer, ffn=ffn, memory=layer.memory and layer.memory.shrunk(*inner))


def _units(ir: IR, kinds: list[str]) -> list[Run]:
    """The schedule with one entry for each plain layer, and with streams thinned out."""
    units: list[Run] = []
    for run in ir.schedule:
        if run.type == "plain":
            units += [PlainRun(type="plain", layers=(i,)) for i in run.layers]
        elif run.type == "parallel":
            streams = (replace(s, layers=_thinned(s.layers, kinds)) for s in run.streams)
            units.append(replace(run, streams=tuple(streams)))
        else:
            steps = min(run.options.steps, SMALL_STEPS)
            units.append(replace(run, options=replace(run.options, steps=steps)))
    return units


def _thinned(layers: tuple[int, ...], kinds: list[str]) -> tuple[int, ...]:
    return tuple(layers[i] for i in few([kinds[layer] for layer in layers]))


def _chosen(kinds: list[str], n: int) -> list[int]:
    """Places of the units that stay: a few, or `n` in the order of the schedule, begun again at its end."""
    least = few(kinds)
    if n <= len(least):
        return least
    many = list(islice(cycle(range(len(kinds))), n))
    return many if {kinds[i] for i in many} == set(kinds) else [0] * (n - len(least)) + least


def few(kinds: list[str]) -> list[int]:
    """Places in `kinds` that show every kind, and every pair of neighbours, in the order in which they first occur."""
    kept, seen = [0], set()
    for here, there in pairwise(range(len(kinds))):
        if (kinds[here], kinds[there]) not in seen:
            seen.add((kinds[here], kinds[there]))
            kept += [here, there] if kinds[kept[-1]] != kinds[here] else [there]
    return kept


def _moved(run: Run, places: dict[int, int]) -> Run:
    """The entry over the same layers at other places."""
    if run.type == "integrator":
        return replace(run, layer=places[run.layer])
    if run.type == "plain":
        return replace(run, layers=tuple(places[i] for i in run.layers))
    return replace(run, streams=tuple(replace(s, layers=tuple(places[i] for i in s.layers)) for s in run.streams))


def _rebuilt(ir: IR, layers: list[Layer], depth: int) -> tuple[tuple[Layer, ...], tuple[Run, ...]]:
    """The small layers that stay, and the schedule over them."""
    kinds = [repr(replace(layer, index=0, entry=0)) for layer in ir.layers]
    units = _units(ir, kinds)
    alike = [repr((_moved(u, dict.fromkeys(layers_of(u), 0)), [kinds[i] for i in layers_of(u)])) for u in units]
    made: list[Layer] = []
    schedule: list[Run] = []
    for unit in (units[i] for i in _chosen(alike, depth)):
        places = {old: len(made) + n for n, old in enumerate(layers_of(unit))}
        made += [replace(layers[old], index=new, entry=len(schedule)) for old, new in places.items()]
        schedule.append(_moved(unit, places))
    return tuple(made), tuple(schedule)
