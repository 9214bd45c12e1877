"""Seams of broken graphs: which stretch of the host's time, and because of which break."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from recorded.cases import CASES

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.diagnosis import Diagnosis, WhatIfResult
from torch_bottleneck.model.run import CompileEvent, CompileFacts, GraphBreak, SourceSite
from torch_bottleneck.timeline.lanes.seams import Seam, find_seams, region_owners
from torch_bottleneck.timeline.trace.table import Trace

from .traces import TraceWriter

FILE = "train.py"


def site(line: int, function: str, file: str = FILE) -> SourceSite:
    return SourceSite(file=file, line=line, function=function)


def compiled(frame: str, number: int, line: int, file: str = FILE) -> CompileEvent:
    function = frame.removeprefix("torch_dynamo_resume_in_").partition("_at_")[0]
    return CompileEvent(frame=frame, compile_id=f"{number}/0", site=site(line, function, file))


def facts(*compiles: CompileEvent, breaks: list[GraphBreak]) -> CompileFacts:
    return CompileFacts(used=True, compiles=list(compiles), breaks=breaks)


LOG = GraphBreak(reason="logger", site=site(12, "block"), stacks=[[site(12, "block")]])
ITEM = GraphBreak(
    reason="item",
    site=site(33, "helper"),
    stacks=[[site(16, "block"), site(33, "helper")], [site(33, "helper")]],
)
BOTH = facts(
    compiled("block", 0, 10),
    compiled("torch_dynamo_resume_in_block_at_12", 1, 12),
    compiled("helper", 2, 30),
    compiled("torch_dynamo_resume_in_helper_at_33", 3, 33),
    compiled("torch_dynamo_resume_in_block_at_16", 4, 16),
    breaks=[LOG, ITEM],
)


def test_each_frame_is_owed_to_the_break_that_cut_it_off() -> None:
    assert region_owners(BOTH) == {0: (), 1: (0,), 2: (1,), 3: (1,), 4: (1,)}


def test_a_resumed_function_finds_its_break_though_the_statement_spans_lines() -> None:
    spread = facts(compiled("torch_dynamo_resume_in_block_at_14", 1, 14), breaks=[LOG, ITEM])
    # Line 16 of the same function is as near as line 12: both are named.
    assert region_owners(spread) == {1: (0, 1)}


def test_what_a_function_given_up_calls_is_owed_to_the_reason_of_it() -> None:
    loop = GraphBreak(reason="time", site=site(5, "forward"), skipped=[site(3, "forward")])
    found = region_owners(facts(compiled("block", 0, 10), breaks=[loop, LOG]))
    assert found == {0: (0,)}


def test_two_functions_of_one_name_are_told_apart_by_their_lines() -> None:
    inner = GraphBreak(
        reason="item", site=site(44, "forward"), stacks=[[site(24, "forward"), site(44, "forward")]]
    )
    found = region_owners(facts(compiled("forward", 0, 20), compiled("forward", 1, 40), breaks=[inner]))
    assert found == {0: (), 1: (0,)}


def test_a_record_without_stacks_blames_every_break_for_what_it_cannot_tell() -> None:
    old = [GraphBreak(reason="a", site=site(12, "block")), GraphBreak(reason="b", site=site(50, "other"))]
    found = region_owners(
        facts(compiled("forward", 0, 1), compiled("torch_dynamo_resume_in_block_at_12", 1, 12), breaks=old)
    )
    assert found == {0: (0, 1), 1: (0,)}


class Model(TraceWriter):
    """Two graphs in forward, the second inside the region of the first, as dynamo runs it."""

    def forward(self, frames: tuple[int, int] = (0, 1), *, at: float = 0.0, sequence: int = 7) -> None:
        first, second = frames
        self.row(f"Torch-Compiled Region: {first}/0", "cpu_op", at + 10, 190)
        self.row("CompiledFunction", "cpu_op", at + 20, 60, sequence=sequence)
        self.row("## Call CompiledFxGraph abc ##", "cpu_op", at + 30, 40)
        self.row(f"Torch-Compiled Region: {second}/0", "cpu_op", at + 110, 80)
        self.row("CompiledFunction", "cpu_op", at + 120, 60, sequence=sequence + 1)
        self.row("## Call CompiledFxGraph def ##", "cpu_op", at + 130, 40)

    def backward(self, *, at: float = 1000.0, sequence: int = 8) -> None:
        for k in (0, 1):
            begin = at + 100 * k
            name = "autograd::engine::evaluate_function: CompiledFunctionBackward"
            self.row(name, "cpu_op", begin, 60, sequence=sequence - k)
            self.row("## Call CompiledFxGraph back ##", "cpu_op", begin + 10, 40)
        accumulate = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
        self.row(accumulate, "cpu_op", at + 65, 20)


def seams_of(trace: Trace, known: CompileFacts | None) -> list[Seam]:
    return find_seams(trace, np.ones(len(trace), dtype=bool), known)


def length_us(seam: Seam) -> float:
    return sum(end - start for start, end in seam.stretches) / 1e3


def test_a_seam_runs_from_the_end_of_one_graph_to_the_beginning_of_the_next() -> None:
    model = Model()
    model.forward()
    (seam,) = seams_of(model.build(), BOTH)
    assert seam.stretches == ((70_000, 130_000),)
    assert (seam.owners, seam.backward) == ((0,), False)


def test_in_backward_the_seam_is_that_of_the_forward_graph_that_was_cut_off() -> None:
    model = Model()
    model.forward()
    model.backward()
    _, seam = seams_of(model.build(), BOTH)
    assert (seam.owners, seam.backward) == ((0,), True)
    # 1050 to 1110, less the 20 us in which a gradient was handed to its parameter.
    assert length_us(seam) == 40


def test_a_module_compiled_by_itself_makes_no_seam() -> None:
    model = Model()
    model.forward(frames=(1, 0))
    assert seams_of(model.build(), BOTH) == []


def test_blocks_compiled_one_by_one_without_a_break_make_no_seam() -> None:
    model = Model()
    model.forward()
    assert seams_of(model.build(), CompileFacts(used=True)) == []


def test_a_bare_trace_has_seams_without_owners() -> None:
    model = Model()
    model.forward()
    (seam,) = seams_of(model.build(), None)
    assert seam.owners == ()


def test_a_region_without_a_graph_is_part_of_the_passage() -> None:
    model = Model()
    model.row("Torch-Compiled Region: 0/0", "cpu_op", 10, 50)
    model.row("## Call CompiledFxGraph abc ##", "cpu_op", 20, 30)
    model.row("Torch-Compiled Region: 2/0", "cpu_op", 100, 100)  # nothing but the call that broke it
    model.row("aten::cos", "cpu_op", 120, 60)
    model.row("Torch-Compiled Region: 3/0", "cpu_op", 300, 60)
    model.row("## Call CompiledFxGraph def ##", "cpu_op", 310, 40)
    (seam,) = seams_of(model.build(), BOTH)
    assert seam.stretches == ((50_000, 310_000),)


def test_pieces_of_one_region_are_one_graph() -> None:
    model = Model()
    model.row("Torch-Compiled Region: 1/0", "cpu_op", 10, 190)
    for begin in (20, 100):
        model.row("## Call CompiledFxGraph abc ##", "cpu_op", begin, 50)
    assert seams_of(model.build(), BOTH) == []


@pytest.mark.parametrize(("label", "count"), [("optimizer", 0), ("something else", 1)])
def test_a_known_break_bridges_eager_work_but_not_the_end_of_forward(label: str, count: int) -> None:
    model = Model()
    model.row("Torch-Compiled Region: 0/0", "cpu_op", 10, 50)
    model.row("## Call CompiledFxGraph abc ##", "cpu_op", 20, 30)
    model.row(label, "user_annotation", 500, 100)
    model.row("Torch-Compiled Region: 1/0", "cpu_op", 5000, 60)
    model.row("## Call CompiledFxGraph def ##", "cpu_op", 5010, 40)
    assert len(seams_of(model.build(), BOTH)) == count
    assert seams_of(model.build(), None) == []  # nobody says that they belong together


def test_without_any_graph_in_the_trace_regions_are_the_graphs() -> None:
    model = Model()
    model.row("Torch-Compiled Region: 0/0", "cpu_op", 10, 50)
    model.row("Torch-Compiled Region: 1/0", "cpu_op", 100, 50)
    (seam,) = seams_of(model.build(), BOTH)
    assert seam.stretches == ((60_000, 100_000),)


def test_a_trace_without_compiled_code_has_none() -> None:
    model = Model()
    model.row("aten::add", "cpu_op", 10, 50)
    assert seams_of(model.build(), None) == []
    assert seams_of(Model().build(), None) == []


def test_what_a_graph_does_around_its_launches_belongs_to_the_passage() -> None:
    model = Model()
    model.forward()  # bodies at 30 to 70 and at 130 to 170
    for begin in (40, 50, 60, 150, 160):
        model.launch(begin, 2, start=begin + 5, length=1)
    (seam,) = seams_of(model.build(), BOTH)
    # From the end of the last launch, at 62, to the first of the next graph, at 150, less the usual pause
    # of 8 between two launches.
    assert seam.stretches == ((62_000, 142_000),)


@pytest.mark.parametrize("name", ["cpu-thread-slices", "compile-chains"])
def test_breaks_that_leave_no_graph_at_all_cost_what_compiling_would_save(name: str, tmp_path: Path) -> None:
    def found(compile_json: dict[str, object]) -> Diagnosis:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(CASES[name].folder, folder)
        (folder / "compile.json").write_bytes(msgspec.json.encode(compile_json))
        return diagnose_paths([folder])

    def answer(diagnosis: Diagnosis, question: WhatIf) -> WhatIfResult | None:
        return next((each for each in diagnosis.what_ifs if each.question == question), None)

    site = {"file": "/home/user/net.py", "line": 7, "function": "forward"}
    eager = answer(found({"used": False}), WhatIf.COMPILED)
    breaks = [{"reason": "Unsupported: time.time", "site": site}]
    broken = found({"used": True, "breaks": breaks, "compiled_modules": ["Net"]})
    (finding,) = [each for each in broken.findings if each.code == "BN401"]
    without = answer(broken, WhatIf.SEAMS_GONE)
    assert eager is not None and without is not None
    assert finding.cost_ms == pytest.approx(eager.saves_ms)
    assert without.basis == eager.basis
    assert without.bound, "all of the model is priced"
    fixes = {each.fix: each for each in broken.suggestions}
    assert "FX414" not in fixes, "it is compiled already"
    assert fixes["FX403"].saves_ms == pytest.approx(eager.saves_ms)
    whole = found({"used": True, "unique_graphs": 3, "mode": "default"})
    assert answer(whole, WhatIf.SEAMS_GONE) is None, "nothing broke"
    for other in ({"breaks": breaks}, {"breaks": breaks, "compiled_modules": ["Net"], "unique_graphs": 2}):
        partly = found({"used": True, **other})
        assert answer(partly, WhatIf.SEAMS_GONE) is None, "a function, or one graph of several"
