"""Run-time patches: fixes of the catalogue, applied to a script that nobody edits.

In: the wishes of a trial. Out: `Patch`es, one per wish. Each says after the timed steps whether the
kernels, arguments or settings that it is about have really changed; one that acted on nothing is
"not applied", never "no gain".

Each file holds the patches of one part of torch. What belongs into the environment of the script's
process, before torch is loaded, is in `patch_environment`, which imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .allocator import PATCHES as _ALLOCATOR
from .autograd import PATCHES as _AUTOGRAD
from .compilation import PATCHES as _COMPILATION
from .copies import PATCHES as _COPIES
from .distributed import PATCHES as _DISTRIBUTED
from .flags import PATCHES as _FLAGS
from .host import PATCHES as _HOST
from .loaders import PATCHES as _LOADERS
from .optimizers import PATCHES as _OPTIMIZERS
from .roots import PATCHES as _ROOTS

if TYPE_CHECKING:
    from ....model.verify import Wish
    from .base import Patch

__all__ = ["PATCHES", "make_patches"]

PATCHES: dict[str, type[Patch]] = {
    **_LOADERS,
    **_COPIES,
    **_ALLOCATOR,
    **_AUTOGRAD,
    **_FLAGS,
    **_ROOTS,
    **_OPTIMIZERS,
    **_COMPILATION,
    **_HOST,
    **_DISTRIBUTED,
}
"""Fix id -> the patch that applies it."""


def make_patches(wishes: tuple[Wish, ...]) -> list[Patch]:
    """Return a patch for each wish, in their order.

    Raises:
        KeyError: a fix has no patch; the command line has refused those.
    """
    return [PATCHES[wish.fix](wish.fix, dict(wish.options)) for wish in wishes]
