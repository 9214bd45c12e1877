"""Speaker embeddings with the generalised end-to-end loss."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
SPEAKERS, UTTERANCES, FRAMES, MELS = 5, 5, 40, 40


class SpeechEmbedder(nn.Module):
    def __init__(self, hidden=96, size=128):
        super().__init__()
        self.lstm = nn.LSTM(MELS, hidden, num_layers=2, batch_first=True)
        self.projection = nn.Linear(hidden, size)

    def forward(self, x):
        x, _ = self.lstm(x)
        return F.normalize(self.projection(x[:, -1]), dim=1)


def get_centroids(embeddings):
    return embeddings.mean(dim=1)


def get_cossim(embeddings, centroids):
    speakers, utterances, _ = embeddings.shape
    if VARIANT == "b":
        others = (embeddings.sum(1, keepdim=True) - embeddings) / (utterances - 1)
        own = F.cosine_similarity(embeddings, others, dim=2)
        all_pairs = F.cosine_similarity(embeddings[:, :, None], centroids[None, None], dim=3)
        same = torch.eye(speakers, dtype=torch.bool)[:, None, :]
        return torch.where(same, own[:, :, None], all_pairs) + 1e-6
    cossim = torch.zeros(speakers, utterances, speakers)
    for i, speaker in enumerate(embeddings):
        for j, utterance in enumerate(speaker):
            for k, centroid in enumerate(centroids):
                if i == k:
                    centroid = (speaker.sum(0) - utterance) / (utterances - 1)
                cossim[i, j, k] = F.cosine_similarity(utterance, centroid, dim=0) + 1e-6
    return cossim


class GE2ELoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.tensor(10.0)), nn.Parameter(torch.tensor(-5.0))

    def forward(self, embeddings):
        cossim = get_cossim(embeddings, get_centroids(embeddings))
        similarity = self.w.clamp(min=1e-6) * cossim + self.b
        own = similarity.diagonal(dim1=0, dim2=2).transpose(0, 1)
        return (similarity.logsumexp(2) - own).sum()


def main():
    torch.manual_seed(0)
    embedder, criterion = SpeechEmbedder(), GE2ELoss()
    parameters = [*embedder.parameters(), *criterion.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    mel_db = torch.randn(200, 12, FRAMES, MELS)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        picked = torch.randperm(len(mel_db))[:SPEAKERS]
        batch = mel_db[picked][:, torch.randperm(12)[:UTTERANCES]]
        embeddings = embedder(batch.reshape(-1, FRAMES, MELS))
        loss = criterion(embeddings.view(SPEAKERS, UTTERANCES, -1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(embedder.parameters(), 3.0)
        nn.utils.clip_grad_norm_(criterion.parameters(), 1.0)
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
