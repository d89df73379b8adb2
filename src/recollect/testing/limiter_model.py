"""What each limiter allows, said once more in plain sums, for the model of a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from recollect.rules.limiters import Limiter, MinSize, Queue, SampleToInsertRatio


@dataclass(kw_only=True)
class LimiterModel(ABC):
    """The counts that a limiter looks at, and what it says to `k` items more."""

    limiter: Limiter
    inserts: int = 0
    samples: int = 0
    removals: int = 0

    @property
    @abstractmethod
    def leased(self) -> int:
        """Items that are under a lease."""

    def may_insert(self, k: int) -> bool:
        size, limiter = self.inserts + k - self.removals, self.limiter
        if isinstance(limiter, Queue):
            return size <= limiter.size
        if isinstance(limiter, SampleToInsertRatio):
            difference = (self.inserts + k) * limiter.ratio - self.samples
            return size <= limiter.min_size or difference <= limiter.bounds[1]
        return True

    def may_sample(self, k: int) -> bool:
        size, limiter = self.inserts - self.removals, self.limiter
        if isinstance(limiter, Queue):
            return size >= k
        if isinstance(limiter, SampleToInsertRatio):
            difference = self.inserts * limiter.ratio - self.samples - k
            return size >= limiter.min_size and difference >= limiter.bounds[0]
        assert isinstance(limiter, MinSize)
        return size >= limiter.min_size

    def never_sampled(self, k: int) -> bool:
        if isinstance(self.limiter, Queue):
            return k > self.limiter.size
        if isinstance(self.limiter, SampleToInsertRatio):
            return k > self.limiter.bounds[1] - self.limiter.bounds[0]
        return False

    def never_inserted(self, k: int) -> bool:
        limiter = self.limiter
        if isinstance(limiter, Queue):
            return k > limiter.size
        if isinstance(limiter, SampleToInsertRatio):
            low, high = limiter.bounds
            return k * limiter.ratio > high - low
        return False

    def stuck_insert(self, k: int) -> bool:
        """It may not go, nothing may be sampled, and no lease that is confirmed helps."""
        if self.may_insert(k) or not isinstance(self.limiter, SampleToInsertRatio):
            return False
        size = self.inserts + k - self.removals
        return not self.may_sample(1) and size - self.leased > self.limiter.min_size

    def stuck_sample(self, k: int) -> bool:
        """It may not go, nothing may be inserted, and no lease that ends helps."""
        if not isinstance(self.limiter, SampleToInsertRatio) or self.may_sample(k):
            return False
        if self.may_insert(1):
            return False
        size = self.inserts + 1 - self.removals
        self.samples -= self.leased
        given_back = self.may_sample(k)
        self.samples += self.leased
        return not given_back and size - self.leased > self.limiter.min_size
