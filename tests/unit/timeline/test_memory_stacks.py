"""What a recorded stack says: whose line it is, and in which phase."""

from __future__ import annotations

import pytest

from torch_bottleneck.model.snapshot import Frame, Snapshot
from torch_bottleneck.timeline.memory.stacks import StackFacts, read_stacks, user_site

TORCH = "/v/lib/python3.12/site-packages/torch"
CALL = Frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1790)


def facts(*frames: Frame) -> StackFacts:
    (found,) = read_stacks(Snapshot(path="", devices=(), frames=frames, stacks=(tuple(range(len(frames))),)))
    return found


@pytest.mark.parametrize(
    ("file", "mine"),
    [
        ("/home/me/train.py", True),
        ("torch_train.py", True),
        ("torchvision_like/train.py", True),
        ("<ipython-input-3-0123456789ab>", True),
        ("/tmp/ipykernel_9/12.py", True),
        ("<string>", False),
        ("<frozen runpy>", False),
        ("torch/nn/functional.py", False),
        (f"{TORCH}/nn/functional.py", False),
        ("/usr/lib/python3.12/runpy.py", False),
        ("/tmp/torchinductor_me/ab/cab.py", False),
    ],
)
def test_whose_line_it_is(file: str, mine: bool) -> None:
    site = user_site((Frame("f", file, 5),))
    assert (site is not None) is mine


@pytest.mark.parametrize("name", ["unpack_hook", "recompute_fn", "backward"])
def test_a_forward_that_is_done_again_belongs_to_backward(name: str) -> None:
    """The autograd thread's Python stack begins at the hook: nothing on it speaks of backward."""
    again = Frame(name, f"{TORCH}/utils/checkpoint.py", 1150)
    block = Frame("forward", "/home/me/model.py", 20)
    assert facts(block, CALL, again).phase == "backward"
    first = Frame("checkpoint", f"{TORCH}/utils/checkpoint.py", 500)
    assert facts(block, CALL, first, Frame("forward", "/home/me/model.py", 40), CALL).phase == "forward"


def test_a_closure_of_the_optimizer_holds_forward_and_backward() -> None:
    update = Frame("step", f"{TORCH}/optim/lbfgs.py", 330)
    closure = Frame("closure", "/home/me/train.py", 12)
    engine = Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 800)
    assert facts(engine, closure, update).phase == "backward"
    block = Frame("forward", "/home/me/model.py", 20)
    assert facts(block, CALL, closure, update).phase == "forward"
    assert facts(update).phase == "optimizer"
