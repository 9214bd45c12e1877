"""The callbacks of trainers: a window captured, told where the trainer logs, and the training as without."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
from session import once

from torch_bottleneck.diagnose import diagnose_paths

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
LIGHTNING = """
import json, sys
import torch, lightning
from lightning.pytorch.loggers import CSVLogger
torch.manual_seed(0)
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    def training_step(self, batch, index):
        x, y = batch
        if FAIL_AT is not None and self.global_step == FAIL_AT:
            raise ValueError("the script's own")
        return torch.nn.functional.cross_entropy(self.model(x), y)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
data = torch.utils.data.TensorDataset(torch.randn(4000, 16), torch.randint(0, 4, (4000,)))
callbacks = []
if OUT != "environment":
    import torch_bottleneck.lightning
    callbacks = [torch_bottleneck.lightning.Bottleneck(OUT, warmup=4, baseline_steps=20, quiet=True)]
trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", default_root_dir="root", callbacks=callbacks if OUT else [],
    logger=CSVLogger("logs", version=0), enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, accumulate_grad_batches=2,
)
module = Module()
trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4, shuffle=True))
print(json.dumps([trainer.global_step, [p.sum().item() for p in module.parameters()], torch.rand(1).item()]))
"""
TRANSFORMERS = """
import json, os, sys
os.environ["HF_HUB_OFFLINE"] = "1"
import torch, transformers
import torch_bottleneck.transformers
config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=16)
transformers.set_seed(0)
data = [{"input_ids": torch.randint(50, (8,)), "labels": torch.randint(50, (8,))} for _ in range(1600)]
trainer = transformers.Trainer(
    model=transformers.GPT2LMHeadModel(config),
    args=transformers.TrainingArguments(
        output_dir="root", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=400,
        report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, logging_strategy="no",
    ),
    train_dataset=data,
)
if OUT is not None:
    log = trainer.log if OUT == "log" else None
    trainer.add_callback(
        torch_bottleneck.transformers.Bottleneck(log=log, warmup=4, baseline_steps=20, quiet=True)
    )
trainer.train()
print(json.dumps([trainer.state.global_step, [p.sum().item() for p in trainer.model.parameters()],
                  torch.rand(1).item()]))
print(json.dumps([entry for entry in trainer.state.log_history if "bottleneck/step_ms/true" in entry]))
"""
SFT = """
import json, os
os.environ["HF_HUB_OFFLINE"] = "1"
import datasets, tokenizers, torch, transformers, trl
import torch_bottleneck.transformers
words = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(47))])}
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>")),
    pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
)
config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=32)
transformers.set_seed(0)
rows = [[3 + (7 * i + j) % 47 for j in range(4 + i % 9)] for i in range(1600)]
trainer = trl.SFTTrainer(
    model=transformers.GPT2LMHeadModel(config),
    args=trl.SFTConfig(
        output_dir="root", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=400,
        report_to=[], use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True,
        logging_strategy="no", dataset_kwargs={"skip_prepare_dataset": True},
    ),
    # Its own fingerprint: the one that datasets works out takes pyarrow and dill of certain versions.
    train_dataset=datasets.Dataset(
        datasets.table.InMemoryTable.from_pydict({"input_ids": rows}), fingerprint="made up"
    ),
    processing_class=tokenizer,
)
if OUT is not None:
    trainer.add_callback(torch_bottleneck.transformers.Bottleneck(warmup=4, baseline_steps=20, quiet=True))
trainer.train()
print(json.dumps([trainer.state.global_step, [p.sum().item() for p in trainer.model.parameters()],
                  torch.rand(1).item()]))
print(json.dumps([entry for entry in trainer.state.log_history if "bottleneck/step_ms/true" in entry]))
"""
ACCELERATE = """
import json, sys
import torch, accelerate
import torch_bottleneck.accelerate
accelerate.utils.set_seed(0)
logged = []
class Memory(accelerate.tracking.GeneralTracker):
    name, requires_logging_directory, tracker = "memory", False, None
    open = True
    def store_init_configuration(self, values): pass
    def log(self, values, step=None, **options):
        assert self.open
        logged.append(values)
    def finish(self): self.open = False
