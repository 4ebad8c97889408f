"""Several architectures side by side, on paper: what they weigh, and what a long text costs them.

    python examples/03_compare_architectures.py
    python examples/03_compare_architectures.py arch_beginner_llama my_model.yml --lengths 4096 131072

No model is built and torch is not imported: the figures are exact sums over the layers. Two presets in detail:
`eulerstack diff A B`.
"""

import argparse
import sys

from eulerstack.errors import EulerStackError
from eulerstack.ir.costs import costs
from eulerstack.ir.normalizer import normalize_to_ir
from eulerstack.paths import find_preset

PRESETS = (
    "arch_beginner_llama",  # every layer keeps keys and values of every token
    "arch_intermediate_mistral",  # most layers forget what is out of a window
    "arch_advanced_mla",  # every layer keeps a latent instead
    "arch_advanced_jamba",  # most layers keep a state of fixed size
    "arch_advanced_retnet",  # every layer does
)
LENGTHS = (1024, 4096, 16384)


MIB = 1 << 20


def rows(name: str, lengths: list[int]) -> list[list[str]]:
    """One row for each length that the preset reaches."""
    ir = normalize_to_ir(find_preset(name))
    each = [costs(ir, length) for length in lengths if length <= ir.model.max_seq_len]
    return [
        [
            ir.name,
            f"{c.total / 1e6:,.1f} M",
            f"{c.active / 1e6:,.1f} M",
            f"{c.length:,}",
            f"{c.kv_cache_bytes / MIB:,.1f} MiB",
            f"{c.state_bytes / MIB:,.1f} MiB",
            f"{c.flops_per_token / 1e9:,.2f} GFLOP",
        ]
        for c in each
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare presets by size and by the cost of a length.")
    parser.add_argument("presets", nargs="*", default=PRESETS, help="names or paths")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="lengths of the text, in tokens")
    args = parser.parse_args()

    head = ["preset", "parameters", "active", "tokens", "KV cache", "state", "forward, per token"]
    table = [head, *(row for name in args.presets for row in rows(name, args.lengths))]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    for row in table:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *others]))


if __name__ == "__main__":
    try:
        main()
    except EulerStackError as error:
        sys.exit(str(error))
