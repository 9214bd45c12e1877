"""Two checkouts in turns: the order, the import path, and code that is taken from the wrong one."""

from __future__ import annotations

import os
from pathlib import Path

from unit.compare.sides import site

from torch_bottleneck.compare.repeats import Arm, _turns, _variables, foreign_files


def test_the_order_turns_round_so_that_a_drift_of_the_machine_hits_both_alike():
    arms = (Arm(name="base", cwd=Path("other")), Arm(name="head"))
    assert [f"{arm.name}-{turn}" for arm, turn in _turns(arms, 3)] == [
        "base-1", "head-1", "head-2", "base-2", "base-3", "head-3",
    ]  # fmt: skip


def test_import_paths_in_this_checkout_are_those_of_the_other_one_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "base"
    entries = [str(tmp_path / "src"), "lib", "/opt/elsewhere", str(there / "src")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entries))
    assert _variables(Arm(name="base", cwd=there))["PYTHONPATH"].split(os.pathsep) == [
        str(there / "src"), str(there / "lib"), "/opt/elsewhere", str(there / "src"),
    ]  # fmt: skip
    assert _variables(Arm(name="head")) == {}
    monkeypatch.delenv("PYTHONPATH")
    assert _variables(Arm(name="base", cwd=there)) == {}


def test_files_of_this_checkout_in_a_run_of_the_other_one_are_found():
    here, inside, apart = Path("/repo"), Path("/repo/base"), Path("/elsewhere")
    sites = [site(1, "/repo/src/model.py"), site(2, "train.py"), site(3, "/usr/lib/x.py"), None]
    assert foreign_files(sites, here=here, there=inside) == ["/repo/src/model.py"]
    assert foreign_files([site(1, "/repo/base/src/model.py")], here=here, there=inside) == []
    assert foreign_files([site(1, "/elsewhere/model.py")], here=here, there=apart) == []
