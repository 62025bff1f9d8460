"""Exported files give the probabilities of the model they were made from, from uint8 pixels."""

import io
import json
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import fedaf
from fedaf.protocol import Key
from fedaf.runs import export as exporting
from fedaf.runs.export import DESCRIPTION, export
from support import zoo
from support.datafiles import pixels
from support.errors import raises
from support.small import SMALL

TINY = {**SMALL, "rounds": 1, "local_epochs": 2, "lr": 0.3, "method": "fedavg"}
IMAGES = pixels(100, 1, 8, 8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained ConvNet."""
    out = tmp_path_factory.mktemp("export") / "run"
    fedaf.run(**TINY, out=out)
    return fedaf.load(out)


@pytest.fixture(scope="module", params=["convnet", "resnet18", "custom", "fedbn"])
def model(request, tmp_path_factory, trained):
    """A model of each kind."""
    kinds = {"custom": {"model": "support.zoo:mlp"}, "fedbn": {"method": "fedbn"}}
    if request.param == "convnet":
        return trained
    if request.param == "resnet18":  # with random weights, because training it takes long
        network = zoo.build("resnet18", trained.task, Key(1), depth=3, width=8, norm="batch").eval()
        return replace(trained, module=network)
    out = tmp_path_factory.mktemp("export") / "run"
    fedaf.run(**{**TINY, **kinds[request.param]}, out=out)
    return fedaf.load(out, client="client-1" if request.param == "fedbn" else None)


def test_torch_and_onnx_give_the_probabilities_of_the_model(model):
    expected = model.predict_proba(IMAGES)
    program = torch.export.load(io.BytesIO(export(model, "torch"))).module()
    session = onnxruntime.InferenceSession(export(model, "onnx"), providers=["CPUExecutionProvider"])
    for count in (100, 1):  # any number of images
        with torch.no_grad():
            by_torch = program(torch.from_numpy(IMAGES[:count])).numpy()
        [by_onnx] = session.run(["probabilities"], {"images": IMAGES[:count]})
        for found in (by_torch, by_onnx):
            assert (found.shape, found.dtype) == ((count, 10), np.float32)
            assert np.abs(found - expected[:count]).max() < 1e-4
    assert np.ptp(expected, axis=0).max() > 0.01, "the images must differ"


def test_class_names_travel_with_the_file(trained):
    extra = {DESCRIPTION: ""}
    torch.export.load(io.BytesIO(export(trained, "torch")), extra_files=extra)
    session = onnxruntime.InferenceSession(export(trained, "onnx"), providers=["CPUExecutionProvider"])
    in_onnx = session.get_modelmeta().custom_metadata_map
    described = json.loads(extra[DESCRIPTION])
    assert described == {name: json.loads(in_onnx[name]) for name in described}
    assert described["classes"] == list("0123456789")
    assert (described["image_shape"], described["round"], described["method"]) == ([1, 8, 8], 1, "fedavg")


def test_the_model_itself_is_left_as_it_was(trained):
    before = {name: (t.clone(), t.stride()) for name, t in trained.module.state_dict().items()}
    export(trained, "torch")
    after = trained.module.state_dict()
    assert all(torch.equal(t, after[name]) and after[name].stride() == stride for name, (t, stride) in before.items())


def test_an_unknown_format_is_refused(trained):
    with raises("FEDAF-EXPORT-FORMAT") as refused:
        export(trained, "onx")
    assert "did you mean 'onnx'" in str(refused.value)


def test_onnx_without_its_packages_says_how_to_install_them(trained, monkeypatch):
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with raises("FEDAF-EXPORT-ONNX") as refused:
        export(trained, "onnx")
    assert "pip install onnx" in str(refused.value)


class DependsOnValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = zoo.mlp(1, 8, 10)

    def forward(self, images):
        return self.inner(images) * (2 if images[0, 0, 0, 0].item() > 1e6 else 1)


def test_a_model_that_cannot_be_exported_is_one_sentence(tmp_path):
    fedaf.run(**TINY, model=DependsOnValues(), out=tmp_path / "run")
    with raises("FEDAF-EXPORT-FAILED") as refused:
        export(fedaf.load(tmp_path / "run", model=DependsOnValues()), "torch")
    assert "\n" not in str(refused.value)
