"""What reports say of several ranks: who is late, what that costs, and who is missing."""

from __future__ import annotations

import io
import re

import msgspec
import pytest
from unit.reporters.sample import sample

from torch_bottleneck.cli.console import RankProgress
from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.diagnosis import (
    BucketRow,
    BucketSizes,
    CollectiveRow,
    Diagnosis,
    Fleet,
    GroupRow,
    LinkRow,
    PathPart,
    RankRow,
    Straggler,
    UnreadRank,
    WhatIfResult,
)
from torch_bottleneck.model.run import SourceSite
from torch_bottleneck.reporters import html, markdown, terminal
from torch_bottleneck.reporters.rows.fleet import (
    account_rows,
    bucket_lines,
    clock_line,
    late_lines,
    listed,
    own_lines,
    traffic_rows,
    unread_lines,
)
from torch_bottleneck.reporters.rows.groups import Band, group_lines
from torch_bottleneck.reporters.rows.heat import heat_lines, heat_map

SITE = SourceSite(file="/home/me/train.py", line=31, function="load")


def job(ranks: int = 8, *stragglers: Straggler, unread: tuple[UnreadRank, ...] = ()) -> Diagnosis:
    late = {rank: each for each in stragglers for rank in each.ranks}
    rows = tuple(
        RankRow(
            rank=rank,
            step_ms=100.0,
            own_ms=95.0 if rank in late else 75.0,
            waits_for_others_ms=0.0 if rank in late else 20.0,
            waits_for=None if rank in late else min(late, default=None),
            transfer_ms=5.0,
            late_ms=20.0 if rank in late else 0.0,
            late_steps_ms=tuple((20.0 if rank in late else -0.123 * (rank % 7)) for _ in range(16)),
            excess_ms={"input": 20.0 if rank in late else 0.0, "compute": 0.01 * rank},
            node=rank // 8 * 8,
            cause=late[rank].cause if rank in late else "",
            path=f"rank{rank}",
        )
        for rank in range(ranks)
    )
    fleet = Fleet(
        compared=ranks,
        world_size=ranks,
        stragglers=stragglers,
        step_ms=100.0,
        step_without_late_ranks_ms=100.0 - sum(each.costs_ms for each in stragglers),
        clock_error_us=2.1,
        collectives=52,
        what_ifs=(
            WhatIfResult(
                question=WhatIf.NO_LATE_RANK,
                step_ms=80.0,
                saves_ms=20.0,
                basis="replay of all ranks together",
            ),
        ),
        path=(PathPart(rank=3, ms=95.0), PathPart(rank=None, ms=5.0)),
        collective_rows=(
            CollectiveRow(
                collective="allreduce",
                ranks=ranks,
                bytes=2**25,
                per_step=8.0,
                transfer_ms=0.6,
                gbytes_per_s=55.9,
                waits_ms=18.0,
            ),
        ),
        unread=unread,
    )
    return msgspec.structs.replace(sample(), rank=3, ranks=rows, fleet=fleet)


ONE = Straggler(ranks=(3,), kind="persistent", cause="input", costs_ms=20.0, late_ms=20.0, site=SITE)
BLOCK = Straggler(
    ranks=tuple(range(8, 16)),
    kind="group",
    cause="slower device",
    costs_ms=9.0,
    late_ms=9.5,
    group="process group tp",
)
WANDERS = Straggler(
    ranks=(1, 4, 5, 6, 7), kind="wandering", cause="garbage collection", costs_ms=3, late_ms=12
)


def test_each_kind_is_said_with_its_price_and_the_step_without_it() -> None:
    who, why, without = late_lines(job(8, ONE))[0]
    assert who == "rank 3: late by 20.0 ms in each step, costs all 20.0 ms"
    assert why.startswith("waiting for input at ")
    assert "train.py:31" in why
    assert without == "80.0 ms"
    assert late_lines(job(16, BLOCK))[0][:2] == (
        "process group tp: late by 9.5 ms in each step, costs all 9.0 ms",
        "its device is slower; ranks 8 to 15",
    )
    assert late_lines(job(8, WANDERS))[0][:2] == (
        "ranks 1, 4, 5, 6 and 1 more: late by 12.0 ms in some steps, costs all 3.0 ms a step",
        "garbage collection",
    )