trackers = [Memory()]
if OUT is not None:
    trackers.insert(0, torch_bottleneck.accelerate.Bottleneck(
        OUT, log=lambda figures: accelerator.log(figures), warmup=4, baseline_steps=20, quiet=True))
accelerator = accelerate.Accelerator(cpu=True, log_with=trackers, gradient_accumulation_steps=2)
accelerator.init_trackers("project", config={"lr": 1e-3})
data = torch.utils.data.TensorDataset(torch.randn(2400, 16), torch.randint(0, 4, (2400,)))
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
for index, (x, y) in enumerate(loader):
    with accelerator.accumulate(model):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if index % 50 == 0:
        accelerator.log({"loss": loss.item()})
accelerator.end_training()
print(json.dumps([[p.sum().item() for p in model.parameters()], torch.rand(1).item()]))
print(json.dumps([values for values in logged if "bottleneck/step_ms/true" in values]))
"""

RAY = """
import os
import ray, torch
from ray.train.torch import TorchTrainer, prepare_model
def set_up(config):
    torch.set_num_threads(1)
    model = prepare_model(torch.nn.Linear(16, 16))
    loader = torch.utils.data.DataLoader(torch.randn(1600, 16), batch_size=4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), loader
def train_step(model, optimizer, batch):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
def loop(config):
    space = {"set_up": set_up, "train_step": train_step}
    exec(SHOWN, space)
    space["train_loop_per_worker"](config)
ray.init(num_cpus=2, include_dashboard=False)
TorchTrainer(
    loop, train_loop_config={"run": os.path.abspath("run")},
    scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=False),
    run_config=ray.train.RunConfig(storage_path=os.path.abspath("storage")),
).fit()
"""


def train(
    text: str,
    folder: Path,
    *,
    out: str | None,
    environment: dict[str, str] | None = None,
    fail_at: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a training with the callback, or without: `out` is None."""
    folder.mkdir()
    (folder / "train.py").write_text(f"OUT = {out!r}\nFAIL_AT = {fail_at}\n{text}")
    return forked.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def diagnosed(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "diagnosis" / "diagnosis.json").read_bytes())
    return found


def check_run(run: Path, *, signal: str = "api") -> dict[str, Any]:
    facts = json.loads((run / "run.json").read_bytes())
    assert facts["step_signal"] == signal
    assert facts["artefacts"]["trace"]["status"] == "ok"
    baseline = next(window for window in facts["windows"] if window["name"] == "baseline")
    assert set(baseline["steps"]["micro_steps"]) == {2}, "both trainers accumulate over two batches"
    assert {"data", "forward", "backward", "optimizer"} <= set(baseline["steps"]["phases_ms"])
    return diagnosed(run)


def test_lightning_trains_as_without_and_its_logger_has_the_figures(tmp_path: Path) -> None:
    plain = train(LIGHTNING, tmp_path / "plain", out=None)
    with_it = train(LIGHTNING, tmp_path / "with", out="mine")
    assert plain.returncode == with_it.returncode == 0, with_it.stderr
    assert plain.stdout == with_it.stdout
    diagnosis = check_run(tmp_path / "with" / "mine")
    assert f"bottleneck: {diagnosis['verdict']['class']}: " in with_it.stderr
    with next((tmp_path / "with" / "logs").rglob("metrics.csv")).open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("bottleneck/step_ms/true")]
    assert [float(row["bottleneck/step_ms/true"]) for row in rows] == [
        pytest.approx(diagnosis["step"]["true_ms"])
    ]


