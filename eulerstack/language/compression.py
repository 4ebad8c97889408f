"""The arithmetic of attention over compressed blocks of keys: csa, hca and nsa_learned.

The options are those of `mixers/attention.py`. d d_model, W = n_kv_heads head_dim, m tokens of a block, L tokens of the
sequence, L // m of whose blocks are complete.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from eulerstack.language.block import Breach, Dims, PositiveInt, Shape, block

SELECTED = 16  # blocks of nsa_learned where nobody says how many (Yuan et al. 2025, section 4.1)


@block
class Indexer:
    """The small scorer that picks blocks of compressed keys."""

    arch: Literal["relu_mha", "dot_product", "learned_block_sel"] = Field(description="how a block is scored")
    n_heads: PositiveInt = Field(description="heads of its queries")
    d_per_head: PositiveInt = Field(description="numbers of its keys, and of each head of its queries")
    dtype: Literal["fp4", "fp8", "bf16", "fp32"] = Field(
        "bf16", description="format to which its queries and keys are rounded"
    )


@block
class Compression:
    """Attention over pooled blocks of keys."""

    type: Literal["csa", "hca", "nsa_learned"] = Field(
        description="the best blocks, all of them, or three branches under gates"
    )
    m_block: PositiveInt = Field(description="tokens of one block")
    pool: Literal["softmax_gated", "mean", "max", "learned_pool"] = Field(
        "mean", description="how the keys and values of a block become one"
    )
    indexer: Indexer | None = Field(
        None, description="small scorer that chooses blocks (csa and nsa_learned, which need it)"
    )
    top_k_blocks: PositiveInt | None = Field(
        None, description="blocks chosen for a query (csa needs it; 16 for nsa_learned)"
    )


def breaches(own: Any, spec: Any) -> Iterator[Breach]:
    if own.compression is None:
        return
    yield from (breach.under("compression") for breach in _missing(own.compression))
    if own.latent_dim is not None:
        what = "compression pools keys and values, but latent_dim keeps none"
        yield Breach(("compression",), what, "delete one of the two", key=True)
    if own.window_mode not in ("standard", "sliding"):
        what = f"beside compression the window is a plain one, not {own.window_mode}"
        yield Breach(("window_mode",), what, "delete it, or compression", key=True)
    if own.compression.indexer is not None:
        where = ("compression", "indexer")
        yield from (breach.under(*where) for breach in _rotation(own.compression.indexer, spec.embedding))


def _missing(own: Compression) -> Iterator[Breach]:
    needed = {"csa": ("indexer", "top_k_blocks"), "hca": (), "nsa_learned": ("indexer",)}[own.type]
    for key in ("indexer", "top_k_blocks"):
        given = getattr(own, key) is not None
        if key in needed and not given:
            yield Breach((key,), f"{own.type} needs {key}", f"add `{key}:`")
        if own.type == "hca" and given:
            yield Breach((key,), f"hca is dense and has no {key}", "delete it", key=True)


def _rotation(own: Indexer, embedding: Any) -> Iterator[Breach]:
    """Rope turns pairs of the indexer's channels too."""
    if not embedding.turns(own.d_per_head):
        rotated, least = int(own.d_per_head * embedding.rope_fraction), embedding.fewest_turning
        what = (
            f"{rotated} of {own.d_per_head} channels of the indexer would turn: rope turns pairs, here {least} or more"
        )
        yield Breach(("d_per_head",), what, "make d_per_head times rope_fraction a larger even number")


def completed(own: Any) -> dict[str, Compression]:
    """The options that change when defaults are written out."""
    if own.compression is None or own.compression.type != "nsa_learned":
        return {}
    return {"compression": replace(own.compression, top_k_blocks=own.compression.top_k_blocks or SELECTED)}


def shrunk(own: Any, small: Dims) -> dict[str, Compression]:
    """A block becomes its bit length, as a window does; two of the blocks are kept, and two heads of the indexer."""
    if own.compression is None:
        return {}
    old = own.compression
    indexer = old.indexer and replace(
        old.indexer, n_heads=min(old.indexer.n_heads, 2), d_per_head=min(old.indexer.d_per_head, small.head_dim)
    )
    best = old.top_k_blocks and min(old.top_k_blocks, 2)
    m_block = min(old.m_block, old.m_block.bit_length())
    return {"compression": replace(old, m_block=m_block, indexer=indexer, top_k_blocks=best)}


