"""How strongly low-rank adapters count; apart from `pipeline.weights.adapters`, so that settings need no tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Rank and alpha of adapters (arXiv 2106.09685, section 4.1)."""

    rank: int
    alpha: float

    @property
    def factor(self) -> float:
        """alpha / rank, rounded to float32."""
        return float(np.float32(self.alpha / self.rank))
