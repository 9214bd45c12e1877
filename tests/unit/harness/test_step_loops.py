"""The source tells a loop inside a step from the training loop, and one over layers from one over samples."""

from __future__ import annotations

import linecache
import textwrap

import pytest

from torch_bottleneck.harness.lines.step_loops import Chain, find_loops, loops_around

TRAINING = """\
for batch in loader:
    {body}
    optimizer.step()
"""


def _source(name: str, text: str) -> str:
    text = textwrap.dedent(text)
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return name


def _line(name: str, text: str) -> int:
    return next(n for n, line in enumerate(linecache.getlines(name), 1) if text in line)


def _chain(*places: tuple[str, str]) -> Chain:
    return tuple((name, _line(name, text), "f") for name, text in places)


def _loops(chain: Chain, *, update: tuple[str, str]) -> list[tuple[int, bool]]:
    name, text = update
    found = find_loops({("sampled forward", chain): 7}, updates=[(name, _line(name, text))])
    return [(loop.site.line, loop.carried) for loop in found]


MODEL = """\
class Net:
    def heads(self, x):
        outs = []
        for q, k in zip(self.q, self.k):
            a = q(x) @ k(x)
            outs.append(a)
        return cat(outs)

    def recur(self, xs):
        h = zeros()
        for t in range(9):
            gate = self.cell(xs[:, t], h)
            h = gate * h
        return h

    def stack(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def indexed(self, x):
        for i in range(4):
            x = self.layers[i](x)
        return x

    def saved(self, x):
        for block in self.blocks:
            x = checkpoint(block, x)
        return x

    def total(self):
        norm = 0.0
        for p in self.parameters:
            norm += p.square().sum().item()
        return norm

    def summed(self, xs):
        for x in xs:
            norm = sum((g * g).sum() for g in x.grads)
            x.scale(norm)

    def walk(self, env, s):
        while not env.done:
            a = self.policy(s)
            s = env.step(a)

    def plain(self, x):
        return self.inner(x)
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = q(x)", [("for q, k", False)]),
        ("gate = self.cell", [("for t in range(9)", True)]),
        ("x = block(x)", []),
        ("x = self.layers[i](x)", []),
        ("x = checkpoint(block, x)", []),
        ("norm += p.square", [("for p in self.parameters", False)]),
        ("norm = sum(", [("for x in xs", False)]),
        ("a = self.policy(s)", [("while not env.done", True)]),
        ("return self.inner(x)", []),
    ],
    ids=[
        "heads",
        "time steps",
        "layers",
        "indexed layers",
        "checkpointed",
        "sum",
        "generator",
        "env",
        "none",
    ],
)
def test_a_loop_in_the_model_is_told_by_its_source(text, expected):
    train = _source("train-loop.py", TRAINING.format(body="loss = net(batch)"))
    model = _source("model-with-loops.py", MODEL)
    chain = _chain((train, "loss = net"), (model, text))
    found = _loops(chain, update=(train, "optimizer.step"))
    assert found == [(_line(model, line), carried) for line, carried in expected]


def test_the_training_loop_and_the_one_over_epochs_are_no_loops_in_a_step():
    name = _source(
        "epochs.py",
        """\
        for epoch in range(3):
            for batch in loader:
                loss = net(batch)
                optimizer.step()
        """,
    )
    assert _loops(_chain((name, "loss = net")), update=(name, "optimizer.step")) == []


def test_a_loop_around_the_forward_of_each_sample_is_one():
    name = _source(
        "samples.py",
        """\
        for batch in loader:
            for sample in batch:
                net(sample).backward()
            optimizer.step()
        """,
    )
    assert _loops(_chain((name, "net(sample)")), update=(name, "optimizer.step")) == [(2, False)]


def test_a_comprehension_is_a_loop_whose_rounds_stand_alone():
    name = _source(
        "tasks.py",
        """\
        for batch in loader:
            loss = stack([adapt(task)
                for task in batch])
            optimizer.step()
        """,
    )
    assert _loops(_chain((name, "adapt(task)")), update=(name, "optimizer.step")) == [(2, False)]


def test_samples_outside_the_loop_count_towards_its_share():
    name = _source("share.py", TRAINING.format(body="rows = [net(x) for x in batch]; more()"))
    inside = _chain((name, "rows"))
    other = _chain((name, "optimizer.step"))
    counts = {("sampled forward", inside): 6, ("sampled forward", other): 2, ("sampled after", other): 5}
    (loop,) = find_loops(counts, updates=[(name, _line(name, "optimizer.step"))])
    assert loop.seen == {"sampled forward": 6}
    assert loop.of == {"sampled forward": 8, "sampled after": 5}


@pytest.mark.parametrize("text", ["for x in (:\n    f(x)\n", ""], ids=["broken", "absent"])
def test_source_that_cannot_be_read_has_no_loops(text):
    name = _source("broken.py", text)
    assert find_loops({("sampled forward", ((name, 2, "f"),)): 9}, updates=[]) == []


@pytest.mark.parametrize(
    ("line", "carried"),
    [
        ("total = total + loss_of(item)", False),
        ("total = loss_of(item) + total", False),
        ("total = total + loss_of(total)", True),
        ("state = cell(item) + 0 * state.mean()", True),
        ("state = 2 * state", True),
        ("total = torch.cat([total, loss_of(item)])", False),
        ("total = np.concatenate((loss_of(item), total), axis=0)", False),
        ("total = torch.cat([total, loss_of(total)])", True),
        ("total = torch.stack([total, loss_of(item)])", True),
    ],
)
def test_a_sum_is_one_however_it_is_written(line, carried):
    name = _source(
        f"sum-{abs(hash(line))}.py",
        f"""\
        for batch in loader:
            total = state = 0
            for item in batch:
                {line}
            optimizer.step()
        """,
    )
    found = _loops(_chain((name, line)), update=(name, "optimizer.step"))
    assert found == [(_line(name, "for item in"), carried)]


@pytest.mark.parametrize(
    ("body", "carried"),
    [
        ("loss_of(item, x); x = next(batches)", False),
        ("row = table[at]; at += 1; loss_of(row)", False),
        ("state = start if first else cell(item, state)", True),
        ("with autocast(): state = cell(item, state)", True),
        ("hidden = cell(item, state); state = norm(hidden)", True),
        ("loss_of(state := cell(item, state))", True),
    ],
    ids=["fetched ahead", "counted", "begun anew", "in a context", "by another name", "in an expression"],
)
def test_a_round_needs_the_one_before_where_a_value_is_made_from_its_last(body, carried):
    name = _source(
        f"round-{abs(hash(body))}.py",
        f"""\
        for batch in loader:
            for item in batch:
                {body}
            optimizer.step()
        """,
    )
    found = _loops(_chain((name, body)), update=(name, "optimizer.step"))
    assert found == [(_line(name, "for item in"), carried)]


@pytest.mark.parametrize(
    ("begins", "carried"),
    [
        (("if item.first:", "    state = start(item)"), True),
        (("if item.first:", "    state = start(item)", "else:", "    state = begin(item)"), False),
        (("if item.first:", "    state = start(item)", "elif item.last:", "    state = 0"), True),
        (("with autocast():", "    state = start(item)"), False),
        (("for row in item:", "    state = start(row)"), True),
        (("if item.first:", "    state = start(item)", "    state = 2 * state", "state = 0"), False),
        (("try: check(item)", "except ValueError: state = start(item)"), True),
        (("match item.kind:", "    case 0: state = start(item)"), True),
        (("with first(item) as state, second(state) as state: pass",), False),
    ],
    ids=[
        "some",
        "either way",
        "two of three",
        "in a context",
        "perhaps no row",
        "within its branch",
        "after an error",
        "in one case",
        "by a context",
    ],
)
def test_a_value_that_only_some_rounds_begin_anew_is_carried(begins, carried):
    lines = [
        "for batch in loader:",
        "    for item in batch:",
        *(f"        {line}" for line in begins),
        "        state = cell(item, state)",
        "    optimizer.step()",
    ]
    name = _source(f"reset-{abs(hash(begins))}.py", "\n".join(lines) + "\n")
    found = _loops(_chain((name, "state = cell")), update=(name, "optimizer.step"))
    assert found == [(_line(name, "for item in"), carried)]


OPTIMIZER = """\
class Own:
    def step(self):
        for group in self.param_groups:
            scale(group)
            for p in group["params"]:
                p.add_(p.grad)
            moved = [square(p) for p in group["params"]]
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [("p.add_", ['for p in group["params"]:']), ("moved = ", ["moved = "]), ("scale(group)", [])],
    ids=["parameters", "list", "groups"],
)
def test_in_an_optimizer_of_the_scripts_own_the_groups_are_no_loop(text: str, expected: list[str]) -> None:
    train = _source("train-own.py", TRAINING.format(body="loss = net(batch)"))
    own = _source("own-optimizer.py", OPTIMIZER)
    chain = _chain((train, "optimizer.step"), (own, text))
    found = find_loops({("sampled update", chain): 7}, updates=[(train, _line(train, "optimizer.step"))])
    assert [loop.site.line for loop in found] == [_line(own, line) for line in expected]
    assert all(loop.seen == {"sampled update": 7} for loop in found)