def runtime(own: Compression) -> dict:
    """What the modeling code hears beside the options of all attention."""
    known = own.indexer or Indexer(arch="relu_mha", n_heads=1, d_per_head=1)
    sizes = {"arch": known.arch, "heads": known.n_heads, "dim": known.d_per_head, "dtype": known.dtype}
    options = {"type": "compressed_attention", "compression": own.type}
    options |= {key: getattr(own, key) for key in ("m_block", "pool", "top_k_blocks")}
    return options | {f"index_{name}": value if own.indexer else None for name, value in sizes.items()}


def projections(own: Any, dims: Dims) -> dict[str, Shape]:
    """The matrices that read the layer's input, by name, beside those of all attention; only `biased` may have more."""
    d, width = dims.d_model, dims.n_kv_heads * dims.head_dim
    gated = own.compression.pool == "softmax_gated"
    shapes: dict[str, Shape] = {"pool.gate_proj": (width, d)} if gated else {}
    if own.compression.type == "nsa_learned":
        shapes["gate_proj"] = (3 * dims.n_heads, d)
    if (indexer := own.compression.indexer) is not None:
        shapes |= {"indexer.q_proj": (indexer.n_heads * indexer.d_per_head, d)}
        shapes |= {f"indexer.pool.{name}": (indexer.d_per_head, d) for name in ["k_proj"] + ["gate_proj"] * gated}
        if indexer.arch == "relu_mha":
            shapes["indexer.weights_proj"] = (indexer.n_heads, d)
    return shapes


def biased(own: Any, dims: Dims) -> dict[str, Shape]:
    """The matrices that have a bias where q, k and v have one."""
    shape = (dims.n_kv_heads * dims.head_dim, dims.d_model)
    names = ["pool.k_proj", "pool.v_proj"] + ["all_k_proj", "all_v_proj"] * (own.compression.type == "nsa_learned")
    return dict.fromkeys(names, shape)


def vectors(own: Any, dims: Dims) -> dict[str, Shape]:
    """What is left: norms, biases that are always there, and logits of the places in a block."""
    kind, indexer, shapes = own.compression.type, own.compression.indexer, {}
    width = dims.n_kv_heads * dims.head_dim
    if own.qk_norm != "none":
        size = width if own.qk_norm == "rmsnorm_full" else dims.head_dim
        shapes |= {f"{name}.weight": (size,) for name in ["entry_norm"] + ["all_k_norm"] * (kind == "nsa_learned")}
    if kind == "nsa_learned":
        shapes["gate_proj.bias"] = (3 * dims.n_heads,)
    learned = own.compression.pool in ("softmax_gated", "learned_pool")
    if learned:
        shapes["pool.position_bias"] = (own.compression.m_block, width)
    if indexer is not None:
        shapes["indexer.k_norm.weight"] = (indexer.d_per_head,)
        if learned:
            shapes["indexer.pool.position_bias"] = (own.compression.m_block, indexer.d_per_head)
    return shapes


def products(own: Any, dims: Dims, length: int) -> int:
    """FLOPs of the last of `length` tokens beside those of projections: scores and averages of all keys it sees, and
    the indexer's scores of all entries. Where a chosen block is the query's own, nsa_learned sees it once."""
    m, done = own.compression.m_block, length // own.compression.m_block
    within = (length - 1) % m + 1
    near = max(within, min(length, own.window or 0))
    best = done if own.compression.top_k_blocks is None else min(done, own.compression.top_k_blocks)
    seen = near + best
    if own.compression.type == "nsa_learned":
        seen = done + near + min(length, within + best * m)
    indexer = own.compression.indexer
    scores = 2 * indexer.n_heads * indexer.d_per_head * done if indexer else 0
    return 4 * dims.n_heads * dims.head_dim * seen + scores


def cache_numbers(own: Any, dims: Dims, length: int) -> int:
    """Numbers kept: keys and values nearby, entries, what the pools still need, and all keys for nsa_learned."""
    m, width = own.compression.m_block, dims.n_kv_heads * dims.head_dim
    done, partial = length // m, min(length, m - 1)
    gate = own.compression.pool == "softmax_gated"
    kept = 2 * width * (min(length, max(m, own.window or 0) - 1) + done) + (2 + gate) * width * partial
    if own.compression.type == "nsa_learned":
        kept += 2 * width * length
    if (indexer := own.compression.indexer) is not None:
        kept += indexer.d_per_head * (done + (1 + gate) * partial)
    return kept