def test_a_late_rank_of_several_nodes_has_its_node_and_its_place_there() -> None:
    base = job(8, ONE)
    placed = tuple(msgspec.structs.replace(row, node=row.rank // 2 * 2) for row in base.ranks)
    _, why, _ = late_lines(msgspec.structs.replace(base, ranks=placed))[0]
    assert why.endswith("train.py:31 (load); node 1, place 1 there")
    alone = tuple(msgspec.structs.replace(row, node=0) for row in base.ranks)
    _, why, _ = late_lines(msgspec.structs.replace(base, ranks=alone))[0]
    assert why.endswith("train.py:31 (load)")


def test_that_nobody_is_late_is_said_too() -> None:
    assert late_lines(job(8)) == [("No rank is late beyond chance: 8 were compared", "", "")]
    assert late_lines(sample()) == []


def test_the_ranks_worth_a_look_come_first_and_the_others_stay_out() -> None:
    rows = account_rows(job(1024, ONE), most=3)
    assert rows[0].rank == "3"
    assert len(rows) == 3
    assert rows[0].why == "waiting for input"
    assert rows[1].why == "waits for rank 3: input"
    assert len(account_rows(job(1024, ONE))) == 1024


def test_who_waits_for_a_rank_that_waits_is_told_for_whom_and_why() -> None:
    base = job(4, ONE)
    waits_for = {0: 1, 1: 3, 2: 0, 3: None}
    ranks = tuple(msgspec.structs.replace(row, waits_for=waits_for[row.rank]) for row in base.ranks)
    why = {row.rank: row.why for row in account_rows(msgspec.structs.replace(base, ranks=ranks))}
    assert why == {
        "0": "waits for rank 3: input",
        "1": "waits for rank 3: input",
        "2": "waits for rank 3: input",
        "3": "waiting for input",
    }
    circle = tuple(msgspec.structs.replace(row, waits_for=(row.rank + 1) % 4, cause="") for row in base.ranks)
    told = account_rows(msgspec.structs.replace(base, ranks=circle))
    assert {row.rank: row.why for row in told}["0"] == "waits for rank 3"


def test_missing_ranks_with_one_reason_share_a_line() -> None:
    gone = [UnreadRank(rank=rank, reason="it was not given") for rank in (4, 9, 11, 12, 30)]
    cut = UnreadRank(rank=2, path="rank2.json", reason="its trace was cut off")
    strange = UnreadRank(rank=None, path="x.json", reason="it is no trace\x1b[2J")
    assert unread_lines(job(8, unread=(*gone, cut, strange))) == [
        "Ranks 4, 9, 11, 12 and 1 more: it was not given",
        "Rank 2 (rank2.json): its trace was cut off",
        "A rank (x.json): it is no trace",
    ]


def test_the_clock_is_told_with_its_error() -> None:
    assert (
        clock_line(job(8)) == "8 ranks on one clock by 52 collectives, which end within 2.1 µs of each other"
    )


def test_steps_that_there_is_no_room_for_are_told() -> None:
    found = job(8, ONE)
    assert found.fleet is not None
    fleet = msgspec.structs.replace(found.fleet, steps_left_out=36)
    found = msgspec.structs.replace(found, fleet=fleet)
    for text in (clock_line(found), markdown.render(found), html.render(found)):
        assert "without the first 36 traced steps" in text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((3,), "rank 3"), ((1, 2), "ranks 1, 2"), ((4, 5, 6), "ranks 4 to 6"), ((1, 3, 5), "ranks 1, 3, 5")],
)
def test_ranks_are_listed_shortly(ranks: tuple[int, ...], text: str) -> None:
    assert listed(ranks) == text


def test_terminal_and_markdown_show_them_and_name_the_rank_of_the_figures() -> None:
    found = job(1024, ONE, unread=(UnreadRank(rank=7, path="rank7.json", reason="its trace was cut off"),))
    for text in (terminal.render(found), markdown.render(found)):
        assert "rank 3: late by 20.0 ms in each step, costs all 20.0 ms" in text
        assert "80.0 ms" in text
        assert "1024 ranks, rank 3 shown" in text
        assert "cut off" in text
    assert terminal.render(found).count("\n") <= 40
    assert terminal.render(found, verbose=True).count("\n") < 400


