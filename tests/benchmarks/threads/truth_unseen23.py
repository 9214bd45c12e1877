"""What is true of the twenty-third set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN23`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import ALLOCATOR, COMPUTE, HOST, INPUT, LAUNCH, Thread

UNSEEN23 = (
    Thread(
        id="Q01",
        source="dpeerlab/segger#49, pyg-team/pytorch_geometric#488 (all edges masked per tile; no figures)",
        script="unseen23/parking_tiles.py",
        machine="C2",
        verdicts=(INPUT,),
        # cure: sort the edges once (CSR) and take the rows of the district's nodes only.
        fixes=("FX107",),
        shorter={"STEPS": "160"},
        at=(
            "parking_tiles.py: chosen[kerbs] = True",
            "parking_tiles.py: return self.roads[:, chosen[here] & chosen[there]]",
            "parking_tiles.py: chosen = torch.zeros(KERBS",
            "parking_tiles.py: def inside(self, kerbs):",
            "parking_tiles.py: roads = self.local[self.inside(kerbs)]",
            "parking_tiles.py: facts, roads, full = next(districts)",
            "parking_tiles.py: yield from loader",
            "parking_tiles.py: loader = DataLoader(",
        ),
    ),
    Thread(
        id="Q02",
        source="isaac-sim/IsaacLab#5849 (stack of frames by torch.roll, as floats: 54.6 to 31.7 fps; merged)",
        script="unseen23/harbour_pilot.py",
        machine="C2",
        verdicts=(HOST, ALLOCATOR, COMPUTE),
        # cure: a ring: write the new picture over the oldest, and count from there.
        fixes=("FX224", "FX207", "FX514"),
        shorter={"STEPS": "68"},
        at=(
            "harbour_pilot.py: self.pictures = torch.roll(",
            "harbour_pilot.py: def add(self, picture):",
            "harbour_pilot.py: memory.add(harbour.picture()) @2",
        ),
    ),
    Thread(
        id="Q03",
        source="pathpy/pathpyG#217 (alias method in Python, draw by draw, or one torch.multinomial: 10x)",
        script="unseen23/parcel_routes.py",
        machine="C2",
        verdicts=(INPUT, HOST),
        # cure: draw all negatives of a batch with one call.
        fixes=("FX107", "FX514"),
        shorter={"STEPS": "150"},
        at=(
            "parcel_routes.py: return torch.tensor([self.one()",
            "parcel_routes.py: at = int(self.rng.random() * STOPS)",
            "parcel_routes.py: return at if self.rng.random()",
            "parcel_routes.py: def one(self):",
            "parcel_routes.py: def many(self, number):",
            "parcel_routes.py: draw.many(len(samples) * OTHERS)",
            "parcel_routes.py: for here, there, others in loader:",
            "parcel_routes.py: loader = DataLoader(",
        ),
    ),
    Thread(
        id="Q04",
        source="pytorch/pytorch#54147 (networks of an ensemble in a loop, or by baddbmm: very considerable)",
        script="unseen23/rain_committee.py",
        machine="C2",
        verdicts=(LAUNCH, HOST, COMPUTE),
        # cure: the weights of all members stacked, one batched product per layer.
        fixes=("FX510", "FX414"),
        shorter={"STEPS": "220"},
        at=(
            "rain_committee.py: return torch.stack([head(x) for head in self.heads])",
            "rain_committee.py: return self.members(self.past(days)",
            "rain_committee.py: loss = (model(past) - wanted)",
            "rain_committee.py: [nn.Sequential(h[0]",
            "rain_committee.py: loss.backward()",
        ),
    ),
    Thread(
        id="Q05",
        source="NVlabs/contact_graspnet#29, MegEngine/OMNet#5 (farthest points per sample: 3 to 180 s)",
        script="unseen23/tool_handles.py",
        machine="C2",
        verdicts=(INPUT,),
        # cure: points drawn at random, not the farthest from those taken.
        fixes=("FX107",),
        shorter={"STEPS": "70"},
        at=(
            "tool_handles.py: step = cloud - cloud[kept[n - 1]]",
            "tool_handles.py: distance = np.minimum(distance",
            "tool_handles.py: kept[n] = distance.argmax()",
            "tool_handles.py: for n in range(1, KEPT):",
            "tool_handles.py: def thin(self, cloud):",
            "tool_handles.py: cloud = cloud[self.thin(cloud)]",
            "tool_handles.py: clouds, tool, handle = next(batches)",
            "tool_handles.py: yield from loader",
            "tool_handles.py: loader = DataLoader(",
        ),
    ),
    Thread(
        id="Q06",
        source="fb.resnet.torch#147 (facebookarchive; all scores sorted for top-5: 2.7 to 0.9 s; merged)",
        script="unseen23/plant_album.py",
        machine="C2",
        verdicts=(HOST, COMPUTE),
        # cure: topk, which does not sort the rest. The metric may also be taken at times only.
        fixes=("FX331", "FX504"),
        shorter={"STEPS": "110"},
        at=(
            "plant_album.py: best = scores.sort(1",
            "plant_album.py: def add(self, scores, kinds):",
            "plant_album.py: score.add(scores.detach(), kinds)",
        ),
    ),
    Thread(
        id="Q07",
        source="facebookresearch/ParlAI#2103, pytorch/pytorch#20665 (GELU in pieces: 333 to 112 ms)",
        script="unseen23/museum_labels.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR),
        # cure: F.gelu, one operator.
        fixes=("FX314", "FX414"),
        shorter={"STEPS": "48"},
        at=(
            "museum_labels.py: return x * 0.5 * (1.0 + torch.erf(",
            "museum_labels.py: def bend(x):",
            "museum_labels.py: return x + self.down(bend(",
            "museum_labels.py: return self.read(self.norm(self.blocks(",
            "museum_labels.py: scores = model(whole.masked_fill(",
            "museum_labels.py: loss.backward()",
        ),
    ),
    Thread(
        id="Q08",
        source="TorchTrade/torchtrade#186 (small tensors and searchsorted per step: 4,000 to 9,500 fps)",
        script="unseen23/battery_trader.py",
        machine="C2",
        verdicts=(HOST, LAUNCH),
        # cure: rows looked up by their number, as plain numbers; one tensor per view.
        fixes=("FX514", "FX510"),
        shorter={"STEPS": "150"},
        at=(
            "battery_trader.py: return self.table[torch.searchsorted(",
            "battery_trader.py: def at(self, hour):",
            "battery_trader.py: level, worth = torch.tensor([self.level])",
            "battery_trader.py: clock = torch.tensor([sun, east, north]",
            "battery_trader.py: return torch.cat([torch.tensor([price]",
            "battery_trader.py: price, sun, east, north = self.prices.at(self.hour)",
            "battery_trader.py: def view(self):",
            "battery_trader.py: return self.money + self.level * float(self.prices.at(",
            "battery_trader.py: price, sun = float(self.prices.at(self.hour)[0])",
            "battery_trader.py: views.append(torch.stack([house.view() for house in houses]))",
            "battery_trader.py: torch.tensor([h.step(a) for h, a in zip(houses",
        ),
    ),
    Thread(
        id="Q09",
        source="BindsNET/bindsnet#310 (monitor joined anew by torch.cat at each tick; a list; merged)",
        script="unseen23/retina_cells.py",
        machine="C2",
        verdicts=(HOST, ALLOCATOR, COMPUTE),
        # cure: keep the last ticks in a list (deque), joined only when they are read.
        fixes=("FX504", "FX224", "FX207", "FX211"),
        shorter={"STEPS": "190"},
        at=(
            "retina_cells.py: self.kept = torch.cat((self.kept[1:]",
            "retina_cells.py: def add(self, spikes):",
            "retina_cells.py: self.record.add(spikes)",
        ),
    ),
    Thread(
        id="Q10",
        source="WatChMaL/WatChMaL#74 (hits by memmap or all in memory: training speed the same; merged)",
        script="unseen23/ray_showers.py",
        machine="C2",
        verdicts=(COMPUTE, ALLOCATOR),
        # the loading of a batch, mapped or in memory, is a small part of the step.
        not_verdicts=(INPUT,),
        not_fixes=("FX107", "FX223", "FX101", "FX106", "FX111"),
        shorter={"STEPS": "70"},
    ),
)
