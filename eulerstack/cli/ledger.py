"""Costs by kind of layer, and of what stands outside the layers; the rows sum to the totals of the model."""

import math
from dataclasses import dataclass

from eulerstack.cli.kinds import Kind
from eulerstack.ir.costs import Costs
from eulerstack.ir.tensors import after, before, mtp_parameters, run_parameters
from eulerstack.ir.types import IR

FIGURES = ("params", "active", "flops_per_token", "kv_cache_bytes", "state_bytes")


@dataclass(frozen=True)
class Row:
    """`count` things of one name, and what they cost together; cache and state are for one sequence. `layers` says
    whether they are layers, of the kind of that name."""

    name: str
    layers: bool
    count: int
    params: int
    active: int
    flops_per_token: int = 0
    kv_cache_bytes: int = 0
    state_bytes: int = 0


def ledger(ir: IR, kinds: tuple[Kind, ...], costs: Costs) -> list[Row]:
    """The embedding, each kind of layer, what schedule entries have of their own, extra heads, the head."""
    rows = [_stored("embedding", 1, before(ir)), *(_kind(kind, costs) for kind in kinds if kind.layers)]
    rows += _merges(ir, costs.length)
    norms = [run_parameters(run, ir) for run in ir.schedule if run.type == "integrator"]
    if any(norms):
        rows.append(_stored("integrator norms", sum(map(bool, norms)), *norms))
    if ir.head.mtp:
        heads = _stored("extra heads", ir.head.mtp.n_predict, mtp_parameters(ir))
        rows.append(Row(heads.name, False, heads.count, heads.params, active=0))
    head = _stored("head", 1, after(ir))
    return [*rows, Row(head.name, False, 1, head.params, head.active, 2 * ir.model.d_model * ir.model.vocab_size)]


def total(rows: list[Row], layers: int) -> Row:
    """The sum of all rows, with the number of layers in it."""
    return Row("total", False, layers, *(sum(getattr(row, name) for row in rows) for name in FIGURES))


def _kind(kind: Kind, costs: Costs) -> Row:
    layers = [costs.layers[index] for index in kind.layers]
    figures = {name: sum(getattr(layer, name) for layer in layers) for name in FIGURES if name != "params"}
    return Row(kind.name, True, len(layers), sum(layer.total for layer in layers), **figures)


def _merges(ir: IR, length: int) -> list[Row]:
    """How parallel streams join: one row, if any do."""
    runs = [run for run in ir.schedule if run.type == "parallel"]
    if not runs:
        return []
    row = _stored("merges", len(runs), *(run_parameters(run, ir) for run in runs))
    flops = sum(run.merge.flops(ir.dims, len(run.streams), length) for run in runs)
    cache = sum(run.merge.kv_cache_bytes(ir.dims, length) for run in runs)
    return [Row(row.name, False, row.count, row.params, row.active, flops, cache)]


def _stored(name: str, count: int, *shapes: dict) -> Row:
    params = sum(math.prod(shape) for group in shapes for shape in group.values())
    return Row(name, False, count, params, active=params)
