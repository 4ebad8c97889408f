"""In which precision something is computed: float32 or wider, whatever the model's dtype, and not by autocast."""

from contextlib import nullcontext

import torch


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def wide(x: torch.Tensor) -> torch.Tensor:
    """`x` in float32, or as it is when it is float64 already: statistics and recurrences run in this precision."""
    return x.to(at_least_float32(x.dtype))


def own_precision(device: torch.device):
    """No autocast inside: it would run the products of a float32 recurrence in bfloat16."""
    available = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if available else nullcontext()
