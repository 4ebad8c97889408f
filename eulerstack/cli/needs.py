"""Memory that a model needs to be trained and to be served, by a recipe that is written beside the figures."""

from eulerstack.ir.costs import FLOAT32_BYTES, Costs
from eulerstack.ir.types import DTYPE_BYTES, IR, layers_of

MOMENTS = 2  # of AdamW


def training(ir: IR, costs: Costs, batch: int) -> dict[str, int]:
    """Bytes by use, for one device that holds everything, with weights and gradients in the model's dtype.

    AdamW has two moments in float32, and a float32 master copy of weights that are not float32 themselves: 12 bytes a
    parameter, 16 with weights and gradients of two bytes each. `inputs_of_layers` are the activations that are kept
    when every layer is recomputed in the backward pass: what each reads. The inside of the layer that is being
    recomputed and the logits come on top, as their size is the implementation's.
    """
    size = DTYPE_BYTES[ir.model.dtype]
    optimizer = FLOAT32_BYTES * (MOMENTS + (size < FLOAT32_BYTES))
    needs = {
        "weights": costs.weight_bytes,
        "gradients": size * costs.total,
        "optimizer": optimizer * costs.total,
        "inputs_of_layers": batch * costs.length * _read_by_layers(ir),
    }
    return needs | {"total": sum(needs.values())}


def serving(costs: Costs, batch: int) -> dict[str, int]:
    """Bytes by use, for `batch` sequences that have each reached the length of `costs`."""
    needs = {
        "weights": costs.weight_bytes,
        "kv_cache": batch * costs.kv_cache_bytes,
        "state": batch * costs.state_bytes,
    }
    return needs | {"total": sum(needs.values())}


def _read_by_layers(ir: IR) -> int:
    """Bytes of one token that all evaluations of all layers read: the residual stream, or each of several."""
    passes = sum(run.options.evaluations if run.type == "integrator" else len(layers_of(run)) for run in ir.schedule)
    if ir.head.mtp:
        passes += ir.head.mtp.n_predict * ir.head.mtp.head_layers
    hyper = ir.layers[0].residual.hyper
    size = FLOAT32_BYTES if ir.compatibility.dtype_policy == "layered_safe" else DTYPE_BYTES[ir.model.dtype]
    return passes * ir.model.d_model * (hyper.expand if hyper else 1) * size
