"""What is true of the forty-third set of unseen threads, in the form of `truth.py`.

In: nothing. Out: `UNSEEN43`. Of the catalogue only the titles were seen when this was written.
"""

from __future__ import annotations

from truth import COMPUTE, HOST, INPUT, LAUNCH, SYNC, Thread

UNSEEN43 = (
    Thread(
        id="SS01",
        source="jixunbo/LightMBN#33 (pairs mined anchor by anchor, builtin min and max: 10 days to 1)",
        script="unseen43/ferry_lantern.py",
        machine="G",
        verdicts=(SYNC, LAUNCH, HOST),
        # cure: mine the pairs of all anchors at once with masks, amin and amax
        fixes=("FX532", "FX502", "FX510"),
        shorter={"STEPS": "65"},
        at=(
            "ferry_lantern.py: for i in range(similarity.shape[0])",
            "ferry_lantern.py: positive = similarity[i][labels == labels[i]]",
            "ferry_lantern.py: positive = positive[positive < 1 - self.epsilon]",
            "ferry_lantern.py: negative = similarity[i][labels != labels[i]]",
            "ferry_lantern.py: hard_negative = negative[negative + self.margin > min(positive)]",
            "ferry_lantern.py: hard_positive = positive[positive - self.margin < max(negative)]",
            "ferry_lantern.py: return self.pair_loss(similarity, labels)",
            "ferry_lantern.py: loss = loss + sum(metric_loss(branch, labels) for branch in features)",
        ),
    ),
    Thread(
        id="SS02",
        source="ikostrikov/pytorch-a2c-ppo-acktr-gail#137 (GRUCell in a loop; GRU: 380 to 1,000 fps; merged)",
        script="unseen43/copper_kite.py",
        machine="G",
        verdicts=(LAUNCH, HOST),
        # cure: one call of nn.GRU for all steps between two ends of episodes
        fixes=("FX513", "FX375", "FX510"),
        shorter={"STEPS": "260"},
        at=(
            "copper_kite.py: for t in range(length):",
            "copper_kite.py: hidden = self.gru(x[t], hidden * masks[t])",
            "copper_kite.py: x, hidden = self.forward_memory(x, hidden, masks)",
        ),
    ),
    Thread(
        id="SS03",
        source="uma-pi1/kge#161, #71 (negatives triple by triple: 65 s an epoch; by batch: 14 s published)",
        script="unseen43/quarry_moss.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: score each pair against all unique entities by a matrix product, then gather
        fixes=("FX337", "FX351", "FX358"),
        shorter={"STEPS": "220"},
        at=(
            "quarry_moss.py: repeated = triples.repeat_interleave(columns, dim=0)",
            "quarry_moss.py: return self.model.score_spo(*parts).view(rows, columns)",
            "quarry_moss.py: s_emb, p_emb, o_emb = self.entities.embed(s)",
            "quarry_moss.py: s_all = torch.cat((s_emb, s_emb), dim=1)",
            "quarry_moss.py: p_all = torch.cat((p_re, p_emb, -p_im), dim=1)",
            "quarry_moss.py: o_all = torch.cat((o_emb, o_im, o_re), dim=1)",
            "quarry_moss.py: return (s_all * o_all * p_all).sum(dim=1)",
            "quarry_moss.py: return self.table(indexes)",
            "quarry_moss.py: scores = self.slot_scores(triples, negatives[position], slot)",
        ),
    ),
    Thread(
        id="SS04",
        source="thuml/Time-Series-Library#324, #269 (tests in batches of 1: 20 times an epoch; changed)",
        script="unseen43/tidal_orchard.py",
        machine="G",
        verdicts=(HOST, LAUNCH),
        # cure: test with batches as large as those of the training (or not at all while training)
        fixes=("FX511", "FX316"),
        shorter={"STEPS": "200"},
        at=(
            'tidal_orchard.py: test_loss = self.vali(self.loaders["test"])',
            "tidal_orchard.py: batch_size = 1 if",
            "tidal_orchard.py: for batch in loader:",
            "tidal_orchard.py: outputs, truth = self.forecast(batch)",
            "tidal_orchard.py: total_loss.append(self.criterion(outputs.detach().cpu()",
        ),
    ),
    Thread(
        id="SS05",
        source="modelscope/ms-swift#9874 (old log-probabilities by a pass of the same policy: 32.5 %)",
        script="unseen43/amber_ledger.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: with one update per batch take the detached log-probabilities of the training pass
        fixes=("FX326",),
        shorter={"STEPS": "130"},
        at=(
            'amber_ledger.py: batch["old_logps"] = self.per_token_logps(tokens)',
            "amber_ledger.py: batch = self.prepare(step)",
        ),
    ),
    Thread(
        id="SS06",
        source="WorldCereal/presto-worldcereal#9, #2 (rows read value by value, no workers; merged)",
        script="unseen43/barley_field.py",
        machine="G",
        verdicts=(INPUT,),
        # cure: make a dict of each row once, and load with workers
        fixes=("FX101", "FX107"),
        shorter={"STEPS": "60"},
        at=(
            "barley_field.py: workers = 0 if",
            "barley_field.py: FieldDataset(make_table()),",
            "barley_field.py: values = np.array([float(row[name.format(t)]) for t in range(MONTHS)])",
            "barley_field.py: def row_to_arrays(row):",
            "barley_field.py: data, gaps, where, month = self.row_to_arrays(self.table[index])",
            "barley_field.py: for part in next(batches)",
            "barley_field.py: yield from loader",
        ),
    ),
    Thread(
        id="SS07",
        source="pytorch/rl#1153, #1052, #1141 (advantages by a matrix of discounts for each env; merged)",
        script="unseen43/willow_court.py",
        machine="G",
        verdicts=(COMPUTE,),
        # cure: cut the rows at the ends of trajectories, pad, and use one series of discounts for all
        fixes=("FX351", "FX373"),
        shorter={"STEPS": "260"},
        at=(
            "willow_court.py: rolled = F.pad(decay, (0, length))[:, later]",
            "willow_court.py: products = rolled.cumprod(dim=-1)",
            "willow_court.py: weights = torch.cat([torch.ones_like(products[..., :1])",
            "willow_court.py: windows = F.pad(td0, (0, length - 1)).unfold(-1, length, 1)",
            "willow_court.py: return (windows * weights).sum(dim=-1)",
            'willow_court.py: advantage = discounted_sums(td0, batch["done"])',
        ),
    ),
    Thread(
        id="SS08",
        source="LibreYOLO/libreyolo#726 (trap: item() per matched pair, 270 fewer: 405 ms as before)",
        script="unseen43/gannet_rock.py",
        machine="G",
        shorter={"STEPS": "50"},
        at=(),
        not_fixes=("FX501", "FX502", "FX503"),
        not_verdicts=(SYNC, INPUT),
    ),
)
