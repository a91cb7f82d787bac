"""Train a ResNet-18 on real handwritten digits, and export it: the classifier of tests/gpu/run.

    python train_resnet.py IMAGES.npz MODEL.onnx

Needs PyTorch and torchvision. `IMAGES.npz`: `images` float32 [N, 1, 28, 28] from 0 to 1 and `labels` int64 [N], none of which is in the example's
calibration or validation set (examples/mnist/digits.py writes it). The network takes 56 x 56 pixels, so that a run is more than its launch.
"""

import sys
import time

import numpy as np
import torch
from torch import nn
from torchvision.models import resnet18


def main(images, model):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = np.load(images)
    inputs = torch.from_numpy(data["images"]).to(device)
    labels = torch.from_numpy(data["labels"]).to(device)
    body = resnet18(num_classes=10)
    body.conv1 = nn.Conv2d(1, 64, 7, 2, 3, bias=False)
    network = nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"), body).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=0.02)
    epochs, batch = 12, 128
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, epochs * (len(labels) // batch))
    began = time.time()
    for epoch in range(epochs):
        order = torch.randperm(len(labels), device=device)
        total = 0.0
        for start in range(0, len(labels) - batch + 1, batch):
            chosen = order[start : start + batch]
            shifts = torch.randint(-2, 3, (2,)).tolist()
            loss = nn.functional.cross_entropy(network(torch.roll(inputs[chosen], shifts, (2, 3))), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        print("epoch %d: mean loss %.4f" % (epoch + 1, total / (len(labels) // batch)), flush=True)
    network.eval().cpu()
    torch.onnx.export(
        network,
        (inputs[:2].cpu(),),
        model,
        input_names=["x"],
        output_names=["logits"],
        opset_version=13,
        dynamo=False,
        dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}},
    )
    print("trained and exported in %.1f s on %s" % (time.time() - began, device), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
