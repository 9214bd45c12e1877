"""What is true of the thirty-seventh set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN37`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN37 = (
    Thread(
        id="MM01",
        source="facebookresearch/ParlAI#1064, #1081 (texts cut anew each time; kept: 335 to 211 s)",
        script="unseen37/parrot_replies.py",
        machine="C2",
        verdicts=(HOST, INPUT),
        # cure: keep the indices of each text that was cut once (a cache around txt2vec)
        fixes=("FX358", "FX326", "FX107"),
        shorter={"STEPS": "450"},
        at=(
            "parrot_replies.py: return tuple(self.tok2ind.get(token, 1) for token in self.tokenize(text))",
            "parrot_replies.py: return [token for token in RETOK.findall(text)",
            "parrot_replies.py: text = text.replace(",
            "parrot_replies.py: def tokenize(self, text)",
            "parrot_replies.py: def txt2vec(self, text)",
            "parrot_replies.py: contexts = to_bags([book.txt2vec(",
            "parrot_replies.py: replies = to_bags([book.txt2vec(",
            "parrot_replies.py: def vectorize(book, acts)",
            "parrot_replies.py: contexts, replies, labels = vectorize(book, chosen)",
        ),
    ),
    Thread(
        id="MM02",
        source="NVIDIA/Megatron-Energon#40 (gc.collect() in the loader without freeze; up to 5x; merged)",
        script="unseen37/tundra_sensors.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: gc.freeze() before the loop, so that the collections do not walk what stays anyway
        fixes=("FX505", "FX518"),
        shorter={"STEPS": "225"},
        at=(
            "tundra_sensors.py: gc.collect(2)",
            "tundra_sensors.py: class MemoryKeeper(IterableDataset)",
            "tundra_sensors.py: if count >= self.every_n_iter",
            "tundra_sensors.py: for sample in self.dataset",
            "tundra_sensors.py: windows = MemoryKeeper(StationWindows(series, index), TIDY_EVERY",
            "tundra_sensors.py: x, y = next(loader)",
        ),
    ),
    Thread(
        id="MM03",
        source="ultralytics/ultralytics#20469, #20480 (names through CLIP per batch; kept: 4x; merged)",
        script="unseen37/orchard_labels.py",
        machine="C2",
        verdicts=(COMPUTE,),
        # cure: encode each name once before training and look its features up
        fixes=("FX110", "FX326", "FX358"),
        shorter={"STEPS": "275"},
        at=(
            "orchard_labels.py: features = self.text_model.encode_text(texts)",
            "orchard_labels.py: features = self.body(self.words(self.tokenize(texts)))",
            "orchard_labels.py: def encode_text(self, texts)",
            "orchard_labels.py: def preprocess_batch(self, batch)",
            "orchard_labels.py: batch = self.preprocess_batch(batch)",
        ),
    ),
    Thread(
        id="MM04",
        source="dmlc/dgl#2716 (a batch as a list of scalar tensors; one tensor: 3x the loader; merged)",
        script="unseen37/harbor_citations.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: an iterable dataset hands out slices of the tensor of nodes, whole batches
        fixes=("FX112",),
        shorter={"STEPS": "450"},
        at=(
            "harbor_citations.py: seeds = items if torch.is_tensor(items) else torch.tensor(items)",
            "harbor_citations.py: def collate(self, items)",
            "harbor_citations.py: sampler=PaperOrder(",
            "harbor_citations.py: def make_loader(papers, collator)",
            "harbor_citations.py: loader = make_loader(papers",
            "harbor_citations.py: for own, near, topic in loader",
        ),
    ),
    Thread(
        id="MM05",
        source="rs-station/careless#77 (test data at each step: at least twice as slow; every tenth: merged)",
        script="unseen37/crystal_spots.py",
        machine="C2",
        verdicts=(HOST, COMPUTE),
        # cure: look at the test data at every tenth step only
        fixes=("FX511",),
        shorter={"STEPS": "400"},
        at=(
            "crystal_spots.py: metrics.update(test_metrics(model, test, test_draws))",
            "crystal_spots.py: def test_metrics(model, data, generator)",
            "crystal_spots.py: nll, kl = model(data, generator)",
            "crystal_spots.py: predicted, _ = model.predict(data, generator)",
            "crystal_spots.py: if step % VALIDATION_FREQUENCY == 0",
            "crystal_spots.py: VALIDATION_FREQUENCY = 1 if",
        ),
    ),
    Thread(
        id="MM06",
        source="pytorch/pytorch#134191 (a debugger's trace function left on; measured by its author)",
        script="unseen37/moss_tiles.py",
        machine="C2",
        verdicts=(HOST,),
        # cure: do not attach the console; no title says tracing, the nearest is that of the profiler
        fixes=("FX519",),
        shorter={"STEPS": "450"},
        at=(
            "moss_tiles.py: sys.settrace(self.on_call)",
            "moss_tiles.py: def attach(self)",
            "moss_tiles.py: def on_line(self, frame, event, arg)",
            "moss_tiles.py: def on_call(self, frame, event, arg)",
            "moss_tiles.py: def lines_of(self, code)",
            "moss_tiles.py: def thread_state(self)",
            "moss_tiles.py: state, condition = self.thread_state(), self.lines_of(frame.f_code)",
            'moss_tiles.py: wanted = state["paused"] or state["until"] is frame',
            "moss_tiles.py: .attach()",
        ),
    ),
    Thread(
        id="MM07",
        source="strands-labs/robots#112 (cameras drawn for a policy that reads none: 93 %; fixed)",
        script="unseen37/gripper_lamps.py",
        machine="C2",
        verdicts=(HOST,),
        # cure: draw no pictures where the policy does not ask for them
        fixes=("FX330",),
        shorter={"STEPS": "500"},
        at=(
            "gripper_lamps.py: observation = self.sim.get_observation(skip_images=self.skip_images)",
            'gripper_lamps.py: observation["observation.images." + camera] = self.render(camera)',
            "gripper_lamps.py: def render(self, camera)",
            "gripper_lamps.py: picture += np.exp(-((self.grid - point) ** 2)",
            "gripper_lamps.py: return (255 * np.clip(picture, 0, 1))",
            "gripper_lamps.py: def get_observation(self, skip_images=False)",
            "gripper_lamps.py: for point in np.concatenate([self.lamps, self.tip()[None]])",
            "gripper_lamps.py: def run(self)",
            "gripper_lamps.py: loss = update(policy, optimizer, *runner.run())",
        ),
    ),
    # trap: gradients are zeroed, not dropped; tested without any improvement (v100), closed
    Thread(
        id="MM08",
        source="bonlime/pytorch-tools#94 (grad = None instead of zero_grad: no improvement, ~1 % worse)",
        script="unseen37/violin_bows.py",
        machine="C2",
        not_fixes=("FX313",),
        not_verdicts=(HOST, INPUT, LAUNCH, SYNC),
        shorter={"STEPS": "400"},
    ),
)
