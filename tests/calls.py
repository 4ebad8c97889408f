"""How models are asked: a text at once, in several calls on the cache, with checkpoints. Read by path (runpy)."""

import torch
from torch.utils.checkpoint import checkpoint

from eulerstack.modeling.layer import DecoderLayer


def logits(model, ids, **named):
    with torch.no_grad():
        return model(input_ids=ids, **{"use_cache": False} | named).logits


def in_chunks(model, ids, lengths, **named):
    """Logits of consecutive calls on the cache, and the cache; keywords that are [B, T] tensors are cut alike."""
    past, out, at = None, [], 0
    for n in lengths:
        cut = {key: value[:, at : at + n] for key, value in named.items()}
        with torch.no_grad():
            o = model(input_ids=ids[:, at : at + n], cache=past, use_cache=True, **cut)
        past, at = o.past_key_values, at + n
        out.append(o.logits)
    return torch.cat(out, 1), past


def checkpoint_layers(model, reentrant: bool):
    """The same model, whose layers now run again in the backward pass."""
    for layer in model.modules():
        if isinstance(layer, DecoderLayer):
            layer.gradient_checkpointing = True
            layer._gradient_checkpointing_func = lambda f, *args: checkpoint(f, *args, use_reentrant=reentrant)
    return model
