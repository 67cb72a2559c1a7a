"""Trains a PyTorch module on handwritten digits on several workers: dsgd run -n 2 -- python digits_module.py digits.csv

Comments mark the lines that make it a distributed trainer.
"""

import json
import sys

import dsgd
import dsgd.torch
import torch
from torch import nn

rows = torch.tensor([[int(word) for word in line.split(",")] for line in open(sys.argv[1])])
pixels, labels = rows[:, :64].float().reshape(-1, 1, 8, 8) / 16, rows[:, 64]
test = torch.arange(len(rows)) % 5 == 0
train_pixels, train_labels = pixels[~test], labels[~test]

torch.set_num_threads(1)
torch.manual_seed(1)
module = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 10)
)
with dsgd.init() as session:  # joins the job that `dsgd run` describes
    model = dsgd.torch.DistributedDataParallel(module, session)  # all workers hold rank 0's parameters
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.3)
    shard = session.shard(len(train_labels), seed=1)  # this worker's part of the data

    def update():  # applies the mean gradient, as every worker must do in each step
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()

    for epoch in range(6):
        model.train()
        for batch in shard.batches(16, epoch):
            optimizer.zero_grad()
            model.set_weight(len(batch))  # the mean counts each worker by its samples
            loss = nn.functional.cross_entropy(model(train_pixels[batch]), train_labels[batch])
            loss.backward()  # ends with the mean gradient of all workers in .grad
            update()
        model.join(update)  # until the other workers have no batch left either
        scheduler.step()
        model.eval()
        with torch.no_grad():
            accuracy = 100 * (model(pixels[test]).argmax(1) == labels[test]).float().mean().item()
        print(json.dumps({"epoch": epoch + 1, "loss": loss.item(), "accuracy": accuracy}), flush=True)
    digest = f"{session.digest():016x}"
    print(json.dumps({"done": True, "rank": session.rank, "accuracy": accuracy, "digest": digest}), flush=True)
