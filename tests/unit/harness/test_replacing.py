"""What is replaced comes back as it was, except where somebody else has replaced it since."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import torch

from torch_bottleneck.harness.events.replacing import Replacements

if TYPE_CHECKING:
    from collections.abc import Callable


class Base:
    def whole(self) -> str:
        """Say which."""
        return "base"


class Derived(Base):
    def own(self) -> str:
        return "own"


def louder(original: Callable[..., str]) -> Callable[..., str]:
    def loud(*args: Any) -> str:
        return original(*args).upper()

    return loud


def test_own_and_inherited_attributes_come_back_as_they_were() -> None:
    before = dict(vars(Derived))
    replaced = Replacements()
    assert replaced.put(Derived, "own", louder)
    assert replaced.put(Derived, "whole", louder)
    assert (Derived().own(), Derived().whole(), Base().whole()) == ("OWN", "BASE", "base")
    assert Derived.whole.__doc__ == Base.whole.__doc__
    replaced.undo()
    assert dict(vars(Derived)) == before
    assert not replaced.entries


def test_wrappers_around_one_another_are_taken_off_one_by_one() -> None:
    original = vars(Base)["whole"]
    inner, outer = Replacements(), Replacements()
    inner.put(Base, "whole", louder)
    outer.put(Base, "whole", louder)
    outer.undo()
    assert vars(Base)["whole"] is not original
    inner.undo()
    assert vars(Base)["whole"] is original


def test_what_somebody_has_replaced_since_stays() -> None:
    original = vars(Base)["whole"]
    replaced = Replacements()
    replaced.put(Base, "whole", louder)
    theirs = lambda _self: "theirs"  # noqa: E731
    Base.whole = theirs  # type: ignore[method-assign, assignment]
    try:
        replaced.undo()
        assert vars(Base)["whole"] is theirs
    finally:
        Base.whole = original  # type: ignore[method-assign]


def test_what_this_torch_does_not_have_is_left_out() -> None:
    replaced = Replacements()
    assert not replaced.put(torch.Tensor, "no_such_method", louder)
    replaced.undo()
    assert not hasattr(torch.Tensor, "no_such_method")


def test_the_way_around_dynamo_stays_one_layer_deep() -> None:
    original = vars(torch.optim.Optimizer)["zero_grad"]
    replaced = [Replacements(), Replacements()]
    for each in replaced:
        each.put_disabled(torch.optim.Optimizer, "zero_grad", lambda inner: lambda *a, **k: inner(*a, **k))
    layers, function = 0, vars(torch.optim.Optimizer)["zero_grad"]
    while function is not None:
        layers += "eval_frame" in function.__code__.co_filename or "_compile" in function.__code__.co_filename
        function = getattr(function, "__wrapped__", None)
    assert layers == 1
    for each in reversed(replaced):
        each.undo()
    assert vars(torch.optim.Optimizer)["zero_grad"] is original


def test_a_process_without_torch_gets_none_through_a_replacement() -> None:
    code = (
        "import subprocess, sys\n"
        "from torch_bottleneck.harness.events.replacing import Replacements\n"
        "replaced = Replacements()\n"
        "replaced.put(subprocess.Popen, '__init__', lambda original: lambda *a, **k: original(*a, **k))\n"
        "replaced.undo()\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
