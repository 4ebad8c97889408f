"""States within states: a part that has parts puts a prefix before the names of what each of them keeps."""

import torch

State = dict[str, torch.Tensor]


def under(prefix: str, state: State | None) -> State | None:
    """What `named` put into `state`; None if there is nothing."""
    return {name.removeprefix(prefix): t for name, t in (state or {}).items() if name.startswith(prefix)} or None


def named(prefix: str, state: State | None) -> State:
    """`state` with `prefix` before its names; nothing for None."""
    return {f"{prefix}{name}": t for name, t in (state or {}).items()}