def test_the_page_of_1024_ranks_stays_small() -> None:
    text = html.render(grid(1024, stages=4))
    assert text.count('<th scope="row" data-value=') == 1024
    assert len(text.encode()) < 1_500_000
    assert '<canvas id="heat"' in text
    assert 'aria-describedby="heat-told ranks-table"' in text


def test_the_heat_map_has_a_column_per_rank_and_lines_between_machines() -> None:
    found = heat_map(job(64, ONE))
    assert found is not None
    assert found.ranks == tuple(range(64))
    assert found.nodes == tuple(Band(first=8 * i, label=f"node {i}") for i in range(8))
    assert found.groups == ()
    assert (len(found.steps), found.most_ms) == (16, 20.0)
    assert [row[3] for row in found.steps] == [20.0] * 16
    assert {name: values[3] for name, values in found.causes} == {"input": 20.0, "compute": 0.03}
    assert heat_map(sample()) is None


@pytest.mark.parametrize(("ranks", "width", "column"), [(8, 40, 3), (1024, 64, 0)])
def test_the_terminal_shows_the_latest_of_the_ranks_that_share_a_character(
    ranks: int, width: int, column: int
) -> None:
    lines = heat_lines(job(ranks, ONE), width, unicode=True)
    assert len(lines) == 4
    assert all(len(line) == min(ranks, width) for line in lines)
    assert "│" not in "".join(lines)
    assert all(line[column] == "█" and line.count("█") == 1 for line in lines)
    assert heat_lines(job(ranks, ONE), width, unicode=False)[0][column] == "#"


def linked_to(report: str) -> Diagnosis:
    found = job(8, ONE)
    rows = tuple(
        msgspec.structs.replace(row, source=f"my runs/rank{row.rank}", report=report if row.rank == 3 else "")
        for row in found.ranks
    )
    return msgspec.structs.replace(found, ranks=rows)


def test_ranks_with_reports_of_their_own_are_linked_everywhere() -> None:
    found = linked_to("rank3/report.html")
    assert own_lines(found) == ["Own reports: rank 3 in rank3/report.html"]
    assert own_lines(found)[0] in terminal.render(found, verbose=True)
    assert "[rank 3](rank3/report.html)" in markdown.render(found)
    page = html.render(found)
    assert page.count('<a href="rank3/report.html">3</a>') == 1
    assert page.count("/report.html") == 2, "the link, and the sentence"


def test_without_one_a_command_shows_the_latest_rank_by_itself() -> None:
    assert own_lines(linked_to("")) == ["Rank 3 by itself: bottleneck analyze 'my runs/rank3'"]
    assert own_lines(job(8, ONE)) == []
    assert own_lines(sample()) == []


@pytest.mark.parametrize(
    "report",
    [
        "javascript:alert(1)",
        "https://example.com/",
        "//example.com/x",
        "/etc/passwd",
        "../x.html",
        "a/../../x",
    ],
)
def test_a_report_that_is_named_by_a_foreign_file_is_below_this_one_or_no_link(report: str) -> None:
    found = linked_to(report)
    targets = re.findall(r'href="([^#"][^"]*)"', html.render(found))
    targets += re.findall(r"\[rank 3\]\(([^)]*)\)", markdown.render(found))
    assert all(re.fullmatch(r"[A-Za-z0-9%.]+", target) for target in targets), targets
    assert not any(".." in target for target in targets)


def grid(ranks: int, *, tensor: int = 4, stages: int = 2) -> Diagnosis:
    """Stages of a pipeline, in them tensor-parallel groups of neighbours, and data parallel across those."""
    found, per_stage = job(ranks, ONE), ranks // stages
    groups = [
        GroupRow(
            name=f"t{first}",
            description="mesh_tp",
            ranks=tuple(range(first, first + tensor)),
            roles=("tensor parallel",),
            told_by="name",
        )
        for first in range(0, ranks, tensor)
    ]
    groups += [
        GroupRow(
            name=f"p{i}", ranks=tuple(range(i, ranks, per_stage)), roles=("pipeline",), told_by="collectives"
        )
        for i in range(per_stage)
    ]
    groups.append(GroupRow(name="0", description="default_pg", ranks=tuple(range(ranks))))
    assert found.fleet is not None
    fleet = msgspec.structs.replace(found.fleet, groups=tuple(groups))
    return msgspec.structs.replace(found, fleet=fleet)


