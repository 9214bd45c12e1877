"""The one diagnosis that every renderer is tested on, and a hostile twin."""

from __future__ import annotations

import msgspec

from torch_bottleneck.model.codes import BottleneckClass, Part, WhatIf
from torch_bottleneck.model.diagnosis import (
    BudgetLine,
    Capture,
    Cause,
    Combination,
    Diagnosis,
    KernelRow,
    RankRow,
    SettingRow,
    StepSummary,
    Verdict,
    WhatIfResult,
)
from torch_bottleneck.model.finding import Evidence, Finding, Interval
from torch_bottleneck.model.fix import MeasuredHere, Risk, Source, Suggestion
from torch_bottleneck.model.run import Artefact, DeviceFacts, HostFacts, SourceSite
from torch_bottleneck.model.verify import Measured, Outcome, Parity
from torch_bottleneck.model.view import JobPart

LOADER = SourceSite(file="train.py", line=41, function="main")
ITEM = SourceSite(file="pkg/very/deep/down/in/a/tree/of/folders/model.py", line=107, function="training_step")


def sample() -> Diagnosis:
    """An input-bound run on a GPU, every field filled."""
    return Diagnosis(
        tool_version="0.1.0",
        created="2026-01-02T03:04:05Z",
        title="train.py",
        command=("train.py", "--epochs", "1"),
        verdict=Verdict(
            bottleneck_class=BottleneckClass.INPUT,
            confidence="high",
            headline="The step waits 54.6 of 87.4 ms (62 %) for the next batch.",
            reason="The effect is 90 times the step-to-step spread.",
        ),
        step=StepSummary(
            true_ms=87.4,
            true_ci_ms=(86.9, 88.1),
            profiled_ms=117.1,
            count=40,
            spread_ms=0.6,
            step_signal="optimizer",
        ),
        budget=(
            BudgetLine(part=Part.INPUT, ms=54.6, share=0.6247),
            BudgetLine(part=Part.TENSOR_CORE, ms=12.3, share=0.1407),
            BudgetLine(part=Part.MEMORY_BOUND, ms=9.1, share=0.1041),
            BudgetLine(part=Part.DISPATCH, ms=6.2, share=0.0709, detail="1 204 launches"),
            BudgetLine(part=Part.OPTIMIZER, ms=2.9, share=0.0332),
            BudgetLine(part=Part.SYNC, ms=0.3, share=0.0034),
            BudgetLine(part=Part.ALLOCATOR, ms=0.2, share=0.0023),
            BudgetLine(part=Part.UNEXPLAINED, ms=1.8, share=0.0206),
        ),
        causes=(
            Cause(
                bottleneck_class=BottleneckClass.INPUT,
                code="BN101",
                cost_ms=54.6,
                share=0.6247,
                predicted_ms=32.8,
                headline="2 workers produce a batch every 43.7 ms; the step needs one every 32.8 ms.",
                sites=(LOADER,),
            ),
            Cause(
                bottleneck_class=BottleneckClass.LAUNCH,
                code="BN501",
                cost_ms=6.0,
                share=0.0686,
                predicted_ms=81.4,
                after_previous_ms=5.8,
                headline="1204 launches a step leave the device idle between kernels.",
            ),
            Cause(
                bottleneck_class=BottleneckClass.SYNC,
                code="BN601",
                cost_ms=0.3,
                share=0.0034,
                predicted_ms=87.1,
                sites=(ITEM,),
                negligible=True,
            ),
        ),
        findings=(
            Finding(
                code="BN101",
                bottleneck_class=BottleneckClass.INPUT,
                title="The step waits for input",
                cost_ms=54.6,
                cost_share=0.6247,
                interval=Interval(low_ms=53.9, high_ms=55.2),
                time_ms=55.0,
                predicted_step_ms=32.8,
                evidence=(
                    Evidence(
                        text="55.0 ms per step inside next(loader)",
                        value=55.0,
                        unit="ms",
                        source="baseline window",
                    ),
                    Evidence(text="num_workers=2", source="loader.json", site=LOADER),
                ),
                sites=(LOADER,),
                not_this="Not slow host-to-device copies: those take 0.4 ms.",
            ),
            Finding(
                code="BN307", bottleneck_class=BottleneckClass.COMPUTE, title="Layout changes", note=True
            ),
            Finding(code="BN902", title="Garbage collector", cost_ms=None),
        ),
        combination=Combination(fixes=("FX101", "FX311"), predicted_ms=28.5),
        tried=(
            Outcome(
                fixes=("FX101",),
                title="Give the DataLoader enough workers",
                verdict="faster",
                predicted_ms=32.8,
                predicted_ratio=2.66,
                measured=Measured(ratio=2.54, low=2.4, high=2.69, pairs=3, before_ms=87.4, after_ms=34.4),
                memory_bytes=2_000_000,
                parity=Parity(verdict="same"),
            ),
        ),
        suggestions=(
            Suggestion(
                fix="FX101",
                title="Give the DataLoader more workers",
                finding="BN101",
                predicted_ms=33.0,
                saves_ms=54.4,
                basis="replay with production spread over 4 workers",
                how="Raise num_workers until production keeps up.",
                code="loader = DataLoader(\n    dataset,\n    batch_size=64,\n    num_workers=4,\n)",
                site=LOADER,
                undo="Set num_workers back.",
                verify="Waiting for input falls below 2 % of the step.",
                sources=(
                    Source(title="torch.utils.data", url="https://docs.pytorch.org/docs/stable/data.html"),
                ),
            ),
            Suggestion(
                fix="FX410",
                title="Compile the model",
                finding="BN501",
                predicted_ms=81.0,
                saves_ms=6.4,
                bound=True,
                basis="replay with one launch per region",
                how="Wrap the model in torch.compile.",
                code="model = torch.compile(model)",
                risk=Risk.NEEDS_REVIEW,
                may_break="Changes rounding; dynamic Python may not compile.",
                unknown=("whether shapes are static",),
            ),
            Suggestion(
                fix="FX107",
                title="Move decoding out of the training process",
                finding="BN102",
                basis="depends on what is moved",
                how="Decode once and store the result.",
            ),
            Suggestion(fix="FX601", title="Log less often", finding="BN601", predicted_ms=87.1, saves_ms=0.3),
            Suggestion(fix="FX318", title="A better schedule", finding="BN301", note=True),
            Suggestion(
                fix="FX412",
                title="Record CUDA graphs",
                finding="BN501",
                predicted_ms=40.0,
                saves_ms=47.4,
                bound=True,
                measured=MeasuredHere(
                    verdict="slower", speedup=0.86, low=0.8, high=0.92, step_ms=101.6, pairs=4, loss="same"
                ),
            ),
        ),
        what_ifs=(
            WhatIfResult(question=WhatIf.INPUT_READY, step_ms=32.8, saves_ms=54.6, basis="replay"),
            WhatIfResult(question=WhatIf.ONE_LAUNCH, step_ms=81.0, saves_ms=6.4, basis="replay", bound=True),
        ),
        kernels=(
            KernelRow(
                name="nvjet_tst_128x256_64x4_2x1_v_bz_coopB_TNN",
                part=Part.TENSOR_CORE,
                count=24,
                ms=8.1,
                share=0.09,
            ),
            KernelRow(
                name="vectorized_elementwise_kernel", part=Part.MEMORY_BOUND, count=310, ms=3.3, share=0.04
            ),
        ),
        job=(
            JobPart(part="import of torch", s=3.2),
            JobPart(part="compiling", s=41.0, what="in 2 of the first steps", site=LOADER),
        ),
        phases_ms={"data": 55.0, "forward": 9.2, "backward": 14.1, "optimizer": 3.0},
        settings={"matmul.precision": "highest", "cudnn.benchmark": False},
        acceleration=(
            SettingRow(name="autocast", state="on", value="bfloat16", seen_by="forward"),
            SettingRow(name="fused optimizer", state="on"),
            SettingRow(name="TF32", state="off"),
            SettingRow(name="torch.compile", state="off"),
            SettingRow(name="channels_last", state="not applicable"),
            SettingRow(name="flash attention", state="unknown"),
        ),
        device=DeviceFacts(kind="cuda", name="NVIDIA H200", total_bytes=150_000_000_000),
        host=HostFacts(os="Linux", cores=16, python="3.11.7", torch="2.13.0"),
        ranks=(
            RankRow(rank=0, step_ms=87.4, busy_share=0.31),
            RankRow(rank=1, step_ms=87.2, waits_for_others_ms=1.1),
        ),
        capture=Capture(
            quality="good",
            replay_error=0.012,
            dispatch_scale=0.74,
            inflation=1.34,
            launches=9632,
            kernels=9632,
            missing_kernels=0,
            overhead={"hook_us_per_step": 8.2, "total_seconds": 6.1, "after_trace_ratio": 1.01},
            artefacts={
                "trace": Artefact(status="ok"),
                "memory": Artefact(status="absent", reason="--no-memory"),
                "compile": Artefact(status="ok"),
            },
        ),
        notes=("The second rank waits 1.1 ms for the first.",),
    )


