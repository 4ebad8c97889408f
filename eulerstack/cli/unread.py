"""Options that nothing reads where they stand, though a complete model has a value for each of them."""

from collections.abc import Callable, Iterator

Block = dict


def read(tree: Block, name: str = "") -> Block:
    """A tree of plain values without what nothing reads; `name` is the key under which it stands."""
    idle = set(UNREAD[name](tree)) if name in UNREAD else ()
    branches = name == "branches"  # whose names say nothing of what stands under them
    kept = {key: value for key, value in tree.items() if key not in idle}
    return {
        key: read(value, "" if branches else key) if isinstance(value, dict) else value for key, value in kept.items()
    }


def _model(own: Block) -> Iterator[str]:
    yield "mlp_ratio"  # d_ff is written out


def _embedding(own: Block) -> Iterator[str]:
    if own["positional"] != "rope":
        yield from ("rope_theta", "rope_fraction")


def _attention(own: Block) -> Iterator[str]:
    if own["window_mode"] == "standard":
        yield "window_dilation"


def _retnet(own: Block) -> Iterator[str]:
    if not own["chunkwise"]:
        yield "chunk_size"


def _inner_model(own: Block) -> Iterator[str]:
    if own["type"] == "linear":
        yield "hidden"


def _moe(own: Block) -> Iterator[str]:
    yield "router"  # affinity is written out
    if not own["shared_experts"]:
        yield "shared_d_ff"
    if own["capacity_drop_policy"] == "overflow":
        yield "capacity_factor"


def _switched(own: Block) -> Iterator[str]:
    if not own["enabled"]:
        yield from own.keys() - {"enabled"}


def _memory(own: Block) -> Iterator[str]:
    if own["type"] == "retrieval":
        yield "inner_lr"


def _hyper(own: Block) -> Iterator[str]:
    if own["mixing"] != "birkhoff":
        yield "sinkhorn_iters"


UNREAD: dict[str, Callable[[Block], Iterator[str]]] = {
    "model": _model,
    "embedding": _embedding,
    "attention": _attention,
    "retnet": _retnet,
    "inner_model": _inner_model,
    "moe": _moe,
    "bias_correction": _switched,
    "quant_aware_training": _switched,
    "memory": _memory,
    "hyper": _hyper,
}
