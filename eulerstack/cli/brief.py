"""What a preset weighs, in the one sentence that stands at its head (`# Numbers: ...`)."""

from eulerstack.cli.options import count, size
from eulerstack.ir.costs import costs
from eulerstack.ir.types import IR

USUAL = 4096  # a length at which all presets can be compared


def brief(ir: IR) -> str:
    """Parameters, active ones, and what one sequence keeps in memory at the usual length and at the longest."""
    whole, limit = costs(ir), ir.model.max_seq_len
    lengths = [length for length in (USUAL,) if length < limit]
    caches = [f"{size(costs(ir, length).kv_cache_bytes)} at {length:,} tokens" for length in lengths]
    caches.append(f"{size(whole.kv_cache_bytes)} at {limit:,}{'' if lengths else ' tokens'} (its limit)")
    kept = f"KV cache {', '.join(caches)}" if whole.kv_cache_bytes else "no KV cache"
    state = f"; state {size(whole.state_bytes)}" if whole.state_bytes else ""
    return f"{count(whole.total)} parameters ({whole.total:,}), {count(whole.active)} active; {kept}{state}."