HOSTILE_NAME = (
    "void [bold]evil[/bold] \x1b[31mred\x1b[0m kernel<" + "x" * 4000 + ">\n| a | b |\n# head `tick` <script>"
)


def hostile() -> Diagnosis:
    """The sample with text from a script and a trace that means harm, or is merely odd."""
    base = sample()
    site = SourceSite(file="/tmp/\x1b]0;owned\x07" + "d/" * 200 + "é[red].py", line=1, function="<module>")
    return msgspec.structs.replace(
        base,
        title="tr[/]ain\n.py",
        verdict=msgspec.structs.replace(
            base.verdict, headline="Head\nline [red]with[/red] \x1b[2Jmarkup | and | pipes"
        ),
        kernels=tuple(msgspec.structs.replace(row, name=HOSTILE_NAME) for row in base.kernels),
        findings=(
            msgspec.structs.replace(
                base.findings[0],
                title=HOSTILE_NAME,
                evidence=(Evidence(text=HOSTILE_NAME, site=site),),
                sites=(site,),
            ),
        ),
        causes=tuple(
            msgspec.structs.replace(cause, headline=HOSTILE_NAME, sites=(site,)) for cause in base.causes
        ),
        suggestions=tuple(
            msgspec.structs.replace(
                fix, title=HOSTILE_NAME, code="x = '```'\n\x1b[31m" + "y" * 300, site=site
            )
            for fix in base.suggestions
        ),
        job=(JobPart(part=HOSTILE_NAME, s=1.0, what=HOSTILE_NAME, site=site),),
        settings={"env.FOO": "\x1b[31m\n[bold]", "surrogate": "\udc80"},
        notes=(HOSTILE_NAME,),
    )


def empty() -> Diagnosis:
    """Undetermined: no step, no budget, no finding."""
    return Diagnosis(
        title="train.py",
        verdict=Verdict(
            bottleneck_class=BottleneckClass.UNDETERMINED,
            confidence="none",
            headline="undetermined: The script ended after 0 optimizer steps.",
            reason="The script ended after 0 optimizer steps.",
            remedy="Let it run for at least 10 steps.",
        ),
        step=StepSummary(true_ms=None),
        capture=Capture(quality="poor", problems=("No trace was taken: the script ended first.",)),
        outcome="The script raised ValueError: bad input",
    )
