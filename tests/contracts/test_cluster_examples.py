"""The files in examples/cluster are what their systems take, and their commands do what the page says."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from recorded.cases import CASES

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "examples" / "cluster"


def test_the_pod_keeps_its_run_and_hands_the_verdict_over(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((CLUSTER / "trainjob.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {"runs": "/runs", "shm": "/dev/shm"}
    assert {volume["name"] for volume in pod["volumes"]} == set(mounted)
    (script,) = container["args"]
    # The command as it stands, outside of a pod and with a run that was recorded: it has no diagnosis yet.
    case = CASES["cpu-short-epochs"].folder
    bottleneck = f"{shlex.quote(sys.executable)} -m torch_bottleneck"
    script = script.replace("bottleneck diagnose --out", "exit_with 3 #")
    script = script.replace("bottleneck report", f"{bottleneck} analyze").replace("/runs/$RUN", str(case))
    message = tmp_path / "message"
    named = container.get("terminationMessagePath", "/dev/termination-log")
    assert named in script, "where Kubernetes reads the message"
    script = script.replace(named, shlex.quote(str(message)))
    done = subprocess.run(
        [*container["command"], "exit_with() { return $1; }\n" + script], capture_output=True, check=False
    )
    assert done.returncode == 3, "the code of the diagnosis is the pod's"
    text = message.read_bytes()
    assert len(text) <= 4096
    assert text.startswith(b'{"verdict": "'), done.stderr


def test_the_batch_script_starts_a_rank_on_each_gpu_of_the_node(tmp_path: Path) -> None:
    script = CLUSTER / "train.sbatch"
    for name, body in (("srun", 'exec "$@"'), ("torchrun", 'printf "%s\\n" "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_GPUS_ON_NODE": "3", "SLURM_JOB_ID": "77"}
    done = subprocess.run(
        ["bash", script, "--name", "two words"], env=slurm, capture_output=True, text=True, check=True
    )
    words = done.stdout.splitlines()
    assert words[:5] == ["--standalone", "--nproc-per-node", "3", "-m", "torch_bottleneck"]
    assert words[5:] == ["diagnose", "--out", "runs/77", "train.py", "--name", "two words"]
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    assert all(line.startswith("#SBATCH --") for line in lines[1:7])
