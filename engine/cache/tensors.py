"""KV buffers as tensors on a device, for families that compute in PyTorch."""

import torch
from torch import Tensor


class TensorStore:
    """See `caesura.engine.cache.Store`."""

    def __init__(self, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self._device, self._dtype = device, dtype

    def __repr__(self) -> str:
        return f"<TensorStore {self._dtype} on {self._device}>"

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, device=self._device, dtype=self._dtype)

    def address(self, buffer: Tensor) -> int:
        return buffer.data_ptr()