def test_process_groups_that_are_alike_share_a_line_and_what_is_not_told_is_said() -> None:
    assert group_lines(grid(16)) == [
        "Tensor parallel: 4 groups of 4 ranks (mesh_tp), the first of ranks 0 to 3; told by their name",
        "Pipeline: 8 groups of 2 ranks, the first of ranks 0, 8; told by their collectives",
        "Role not told: ranks 0 to 15 (default_pg)",
    ]
    assert group_lines(job(16, ONE)) == []
    for text in (terminal.render(grid(16), verbose=True), markdown.render(grid(16)), html.render(grid(16))):
        assert "Tensor parallel: 4 groups of 4 ranks (mesh_tp)" in text
        assert "Role not told" in text


def test_the_heat_map_is_in_the_order_of_machines_and_there_of_stages_and_groups() -> None:
    found = heat_map(grid(16))
    assert found is not None
    assert found.ranks == tuple(range(16))
    assert [(band.first, band.label) for band in found.nodes] == [(0, "node 0"), (8, "node 1")]
    assert [(band.first, band.label) for band in found.groups] == [
        (0, "stage 0, tensor 0-3"),
        (4, "stage 0, tensor 4-7"),
        (8, "stage 1, tensor 8-11"),
        (12, "stage 1, tensor 12-15"),
    ]


def test_ranks_of_one_group_stand_together_though_their_numbers_do_not() -> None:
    found = grid(8)
    assert found.fleet is not None
    apart = tuple(
        GroupRow(name=str(i), ranks=(i, i + 2), roles=("tensor parallel",), told_by="collectives")
        for i in (0, 1, 4, 5)
    )
    fleet = msgspec.structs.replace(found.fleet, groups=apart)
    heat = heat_map(msgspec.structs.replace(found, fleet=fleet))
    assert heat is not None
    assert heat.ranks == (0, 2, 1, 3, 4, 6, 5, 7)
    assert [band.label for band in heat.groups] == [
        "tensor 0, 2",
        "tensor 1, 3",
        "tensor 4, 6",
        "tensor 5, 7",
    ]
    column = heat.ranks.index(3)
    assert all(values[column] == 20.0 for values in heat.steps), "lateness is sorted with its rank"
    lines = heat_lines(msgspec.structs.replace(found, fleet=fleet), 40, unicode=True)
    assert lines[0] == "  │ █│  │  "


def test_groups_across_machines_or_of_some_ranks_divide_nothing() -> None:
    found = job(16, ONE)
    assert found.fleet is not None
    across = tuple(
        GroupRow(name=str(i), ranks=(i, i + 8), roles=("tensor parallel",), told_by="name") for i in range(8)
    )
    some = (GroupRow(name="1", ranks=(0, 1, 2), roles=("tensor parallel",), told_by="name"),)
    for groups in (across, some):
        fleet = msgspec.structs.replace(found.fleet, groups=groups)
        heat = heat_map(msgspec.structs.replace(found, fleet=fleet))
        assert heat is not None
        assert heat.groups == ()
        assert len(heat.nodes) == 2


def test_what_the_ranks_say_together_is_in_terminal_markdown_and_page() -> None:
    found = job(8, ONE)
    page = " ".join(re.sub("<[^>]+>", " ", html.render(found)).split())
    for text in (terminal.render(found, verbose=True, width=200), markdown.render(found), page):
        assert "no-late-rank: 80.0 ms, saves 20.0 ms (replay of all ranks together)" in text
        assert "Critical path of the step: 95.0 ms work of rank 3 (late for input), 5.0 ms transfer" in text
        assert "55.9" in text


def test_the_bubble_is_shown_where_there_are_stages_and_only_there() -> None:
    found = job(4)
    stages = [msgspec.structs.replace(row, waits_for_others_ms=8.0, bubble_ms=12.0) for row in found.ranks]
    pipeline = msgspec.structs.replace(found, ranks=tuple(stages))
    for show in (lambda d: terminal.render(d, verbose=True, width=200), markdown.render, html.render):
        told = " ".join(re.sub("<[^>]+>", " ", show(pipeline)).split())
        assert "Bubble of the pipeline: 12.0 ms of 100.0 (12 %)" in told
        assert "Bubble of the pipeline" not in show(found)
    assert [row.bubble for row in account_rows(pipeline)] == ["12.0"] * 4
    assert "bubble" not in terminal.render(found, verbose=True, width=200)


