"""Causal self-attention to single keys nearby and to one entry for each block of m tokens further back.

Reference: DeepSeek-AI 2026, DeepSeek-V4, sections 2.3.1 (csa) and 2.3.2 (hca); Yuan et al. 2025, Native Sparse
Attention, section 3 (nsa_learned). q_t, k_t, v_t as in mixer_attention.py, and

    K_j, V_j = pool of block j (op_pool.py), K_j normed and turned to the place of the block's first token
    near(t)  = keys of t's own block up to t, and of the window       done(t) = the document's blocks complete at t
    best(t)  = the top_k of done(t) by the indexer's scores (op_indexer.py)

    hca          one softmax over near(t) and the entries of done(t)
    csa          one softmax over near(t) and the entries of best(t)
    nsa_learned  g_t1 softmax over the entries of done(t)         g_t = sigmoid(W_g x_t + b_g), three for each head
                 + g_t2 softmax over all keys of t's own block up to t and of the blocks best(t)
                 + g_t3 softmax over near(t), each of the three with keys and values of its own

B batch, T tokens of the call, K keys held, S all tokens, E entries, H query heads, G key-value heads, D head dim.
State: `keys`, `values` of near [B, <= max(m, window) - 1, G, D]; `entry_keys`, `entry_values` [B, E, G, D]; `pool_*`
and `index_*`, what op_pool.py and op_indexer.py keep; `all_keys`, `all_values` [B, S, G, D] of nsa_learned. All of one
dtype, keys already normed and turned.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from .context import Context
from .op_attention import SoftmaxAttention, head_norm, output_projection
from .op_block_mask import entries, inside, mask_of, near, nothing, reach_of
from .op_blocks import Blocks, blocks_of, places
from .op_indexer import Indexer, best, nudge
from .op_mask import retain
from .op_pool import Pool
from .op_rope import rotary, rotate
from .op_state import State, named, under

RUN = 256  # queries whose keys are gathered at a time


class Mixer(SoftmaxAttention):
    """`compression` csa | hca | nsa_learned; `top_k_blocks` and the `index_*` options are None for hca."""

    def __init__(
        self,
        config,
        layer_idx: int,
        *,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        qkv_bias: bool,
        o_bias: bool,
        qk_norm: str,
        compression: str,
        m_block: int,
        pool: str,
        top_k_blocks: int | None,
        index_arch: str | None,
        index_heads: int | None,
        index_dim: int | None,
        index_dtype: str | None,
        **shared,
    ):
        super().__init__(config, layer_idx, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, **shared)
        if compression not in ("csa", "hca", "nsa_learned"):
            raise ValueError(f"unknown compression {compression!r}; one of csa, hca, nsa_learned")
        self.croppable, self.compression = False, compression
        self.m_block, self.top_k_blocks = m_block, top_k_blocks
        self.reach = reach_of(m_block, self.window.size)
        d, width, eps = config.hidden_size, n_kv_heads * head_dim, config.rms_norm_eps

        self.q_proj = nn.Linear(d, n_heads * head_dim, bias=qkv_bias)
        self.q_norm = head_norm(qk_norm, n_heads, head_dim, eps)
        names = ("k_proj", "v_proj") + (("all_k_proj", "all_v_proj") if compression == "nsa_learned" else ())
        for name in names:
            setattr(self, name, nn.Linear(d, width, bias=qkv_bias))
        for name in ("k_norm", "entry_norm") + (("all_k_norm",) if compression == "nsa_learned" else ()):
            setattr(self, name, head_norm(qk_norm, n_kv_heads, head_dim, eps))
        self.pool = Pool(d, pool=pool, m_block=m_block, streams=("k", "v"), width=width, bias=qkv_bias)
        if compression != "hca":
            sizes = {"arch": index_arch, "n_heads": index_heads, "d_per_head": index_dim, "dtype": index_dtype}
            self.indexer = Indexer(config, pool=pool, m_block=m_block, **sizes)
        if compression == "nsa_learned":
            self.gate_proj = nn.Linear(d, 3 * n_heads, bias=True)
        self.o_proj = output_projection(config, n_heads * head_dim, o_bias)

    def forward(self, x: torch.Tensor, context: Context, state: State | None = None):
        """[B, T, M] -> (y [B, T, M], new state or None)."""
        blocks, old, kept = blocks_of(context, self.m_block), state or {}, {}
        q = self.rotated(self.q_norm(self._heads(self.q_proj(x))), context, held=False)
        keys = self._keys(x, context, old, kept, "", self.reach)
        pooled = self._entries(x, context, blocks, old, kept)
        choice = self._choose(x, context, blocks, old, kept)
        close = partial(near, context, self.m_block, self.window.size)
        if self.compression == "nsa_learned":
            none, done = tuple(torch.zeros_like(t[:, :1]) for t in keys), partial(entries, context, blocks, None, None)
            every = self._keys(x, context, old, kept, "all_", None)
            branches = (
                self._see(q, (none, pooled), (lambda now: nothing(done(now)), done), context),
                self._see(q, (every,), (partial(inside, context, blocks, *choice),), context),
                self._see(q, (keys,), (close,), context),
            )
            gates = self.gate_proj(x).sigmoid().unflatten(-1, (self.n_heads, 3, 1)).unbind(-2)
            y = sum(gate * branch for gate, branch in zip(gates, branches, strict=True))
        else:
            y = self._see(q, (keys, pooled), (close, partial(entries, context, blocks, *choice)), context)
        return self.o_proj(y.flatten(2)), kept if context.use_cache else None

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.head_dim))

    def _keys(self, x, context: Context, old: State, kept: State, kind: str, reach: int | None) -> tuple:
        """Keys and values [B, K, G, D] of the tokens held; those of the past in `old`, what stays goes to `kept`."""
        k = getattr(self, f"{kind}k_norm")(self._heads(getattr(self, f"{kind}k_proj")(x)))
        k, v = self.rotated(k, context, held=False), self._heads(getattr(self, f"{kind}v_proj")(x))
        names = (f"{kind}keys", f"{kind}values")
        k, v = (torch.cat((old[name], now), 1) if name in old else now for name, now in zip(names, (k, v), strict=True))
        kept |= {name: retain(tensor, context, reach) for name, tensor in zip(names, (k, v), strict=True)}
        return k, v

    def _entries(self, x, context: Context, blocks: Blocks, old: State, kept: State) -> tuple:
        """Keys and values [B, E, G, D] of all blocks that are complete."""
        pooled, parts = self.pool(x, context, blocks, under("pool_", old))
        k, v = self.entry_norm(self._heads(pooled["k"])), self._heads(pooled["v"])
        if self.config.positional == "rope":
            name, where = ("blocks", self.m_block), places(context, blocks)
            k = rotate(k, *rotary(self.config, context, where, self.head_dim, k.dtype, name))
        k, v = blocks.join(old.get("entry_keys"), k), blocks.join(old.get("entry_values"), v)
        kept |= {"entry_keys": k, "entry_values": v} | named("pool_", parts)
        return k, v

    def _choose(self, x, context: Context, blocks: Blocks, old: State, kept: State) -> tuple:
        """Which entries the queries want, [B, T, E] bool or None for all that they may see, and what their logits get
        so that the indexer learns."""
        if self.compression == "hca":
            return None, None
        scores, state = self.indexer(x, context, blocks, under("index_", old))
        kept |= named("index_", state)
        push = nudge(scores) if self.training or scores.requires_grad else None
        return best(scores, blocks.visible(), self.top_k_blocks), push

    def _see(self, q, sources: tuple, shown: tuple[Callable, ...], context: Context) -> torch.Tensor:
        """[B, T, H, D] of one softmax over the keys of all `sources`, pairs of k and v, each as a function of a run of
        queries in `shown` says.

        Where the indexer learns the plain path runs, also while a checkpoint runs it without gradients: another kernel
        would round differently.
        """
        y = []
        for start in range(0, q.shape[1], RUN):
            now = slice(start, min(start + RUN, q.shape[1]))
            groups = [group(now) for group in shown]
            parts = ([t[:, g.keys] for t, g in zip(ts, groups, strict=True)] for ts in zip(*sources, strict=True))
            k, v = (torch.cat(tensors, 1) for tensors in parts)
            learns = any(group.nudge is not None for group in groups)
            mask = mask_of(groups, self.alibi_heads, q.dtype)
            y.append(self.attend(q[:, now], k, v, context, plain=learns, mask=mask))
        return torch.cat(y, 1)
