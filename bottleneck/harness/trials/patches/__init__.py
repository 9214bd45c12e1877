"""Run-time patches: fixes of the catalogue, applied to a script that nobody edits.

In: the wishes of a trial. Out: `Patch`es, one per wish. Each says after the timed steps whether the
kernels, arguments or settings that it is about have really changed; one that acted on nothing is
"not applied", never "no gain".

Each file holds the patches of one part of torch. What belongs into the environment of the script's
process, before torch is loaded, comes with the wish (`runs/environment`).
"""

from __future__ import annotations

from ....model.verify import Wish
from . import (  # noqa: F401 - patches register when they are imported
    allocator,
    attention,
    autograd,
    compilation,
    copies,
    distributed,
    equivalents,
    flags,
    host,
    loaders,
    once,
    optimizers,
    reads,
    roots,
)
from .base import PATCHES, Patch

__all__ = ["PATCHES", "make_patches"]


def make_patches(wishes: tuple[Wish, ...]) -> list[Patch]:
    """Return a patch for each wish, in their order.

    Raises:
        KeyError: a fix has no patch; the command line has refused those.
    """
    return [PATCHES[wish.fix](dict(wish.options), wish.environment) for wish in wishes]
