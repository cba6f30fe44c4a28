"""A device that is not the CPU, without having one: tensors that know where they are and no more.

Fake tensors carry shapes, types and devices, and refuse to mix devices as a GPU would. Their device
is ``meta``, the only one beside the CPU that every build of torch has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch._functorch.config as functorch_config
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

DEVICE = torch.device("meta")


@contextmanager
def another_device() -> Iterator[None]:
    """Within it tensors may be made on ``DEVICE``; what is read of one on the host is 0."""
    make = torch.tensor

    def tensor(data: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> Any:
        # Straight onto meta it would be no fake one.
        made = make(data, dtype=dtype)
        return made if device is None else made.to(device)

    def rows(self: FakeTensor) -> Any:
        return np.zeros([int(n) for n in self.shape]).tolist()

    allowed = functorch_config.patch(fake_tensor_allow_meta=True)
    with pytest.MonkeyPatch.context() as patch, allowed:
        patch.setattr(torch, "tensor", tensor)
        patch.setattr(FakeTensor, "tolist", rows, raising=False)
        for name, value in (("item", 0.0), ("__float__", 0.0), ("__int__", 0), ("__bool__", True)):
            patch.setattr(FakeTensor, name, lambda self, value=value: value, raising=False)
        environment = ShapeEnv(allow_dynamic_output_shape_ops=True)
        with FakeTensorMode(allow_non_fake_inputs=True, shape_env=environment):
            yield
