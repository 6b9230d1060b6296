"""What older releases of torch cannot run."""

import pytest
import torch

SHARDED_STEPS = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="FSDP2 of this torch does not run a step on a CPU"
)
