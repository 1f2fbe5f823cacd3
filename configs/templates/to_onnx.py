# to_onnx.py: python to_onnx.py RUN FILE.onnx [pooled | logits | encode]
import sys

import torch

import transfer


class Method(torch.nn.Module):  # pooled features, classifier's logits, or what `reid` ranks before normalization
    def __init__(self, model, name="pooled"):
        super().__init__()
        self.model, self.name = model, name

    def forward(self, images):
        return getattr(self.model, self.name)(images)


run = transfer.load(sys.argv[1])[0]
model = Method(run.backbone() if sys.argv[3:] == [] else run.model(), *sys.argv[3:]).eval()
images = torch.rand(2, 3, *run.record.details["preprocessing"]["size"])
batch = torch.export.Dim("batch", min=1, max=1024)
with torch.no_grad():
    torch.onnx.export(model, (images,), sys.argv[2], dynamic_shapes=({0: batch},), dynamo=True)
