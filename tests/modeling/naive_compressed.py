"""Compressed attention written out: one query after the other, one key after the other. Read by path (runpy)."""

import math

import torch
from torch.nn import functional as F

from eulerstack.modeling.op_fake_quant import fake_quantise
from eulerstack.modeling.op_mask import alibi_slopes


def turned(x, place):
    """The pairs (i, i + R / 2) of the last axis turned by place * 100^(-2 i / R)."""
    half = x.shape[-1] // 2
    angle = place * 100.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def normed(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


class Naive:
    """The definition for one document `x` [T, D], written out; W maps names of parameters to their values."""

    def __init__(self, mixer, options: dict, positional: str):
        self.o, self.positional = options, positional
        self.W = dict(mixer.named_parameters())

    def linear(self, name, x):
        return F.linear(x, self.W[f"{name}.weight"], self.W.get(f"{name}.bias"))

    def heads(self, x, norm, place):
        """One token's heads [H, head_dim], normed and turned."""
        x = x.view(-1, self.o["head_dim"])
        if self.o["qk_norm"] == "rmsnorm":
            x = normed(x, self.W[f"{norm}.weight"])
        elif self.o["qk_norm"] == "rmsnorm_full":
            x = normed(x.flatten(), self.W[f"{norm}.weight"]).view_as(x)
        return turned(x, place) if self.positional == "rope" else x

    def pooled(self, name, stream, tokens):
        """One entry of the tokens [m, D]."""
        u = self.linear(f"{name}.{stream}_proj", tokens)
        if self.o["pool"] == "mean":
            return u.sum(0) / len(u)
        if self.o["pool"] == "max":
            return torch.stack([u[:, f].max() for f in range(u.shape[1])])
        logits = self.W[f"{name}.position_bias"]
        if self.o["pool"] == "softmax_gated":
            logits = logits + self.linear(f"{name}.gate_proj", tokens)
        e = logits.exp()
        return (e / e.sum(0) * u).sum(0)

    def scores(self, x, n, entries):
        """Of one query for the entries it sees, a list."""
        heads, d = self.o["index_heads"], self.o["index_dim"]
        q = self.linear("indexer.q_proj", x[n]).view(heads, d)
        q = fake_quantise(turned(q, n) if self.positional == "rope" else q, self.o["index_dtype"])
        products = torch.stack([q @ k for k in entries]) / math.sqrt(d)  # [E, H]
        if self.o["index_arch"] == "dot_product":
            return list(products.sum(1))
        if self.o["index_arch"] == "relu_mha":
            weights = self.linear("indexer.weights_proj", x[n]) / math.sqrt(heads)
            return list((products.clamp(min=0) * weights).sum(1))
        return list((products.exp() / products.exp().sum(0)).sum(1))

    def softmax(self, q, n, keys):
        """`keys` are (k [G, d], v [G, d], place, nudge) -> [H, d]; nothing of no keys."""
        group, out = self.o["n_heads"] // self.o["n_kv_heads"], []
        for h in range(self.o["n_heads"]):
            logits = []
            for k, _, place, nudge in keys:
                logit = q[h] @ k[h // group] * self.o["scale"]
                if self.o["logit_softcap"]:
                    logit = self.o["logit_softcap"] * torch.tanh(logit / self.o["logit_softcap"])
                if self.positional == "alibi":
                    logit = logit - alibi_slopes(self.o["n_heads"])[h] * (n - place)
                logits.append(logit + nudge)
            weights = [logit.exp() for logit in logits]
            total = sum(weights) + (self.W["sinks"][h].exp() if self.o["attention_sinks"] else 0)
            y = [w / total * v[h // group] for w, (_, v, _, _) in zip(weights, keys, strict=True)]
            out.append(sum(y, torch.zeros(self.o["head_dim"], dtype=torch.float64)))
        return torch.stack(out)

    def __call__(self, x):
        m, kind = self.o["m_block"], self.o["compression"]
        raw = {}
        for which in ("", "all_") if kind == "nsa_learned" else ("",):
            k = [self.heads(self.linear(f"{which}k_proj", t), f"{which}k_norm", n) for n, t in enumerate(x)]
            v = [self.linear(f"{which}v_proj", t).view(-1, self.o["head_dim"]) for t in x]
            raw[which] = [(k[n], v[n], n, 0.0) for n in range(len(x))]
        entries, small = [], []
        for j in range(len(x) // m):
            block = x[j * m : (j + 1) * m]
            k = self.heads(self.pooled("pool", "k", block), "entry_norm", j * m)
            entries.append((k, self.pooled("pool", "v", block).view_as(k), j * m, 0.0))
            if kind != "hca":
                k = normed(self.pooled("indexer.pool", "k", block), self.W["indexer.k_norm.weight"])
                small.append(fake_quantise(turned(k, j * m) if self.positional == "rope" else k, self.o["index_dtype"]))
        return torch.stack([self.one(x, n, raw, entries, small) for n in range(len(x))])

    def one(self, x, n, raw, entries, small):
        m, kind, done = self.o["m_block"], self.o["compression"], (n + 1) // self.o["m_block"]
        q = self.heads(self.linear("q_proj", x[n]), "q_norm", n)
        near = [key for key in raw[""][: n + 1] if key[2] // m == n // m or n - key[2] < (self.o["window"] or 0)]
        best = list(range(done))
        nudges = [0.0] * done
        if kind != "hca" and done:
            scores = self.scores(x, n, small[:done])
            best = sorted(best, key=lambda j: (-scores[j].item(), -j))[: self.o["top_k_blocks"]]
            nudges = [s - s.detach() for s in scores]
        if kind != "nsa_learned":
            y = self.softmax(q, n, near + [(*entries[j][:3], nudges[j]) for j in best])
        else:
            every = [
                (*key[:3], nudges[key[2] // m] if key[2] // m in best else 0.0)
                for key in raw["all_"][: n + 1]
                if key[2] // m in best or key[2] // m == n // m
            ]
            gates = self.linear("gate_proj", x[n]).sigmoid().view(-1, 3)
            parts = (self.softmax(q, n, keys) for keys in (entries[:done], every, near))
            y = sum(gates[:, i : i + 1] * part for i, part in enumerate(parts))
        return self.linear("o_proj", y.flatten())
