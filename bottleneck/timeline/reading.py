"""The reading of one rank, with a GPU or without: one program, one budget, one set of questions.

In: a trace with its steps (or none), what is known of the run. Out: `Timeline`.

    steps -> program, at true speed -> budget -> questions -> names and places

The program of a run without a GPU has one host lane and no device (cpu/); that of a run with one has the
launching threads and the streams (gpu/). What follows does not know the difference.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..model.codes import LateCause, QuestionKey, WhatIf
from ..model.diagnosis import WhatIfResult
from ..model.run import JsonValue
from .cpu.reading import cpu_reader
from .gpu.reading import gpu_reader
from .lanes.alone import undisturbed
from .lanes.ask import Asker
from .lanes.budget import step_budget
from .lanes.labels import Work
from .lanes.own_work import own_work
from .lanes.questions import collectives_left, not_in_force_questions, shared_questions, without_fetching
from .lanes.reader import Priced, Reader
from .lanes.replay import Edit
from .result import Timeline
from .steps.facts import Facts, on_gpu
from .steps.supply import made_ahead, supply_answers, training_loader, workers_needed
from .steps.traced import Steps
from .trace.dialect import DEVICE_KINDS
from .trace.table import Trace


def read_timeline(trace: Trace | None, steps: Steps | None, facts: Facts) -> Timeline | None:
    """Read one rank; None for a run on a GPU whose trace lacks device work, or the calls that launched it."""
    reader: Reader | None = None
    if trace is not None and steps is not None and trace.has(*DEVICE_KINDS):
        reader = gpu_reader(trace, steps, facts)
    if reader is None and not on_gpu(facts.run) and not (trace is not None and trace.lacks_launches):
        reader = cpu_reader(trace, steps, facts)
    return _read(reader) if reader is not None else None


def _read(reader: Reader) -> Timeline:
    facts, program = reader.facts, reader.replay.program
    schedule = reader.replay.run(reader.base)
    budget = step_budget(program, schedule, reader.base.factors())
    scale = facts.true_ms * 1e6 / schedule.step_ns if schedule.step_ns > 0 else 1.0
    asker = Asker(reader.replay, reader.base, true_ms=facts.true_ms)
    questions = (*shared_questions(program, facts), *reader.questions())
    questions = (*questions, *not_in_force_questions(questions, facts))
    answers = asker.ask(questions)
    context: dict[str, JsonValue] = {}
    if facts.supply is not None:
        rest_ms = asker.step_ms(without_fetching(program))
        context["loader.needed_workers"] = workers_needed(facts.supply, rest_ms=rest_ms)
        supplied = supply_answers(
            facts.supply,
            rest_ms=rest_ms,
            true_ms=facts.true_ms,
            cores=facts.cores,
            first_cores=facts.first_cores,
            baseline=facts.baseline,
        )
        answers.results.update(supplied)
    alone = collectives_left(program, 0.0)
    factors = np.ones(len(program.part))
    if alone is not None and reader.trace is not None and reader.kind == "gpu":
        factors = undisturbed(reader.trace)[program.activity_row]
        alone = alone.and_also(Edit(duration=factors))
    priced = Priced(
        parts={part: ns / 1e6 * scale for part, ns in budget.parts.items()},
        by_work=budget.by_work / 1e6 * scale,
        exposed_ns=budget.exposed_by_event,
        scale=scale,
        asker=asker,
        answers=answers,
    )
    own: dict[LateCause, NDArray[np.float64]] = {}
    if alone is not None:
        worked = own_work(program, reader.base.factors(), factors)
        own = {cause: ns / 1e6 * scale for cause, ns in worked.items()}
        if len(facts.collected_ms) == program.steps and "host" in own:
            collected = np.minimum(facts.collected_ms, own["host"])
            if collected.any():
                own |= {"host": own["host"] - collected, "garbage collection": collected}
    timeline = Timeline(
        kind=reader.kind,
        true_ms=facts.true_ms,
        profiled_ms=None,
        steps=program.steps,
        budget=(),
        what_ifs=answers.results,
        after=answers.after,
        context=context,
        own_work_ms={cause: tuple(each.tolist()) for cause, each in own.items()},
        alone_ms=asker.lengths_ms(alone) if alone is not None else (),
        alone_host_ms=asker.lengths_ms(Edit(duration=0.0))
        if alone is not None and reader.kind == "gpu"
        else (),
        alone=asker.alone(alone, reader.trace if reader.kind == "gpu" else None)
        if alone is not None
        else None,
        alone_without=asker.alone_without(questions, alone) if alone is not None else {},
        input_call=facts.input_call if WhatIf.BATCHES_HANDED_OVER not in answers.results else None,
        pauses_ms=tuple((program.host_work.pauses_ns / 1e6).tolist()),
    )
    described = reader.describe(timeline, priced)
    ready = described.what_ifs.get(WhatIf.INPUT_READY)
    if training_loader(facts.loaders) is not None or ready is None:
        return described
    made = (program.work * reader.base.factors())[:, [Work.INPUT, Work.BATCH_OPERATORS]]
    host_ms = program.per_step_ns(made) / 1e6 * scale
    call = facts.input_call.call if facts.input_call is not None else ""
    own_input: dict[QuestionKey, WhatIfResult] = {
        WhatIf.INPUT_READY: msgspec.structs.replace(ready, call=call),
        WhatIf.INPUT_AHEAD: made_ahead(ready, host_ms=host_ms, true_ms=facts.true_ms),
    }
    return replace(described, what_ifs={**described.what_ifs, **own_input})
