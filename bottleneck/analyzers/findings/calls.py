"""Calls for which another way was tried.

In: facts. Out: findings BN321 and BN509.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ...model.codes import WhatIf
from ...model.diagnosis import WhatIfResult
from ...model.finding import Evidence, Finding
from ...model.words import ms
from ...timeline.lanes.costly import BACKWARD, IN_ROUNDS, python_names
from ...timeline.result import CostlyCall
from ..base import Analyzer, Facts, priced


class CostlyCalls(Analyzer):
    """One call computes more than is asked of it, and there is a cheaper way to the same result.

    What it means
        Some operators of torch do far more than their result needs: a quantile sorts all numbers, an
        embedding with max_norm handles the rows of a batch one after the other, an argmax over an outer
        axis jumps through memory, matrices of integers are multiplied without BLAS. An inverse is made
        and only multiplied by, products are written out to be summed, a sort is read at its first few
        numbers. A backward for each of several losses goes through what they share once for each.

    How it is measured
        Calls that take more than 2 % of a step, and for which another way is known, are made in both
        ways in a step of their own, forward and backward, with the arguments that they have there: the
        other way counts where it gives the same, and is faster in each of five turns. The trace
        tells the time of the calls' operators, with their part of the backward. That a backward visits
        a node which one before it has visited shows by the node's number.

    What it costs you
        The step is replayed with what the other way takes, where it was tried; else without the calls,
        which is a bound, since the other way takes time, too. A trial in the running script puts the
        other way in place of single calls.

    What it is not
        Not any call that takes long: only those for which people found and measured another way.

    What to do
        The fix says what to write in place of this call.

    Source
        The issues and pull requests that each fix names.
    """

    code = "BN321"
    in_rounds = False
    """Whether it is about calls that the rounds of a loop make one by one."""

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Name each such call and its line."""
        for call in facts.timeline.costly:
            answer = priced(facts, (WhatIf.CALL_GONE, call.callee))
            if answer is not None and (call.callee in IN_ROUNDS) is self.in_rounds:
                yield self._about(facts, call, answer)

    def _about(self, facts: Facts, call: CostlyCall, answer: WhatIfResult) -> Finding:
        tree = facts.timeline.tree
        nodes = sorted(tree.walk() if tree is not None else (), key=lambda node: -node.ms)
        names = {f"{name}()" for name in python_names(call.callee)}
        by_name = [node.site for node in nodes if node.call.rpartition(".")[2] in names]
        # Where a module makes the call, the line of the forward that takes longest is the nearest known.
        leaves = [node.site for node in nodes if node.role == "forward" and not node.children]
        found = self.finding(
            facts,
            _said_of(call, ms(answer.saves_ms)),
            answer=answer,
            evidence=[
                Evidence(
                    text=f"{call.count:.0f} calls per step",
                    value=call.count,
                    unit="1/step",
                    source="trace",
                )
            ],
            sites=[call.site, *by_name] if call.site or by_name else leaves[:1],
            not_this="The other way takes time, too; for small inputs it may take longer."
            if call.left is None
            else "It was tried with the arguments of one step; with others it may differ.",
        )
        return msgspec.structs.replace(found, call=call.shown, callee=call.callee)


def _said_of(call: CostlyCall, saves: str) -> str:
    if call.callee == BACKWARD:
        return f"Going back anew through what losses share takes {saves} per step"
    if call.left is None:
        return f"{call.shown} takes {saves} per step, forward and backward"
    at = f" at {call.site.short}" if call.site is not None else ""
    return f"{call.shown[:1].upper()}{call.shown[1:]}{at}: another way saves {saves} per step, tried here"


class CallsInRounds(CostlyCalls):
    """The rounds of a loop call one by one what could be called once.

    What it means
        A loop over samples, pairs, heads or time steps makes small calls. Each of them costs its
        dispatch and what an operator takes however little it computes, reads the weights again, and
        leaves cores or multiprocessors idle. On a CPU most of that counts as computing.

    How it is measured
        The calls are made in a step of their own, forward and backward, and so is one call on the
        arguments of all rounds: it counts where it gives the same, and is faster in each of five turns.
        The tool follows which tensor is made from which: the rounds are one call only where none is
        given what another one has made, or what Python has read of it.

    What it costs you
        The step is replayed with what the one call takes.

    What it is not
        Not the price of the whole loop: sums and copies between the calls go with it, too (BN503).

    What to do
        Stack the arguments of all rounds along a first dimension, and call once. Give an RNN the whole
        sequence.

    Source
        The issues and pull requests that each fix names.
    """

    code = "BN509"
    in_rounds = True
