"""What doctor finds, given machines and versions that are not these."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from torch_bottleneck.doctor import files, machine, versions
from torch_bottleneck.doctor.check import Check, try_apart
from torch_bottleneck.doctor.machine import judge_profile
from torch_bottleneck.errors import InputError
from torch_bottleneck.harness.self_test import Report
from torch_bottleneck.model.snapshot import NOTES_SUFFIX
from torch_bottleneck.runs import environment

GOOD = {
    "torch": "2.13.0",
    "numpy": "2.4.0",
    "pandas": "3.1.1",
    "tensorboard": "2.21.0",
    "torch-tb-profiler": "0.4.3",
    "setuptools": "84.2.1",
}


def problems(checks: list[Check]) -> list[str]:
    return [check.text for check in checks if check.level == "problem"]


def pairs(**changed: str | None) -> list[Check]:
    has: dict[str, str | None] = {
        **GOOD,
        **{name.replace("_", "-"): value for name, value in changed.items()},
    }
    return list(versions._tensorboard(has.get))


def test_the_versions_that_were_tried_pass() -> None:
    assert pairs() == []


@pytest.mark.parametrize("old", ["2.19.0", "2.20.0"])
def test_tensorboard_below_2_21_needs_what_setuptools_dropped(
    monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pkg_resources" else real(name)
    )
    (found,) = pairs(tensorboard=old)
    assert found.level == "problem" and "pkg_resources" in found.text and "tensorboard>=2.21" in found.remedy
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert pairs(tensorboard=old) == [], "an old setuptools still ships it"


def test_pandas_missing_or_too_new_breaks_the_stock_plugin() -> None:
    assert "fails to start" in problems(pairs(pandas=None))[0]
    assert "pandas 4.0.0" in problems(pairs(pandas="4.0.0"))[0]
    assert pairs(pandas=None, torch_tb_profiler=None)[0].level == "warning", (
        "without the plugin nothing needs it"
    )


def test_another_plugin_version_is_a_note() -> None:
    assert [check.level for check in pairs(torch_tb_profiler="0.5.0")] == ["note"]


def test_our_own_requirements_are_checked_as_pip_reads_them() -> None:
    found = list(
        versions._unmet(lambda name: "1.0" if name == "torch" else "99.0" if name == "numpy" else None)
    )
    texts = problems(found)
    assert any(text.startswith("torch 1.0 is installed; >=2.6") for text in texts)
    assert any(text.startswith("click is not installed") for text in texts)
    assert not any(text.startswith("numpy") for text in texts)
    assert not any("pytest" in text for text in texts), "extras are nobody's need"


def test_plugins_are_loaded_as_tensorboard_loads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = versions.check_plugins()
    assert found.level == "ok" and "torch_profiler" in found.text
    broken = '{"mine": "ModuleNotFoundError: No module named x", "other": ""}'
    monkeypatch.setattr(versions, "try_apart", lambda *_, **__: (0, f"noise\n{broken}\n", ""))
    (found,) = versions.check_plugins()
    assert found.level == "problem" and "mine" in found.text and "will not start" in found.text
    monkeypatch.setattr(versions, "try_apart", lambda *_, **__: (None, "", ""))
    assert "did not end" in next(iter(versions.check_plugins())).text


def judged(tmp_path: Path, found: Report, *, messages: str = "", **environ: str) -> list[Check]:
    return list(judge_profile(found, messages=messages, environ=environ, driver=tmp_path))


def test_a_machine_without_gpu_is_fine(tmp_path: Path) -> None:
    found = Report(torch="2.13.0+cpu", built_for="CPU", kineto=True, operators=9)
    assert [check.level for check in judged(tmp_path, found)] == ["ok"]
    (tmp_path / "version").touch()
    (check,) = judged(tmp_path, found)
    assert check.level == "warning" and "NVIDIA driver" in check.text


def test_kernels_recorded_is_fine_and_none_recorded_says_why(tmp_path: Path) -> None:
    found = Report(
        torch="2.11", built_for="CUDA 13.0", kineto=True, operators=9, kernels=6, device="NVIDIA H200"
    )
    assert [check.level for check in judged(tmp_path, found)] == ["ok"]
    found.kernels = 0
    (tmp_path / "params").write_text("RmProfilingAdminOnly: 1\n")
    (check,) = judged(tmp_path, found, messages="x\nWARNING CUPTI_ERROR_INSUFFICIENT_PRIVILEGES here\n")
    assert check.level == "problem"
    assert "INSUFFICIENT_PRIVILEGES" in check.text and "only for administrators" in check.text
    assert "NVreg_RestrictProfilingToAdminUsers=0" in check.remedy


def test_another_profiler_in_the_way_is_named(tmp_path: Path) -> None:
    found = Report(kineto=True, operators=9, kernels=6, device="GPU")
    levels = [check.level for check in judged(tmp_path, found, CUDA_INJECTION64_PATH="/opt/nsys.so")]
    assert levels == ["ok", "warning"]


def test_a_torch_that_cannot_profile_is_a_problem(tmp_path: Path) -> None:
    assert problems(judged(tmp_path, Report(error="ImportError: libcuda")))
    assert problems(judged(tmp_path, Report(torch="2.13", built_for="CPU", kineto=False)))


def test_a_profile_that_crashes_does_not_take_doctor_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "try_apart", lambda *_, **__: (-11, "", "Segmentation fault"))
    (check,) = machine.check_profiler()
    assert check.level == "problem" and "ended with -11" in check.text and "Segmentation" in check.text


def test_what_takes_too_long_is_ended() -> None:
    assert try_apart("-c", "import time; time.sleep(60)", seconds=0.5) == (None, "", "")


def test_room_and_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = [check.level for check in machine.check_space(tmp_path / "reports" / "deep")]
    assert set(levels) <= {"ok", "warning"}
    usage = type("Usage", (), {"total": 64 * 2**20, "used": 0, "free": 100 * 2**20})
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage)
    found = list(machine.check_space(tmp_path))
    assert any("0.1 GB free" in text for text in problems(found))
    shared = [check for check in found if "/dev/shm" in check.text]
    assert shared and shared[0].level == "warning" and "--shm-size" in shared[0].remedy
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert any("cannot be written" in text for text in problems(list(machine.check_space(tmp_path))))


def trace(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"traceEvents": []}')
    return path


def checked(*paths: Path, memory: int | None = None) -> list[Check]:
    return list(files.check_files(paths, memory=memory))


def test_names_that_the_profiler_tab_passes_over_are_named(tmp_path: Path) -> None:
    trace(tmp_path / "trace.json")
    trace(tmp_path / "host_1.123.pt.trace.json.gz").write_bytes(b"\x1f\x8b" + bytes(20))
    found = checked(tmp_path)
    assert [check.level for check in found] == ["warning", "note"]
    assert "trace.json" in found[0].text and found[0].remedy == f"bottleneck review {tmp_path}"
    assert "as torch wrote them" in found[1].text


def test_a_run_folder_with_its_copy_is_fine(tmp_path: Path) -> None:
    trace(tmp_path / "run" / "trace" / "host_1.123.trace.json")
    trace(tmp_path / "run" / "run.json")
    trace(tmp_path / "run" / "memory" / f"host_1.123{NOTES_SUFFIX}")
    trace(tmp_path / "run" / "verify" / "verify.json")
    trace(tmp_path / "run" / "verify" / "runs" / "trial.json")
    (tmp_path / "run" / "tensorboard").mkdir()
    trace(tmp_path / "run" / "tensorboard" / "rank_0.pt.trace.json")
    trace(tmp_path / "run" / "tensorboard" / "bottleneck-page.json")
    assert [check.level for check in checked(tmp_path)] == ["ok"]


def test_workers_that_the_distributed_view_cannot_tell_apart(tmp_path: Path) -> None:
    for name in ("rank0", "rank1"):
        trace(tmp_path / f"{name}.pt.trace.json")
    assert any("<node>_<rank>" in check.text for check in checked(tmp_path))


def test_a_file_that_cannot_be_a_trace_is_not_sent_on_to_review(tmp_path: Path) -> None:
    found = checked(trace(tmp_path / "train.py"))
    assert [(check.level, check.remedy) for check in found] == [("warning", "")]
    assert "is not a trace" in found[0].text


def test_what_is_no_json_at_all_is_a_problem(tmp_path: Path) -> None:
    trace(tmp_path / "a.pt.trace.json").write_bytes(b"")
    trace(tmp_path / "b.pt.trace.json").write_bytes(b"PK\x03\x04zip")
    assert len(problems(checked(tmp_path))) == 2


def test_more_than_memory_holds_is_a_warning(tmp_path: Path) -> None:
    file = trace(tmp_path / "a_1.pt.trace.json")
    with file.open("r+b") as stream:
        stream.truncate(600 * 10**6)
    texts = [check.text for check in checked(tmp_path, memory=10**9) if check.level == "warning"]
    assert any("blank above 500 MB" in text for text in texts)
    assert any("about 4 GB of memory" in text for text in texts)


def test_nothing_there_and_nothing_in_it(tmp_path: Path) -> None:
    assert checked(tmp_path)[0].level == "warning"
    with pytest.raises(InputError):
        checked(tmp_path / "nope")


def test_memory_is_what_the_system_says(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal: 100 kB\nMemAvailable:    2048 kB\n")
    assert environment.available_memory(file) == 2048 * 1024
    assert environment.available_memory(tmp_path / "nope") is None