def test_lightning_finds_it_by_itself_when_the_environment_asks(tmp_path: Path) -> None:
    # The entry points of pyproject.toml, as an installation writes them.
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    installed = tmp_path / "installed" / "as_installed-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: as-installed\nVersion: 1\n")
    name = "lightning.pytorch.callbacks_factory"
    lines = [f"{key} = {value}" for key, value in groups[name].items()]
    (installed / "entry_points.txt").write_text("\n".join([f"[{name}]", *lines, ""]))
    path = {"PYTHONPATH": str(installed.parent)}
    asked = train(LIGHTNING, tmp_path / "asked", out="environment", environment={**path, "BOTTLENECK": "1"})
    assert asked.returncode == 0, asked.stderr
    assert (tmp_path / "asked" / "root" / "bottleneck" / "run.json").exists()
    unasked = train(LIGHTNING, tmp_path / "unasked", out="environment", environment=path)
    assert unasked.returncode == 0, unasked.stderr
    assert not (tmp_path / "unasked" / "root" / "bottleneck").exists()
    assert asked.stdout == unasked.stdout


def test_a_capture_that_cannot_be_costs_the_training_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    done = train(LIGHTNING, tmp_path / "train", out=str(tmp_path / "file" / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("bottleneck: the capture has ended: ") == 1
    assert json.loads(done.stdout)[0] == 500


def test_a_training_that_fails_keeps_what_was_captured(tmp_path: Path) -> None:
    done = train(LIGHTNING, tmp_path / "train", out="mine", fail_at=30)
    assert done.returncode == 1
    assert "the script's own" in done.stderr
    facts = json.loads((tmp_path / "train" / "mine" / "run.json").read_bytes())
    assert any(window["name"] == "baseline" for window in facts["windows"])


@pytest.mark.parametrize("out", ["log", "history"])
def test_the_trainer_of_transformers_trains_as_without_and_logs_the_figures(tmp_path: Path, out: str) -> None:
    def without() -> bytes:
        plain = train(TRANSFORMERS, tmp_path / "plain", out=None)
        assert plain.returncode == 0, plain.stderr
        return plain.stdout.splitlines()[-2].encode()

    plain = once("plain-transformers", without).decode()
    with_it = train(TRANSFORMERS, tmp_path / "with", out=out)
    assert with_it.returncode == 0, with_it.stderr
    result, logged = with_it.stdout.splitlines()[-2:]
    assert plain == result
    diagnosis = check_run(tmp_path / "with" / "root" / "bottleneck")
    (entry,) = json.loads(logged)
    assert entry["bottleneck/step_ms/true"] == pytest.approx(diagnosis["step"]["true_ms"])


def test_fine_tuning_with_trl_goes_through_the_same_callback(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="needs trl")
    plain = train(SFT, tmp_path / "plain", out=None)
    with_it = train(SFT, tmp_path / "with", out="history")
    assert plain.returncode == with_it.returncode == 0, with_it.stderr
    result, logged = with_it.stdout.splitlines()[-2:]
    assert plain.stdout.splitlines()[-2] == result
    diagnosis = check_run(tmp_path / "with" / "root" / "bottleneck")
    (entry,) = json.loads(logged)
    assert entry["bottleneck/step_ms/true"] == pytest.approx(diagnosis["step"]["true_ms"])


@pytest.mark.slow
def test_what_the_page_of_clusters_shows_captures_both_workers_of_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray.train", reason="needs ray")
    page = (ROOT / "examples" / "clusters.md").read_text()
    (shown,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    done = train(f"SHOWN = {shown!r}\n{RAY}", tmp_path / "train", out=None)
    assert done.returncode == 0, done.stderr
    told = diagnose_paths([tmp_path / "train" / "run"])
    assert [rank.rank for rank in told.ranks] == [0, 1]
    assert told.step.true_ms


def test_a_tracker_of_accelerate_captures_and_the_other_trackers_have_the_figures(tmp_path: Path) -> None:
    plain = train(ACCELERATE, tmp_path / "plain", out=None)
    with_it = train(ACCELERATE, tmp_path / "with", out="mine")
    assert plain.returncode == with_it.returncode == 0, with_it.stderr
    result, logged = with_it.stdout.splitlines()[-2:]
    assert plain.stdout.splitlines()[-2] == result
    diagnosis = check_run(tmp_path / "with" / "mine", signal="optimizer+fetch")
    (entry,) = json.loads(logged)
    assert entry["bottleneck/step_ms/true"] == pytest.approx(diagnosis["step"]["true_ms"])
    assert f"bottleneck: {diagnosis['verdict']['class']}: " in with_it.stderr
