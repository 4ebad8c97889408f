"""Every memory file, found by its name, with its small options."""

from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest
import torch

import eulerstack.modeling

MEMORIES = sorted(path.stem for path in Path(eulerstack.modeling.__path__[0]).glob("memory_*.py"))
SESSIONS = run_path(str(Path(__file__).with_name("sessions.py")))
B, T, D, P = (SESSIONS[name] for name in "BTDP")


@pytest.fixture(scope="session")
def memories() -> list[str]:
    return MEMORIES


@pytest.fixture(params=MEMORIES)
def name(request):
    return request.param


@pytest.fixture
def make(name, part, options):
    """`make(**changes)`: the memory with its small options, changed; its start is drawn, buffers too."""

    def made(dtype=torch.float64, **changes):
        torch.manual_seed(0)
        config = SimpleNamespace(hidden_size=D, head_dim=P, num_attention_heads=3)
        memory = part(name)(config, 0, **options(name) | changes).double().eval()
        for parameter in memory.parameters():
            torch.nn.init.normal_(parameter, 0.0, 0.5)
        return memory.to(dtype)

    return made


@pytest.fixture
def x():
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