HEADS = """\
def whole(self, angles):
    for rotation in self.rotations(angles):
        place = place @ rotation

def by_rounds(self, angles):
    for rotation in self.windows(angles):
        place = place @ rotation

def rotations(self, angles):
    return [joint(angles) for joint in self.joints]

def windows(self, angles):
    for joint in self.joints:
        yield joint(angles)
"""


@pytest.mark.parametrize(
    ("head", "called", "expected"),
    [
        # What is gone over is made once, by a loop of its own.
        ("in self.rotations", "return [joint", [("return [joint", False)]),
        # A generator runs in each round.
        ("in self.windows", "yield joint", [("in self.windows", True)]),
    ],
)
def test_what_the_head_of_a_loop_calls_is_no_part_of_its_rounds(
    head: str, called: str, expected: list[tuple[str, bool]]
) -> None:
    name = _source("arm.py", HEADS)
    found = _loops(_chain((name, head), (name, called)), update=(name, "def whole"))
    assert found == [(_line(name, text), carried) for text, carried in expected]


def test_a_loop_on_one_line_has_its_rounds_there() -> None:
    name = _source("flat.py", "for x in made(): x.backward()\n")
    (loop,) = find_loops({("sampled forward", _chain((name, "for x"))): 7}, updates=[])
    assert loop.rounds == (1, 1)


BATCHES = """\
def batches():
    while True:
        for i in range(9):
            x = images[i]
            rows = [augment(row) for row in x]
            for row in rows:
                def handed():
                    yield row
                check(row, handed)
            yield stack(rows)
"""


def test_a_loop_that_hands_out_a_batch_in_each_round_is_that_of_who_takes_it() -> None:
    name = _source("batches.py", BATCHES)
    around = {text: loops_around(name, _line(name, text), since=1) for text in ("x = images", "check(row")}
    assert around == {"x = images": (), "check(row": ((6, 9),)}
    assert loops_around(name, _line(name, "rows = ["), since=1) == ((5, 5),)