def test_collectives_stand_beside_the_best_of_their_kind_and_what_the_link_could_give() -> None:
    found = job(8, ONE)
    assert found.fleet is not None
    large = msgspec.structs.replace(found.fleet.collective_rows[0], bus_gbytes_per_s=97.8, latency_ms=0.03)
    small = CollectiveRow(
        collective="allreduce", ranks=8, bytes=4096, per_step=1.0, transfer_ms=0.031, gbytes_per_s=0.13,
        bus_gbytes_per_s=0.23, latency_ms=0.03, waits_ms=0.0,
    )  # fmt: skip
    link = LinkRow(
        collective="allreduce", ranks=8, best_bus_gbytes_per_s=97.8, best_bytes=2**25, latency_ms=0.03,
        link_gbytes_per_s=478.0,
    )  # fmt: skip

    def with_link(link: LinkRow) -> Diagnosis:
        fleet = msgspec.structs.replace(found.fleet, collective_rows=(large, small), links=(link,))
        return msgspec.structs.replace(found, fleet=fleet)

    assert [(row.of_best, row.latency) for row in traffic_rows(with_link(link))] == [
        ("100 %", "5.0 %"),
        ("0.2 %", "97 %"),
    ]
    text = terminal.render(with_link(link), verbose=True, width=80)
    assert max(map(len, text.splitlines())) <= 80
    said = (
        "allreduce: at best 97.8 GB/s on the bus, at 32 MiB, 20 % of the 478 GB/s that the NVLinks of a"
        " device carry; each has a latency of 30 µs"
    )
    unmeasured = with_link(msgspec.structs.replace(link, link_gbytes_per_s=None, latency_ms=None))
    for show in (lambda d: terminal.render(d, verbose=True, width=80), markdown.render, html.render):
        assert said in " ".join(re.sub("<[^>]+>", " ", show(with_link(link))).split())
        told = " ".join(re.sub("<[^>]+>", " ", show(unmeasured)).split())
        assert "at 32 MiB; what the link could give was not measured" in told


def test_bucket_sizes_are_told_where_one_gains_or_with_why_they_are_not_known() -> None:
    found = job(8, ONE)
    assert found.fleet is not None
    sizes = BucketSizes(
        buckets=5,
        rows=(
            BucketRow(cap_bytes=2**20, buckets=28, step_ms=99.0, step_at_most_ms=101.0),
            BucketRow(cap_bytes=None, buckets=1, step_ms=80.5, step_at_most_ms=82.0),
        ),
        replay_error=0.01,
    )
    assert bucket_lines(msgspec.structs.replace(found, buckets=sizes)) == [], "none gains"
    gains = WhatIfResult(question=WhatIf.BUCKET_SIZE, step_ms=80.5, saves_ms=19.5, basis="replay")
    fleet = msgspec.structs.replace(found.fleet, what_ifs=(*found.fleet.what_ifs, gains))
    (line,) = bucket_lines(msgspec.structs.replace(found, fleet=fleet, buckets=sizes))
    assert line == "The step by size of gradient buckets (5 now): 1 MiB 99.0 ms, all in one 80.5 ms"
    unknown = msgspec.structs.replace(found, buckets=BucketSizes(buckets=5, unknown="one size only"))
    for show in (lambda d: terminal.render(d, verbose=True, width=80), markdown.render, html.render):
        told = " ".join(re.sub("<[^>]+>", " ", show(unknown)).split())
        assert "Gradient buckets of other sizes: not known: one size only" in told


class Stream(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_silent_at_first_and_leaves_no_line_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    stream = Stream()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("torch_bottleneck.cli.console.monotonic", lambda: now[0])
    tell = RankProgress(_began=100.0)
    tell(1, 64)
    assert stream.getvalue() == ""
    now[0] = 104.0
    tell(4, 64)
    assert "4 of 64 ranks read, 1 min 00 s left" in stream.getvalue()
    tell(64, 64)
    assert stream.getvalue().endswith("\r\x1b[K")


def test_progress_elsewhere_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("torch_bottleneck.cli.console.monotonic", lambda: now[0])
    tell = RankProgress(_began=100.0)
    for second in range(1, 25):
        now[0] = 100.0 + second
        tell(second, 64)
    assert len(stream.getvalue().splitlines()) == 2
    assert "\r" not in stream.getvalue()
