"""``fedaf bench``: ours and the reference do the same work, and the figures are correct."""

import itertools
import json
import os
from functools import partial
from pathlib import Path

import pytest
import torch

from fedaf.bench import reference, suite
from fedaf.bench import timing as bench_timing
from fedaf.bench.process import ReferenceProcess
from fedaf.bench.suite import Bench, Benchmark, Figures, forward_flop
from fedaf.bench.timing import MemoryMeter, Peaks, Timing, interleaved, measure_peaks, timed
from fedaf.condensation.condenser import Objective, condense
from fedaf.condensation.jobs import Job
from fedaf.condensation.options import CondensationOptions
from fedaf.condensation.resampling import Blended
from fedaf.condensation.terms import Term, features_distance, targets_distance
from fedaf.data.augmentation import augment, augmentation_parameters, draws_of
from fedaf.data.pixels import normalise
from fedaf.engine import EagerEngine
from fedaf.models.backbone import Backbone
from fedaf.models.convnet import ConvNet
from fedaf.models.weights import FreshWeights
from fedaf.protocol import FedafError, Key, Shard, Task
from fedaf.training.fit import fit
from support.commandline import assert_one_sentence

CPU = torch.device("cpu")
TASK = Task("bench", 3, 16, 8, 4, (0.5,) * 3, (0.25,) * 3)
FILTERS = 8
KEYS = ["name", "ours_ms", "reference_ms", "ratio", "flop", "peak_share", "memory_mb", "device"]
NAMES = ["condense/client", "condense/pairs", "server/step", "local/step", "round/fedaf", "scale/2", "scale/5"]


def plain_network(seed: int) -> reference.PlainConvNet:
    """Make a network whose running statistics differ from those of a new one."""
    with Key(seed).seeded():
        network = reference.new_network(TASK, filters=FILTERS, device=CPU)
        for name, statistic in network.named_buffers():
            if name.endswith("mean"):
                statistic.uniform_(-0.2, 0.2)
            elif name.endswith("var"):
                statistic.uniform_(0.05, 0.15)
    return network


def same_network(plain: reference.PlainConvNet) -> ConvNet:
    network = ConvNet(*TASK.image_shape, TASK.num_classes, filters=FILTERS)
    network.load_state_dict(plain.state_dict())
    return network


def random_pixels(count: int) -> torch.Tensor:
    return torch.randint(256, (count, *TASK.image_shape), dtype=torch.uint8, generator=Key(1).torch())


@pytest.mark.parametrize("lambda_loc", [0.0, 0.5])
def test_reference_and_ours_minimise_the_same_loss_and_take_the_same_step(lambda_loc):
    classes, ipc, batch = [0, 2], 3, 6
    plain = plain_network(0)
    ours = same_network(plain)
    pixels = random_pixels(2)  # a class is one image over and over, so that both draw the same
    shard = Shard(pixels.repeat_interleave(4, 0), torch.tensor(classes).repeat_interleave(4), TASK.num_classes)
    start = torch.randn(2, ipc, *TASK.image_shape, generator=Key(2).torch())
    guide = torch.randn(2, TASK.num_classes, generator=Key(3).torch()) if lambda_loc else None
    options = CondensationOptions(ipc=ipc, real_batch=batch, local_steps=1, image_lr=5.0)
    terms = (Term("dm", features_distance), Term("cdc", targets_distance, lambda_loc or None))
    (condensed,) = condense(
        [Job(shard, classes, start, Key(0), guide)],
        Objective(Backbone(ours, TASK, CPU), Blended(ours.state_dict(), FreshWeights(ours), Key(0), 1.0), terms),
        options=options,
        task=TASK,
        engine=EagerEngine(CPU),
    )

    real = [normalise(image.expand(4, -1, -1, -1), TASK.mean, TASK.std) for image in pixels]
    loss = reference.matching_loss(plain, real, start, guide=guide, lambda_loc=lambda_loc)
    assert loss > 0.01
    assert float(loss) == pytest.approx(2 * (condensed.losses["dm"] + lambda_loc * condensed.losses["cdc"]), rel=1e-4)
    moved = reference.condense(
        real,
        start,
        network=lambda: plain,
        options=options,
        guide=guide,
        lambda_loc=lambda_loc,
    )
    assert (moved - start).abs().max() > 1e-3
    torch.testing.assert_close(moved - start, condensed.images - start, rtol=1e-3, atol=1e-6)


def test_reference_and_ours_blend_a_new_network_with_the_model_alike():
    model, fresh = plain_network(0), plain_network(1)
    expected = {name: torch.lerp(fresh.state_dict()[name], w, 0.9) for name, w in model.named_parameters()}
    found = reference.resampled(model, fresh, 0.9).state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], expected.get(name, tensor))


def test_reference_and_ours_train_alike(monkeypatch):
    monkeypatch.setattr(reference, "augment", lambda images: images)
    pixels, labels = random_pixels(12), torch.arange(12) % TASK.num_classes
    plain = plain_network(0).requires_grad_()
    ours = same_network(plain)
    fit(
        *(ours, pixels, labels),
        task=TASK,
        epochs=3,
        batch_size=12,
        lr=0.1,
        momentum=0.9,
        key=Key(0),
        engine=EagerEngine(CPU),
    )
    seen = normalise(pixels, TASK.mean, TASK.std)
    options = CondensationOptions(server_epochs=3, server_batch=12, server_lr=0.1, server_momentum=0.9)
    reference.train(plain, seen, labels, options)
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(plain.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)


def test_the_augmentation_of_the_reference_is_as_strong_as_ours():
    left, right = torch.ones(3, 16, 8), -torch.ones(3, 16, 8)
    images = torch.cat([left, right], 2).expand(3000, -1, -1, -1)
    names = reference.AUGMENTATION
    with Key(0).seeded():
        ours = augment(images, names, augmentation_parameters(names, torch.rand(len(images), draws_of(names))))
        plain = reference.augment(images)
    for measure in (lambda x: x.mean((1, 2, 3)), lambda x: x.std((1, 2, 3)), lambda x: x[..., :8].mean((1, 2, 3))):
        assert float(measure(plain).mean()) == pytest.approx(float(measure(ours).mean()), abs=0.1)
        assert float(measure(plain).std()) == pytest.approx(float(measure(ours).std()), abs=0.1)


def test_ours_and_the_reference_are_timed_in_turn_and_medians_are_returned(monkeypatch):
    calls: list[str] = []
    seconds = {"ours": iter([1, 9, 2]), "reference": iter([7, 4, 4])}
    clock = 0

    def call(name: str) -> None:
        nonlocal clock
        calls.append(name)
        clock += next(seconds[name])

    monkeypatch.setattr(bench_timing.time, "perf_counter", lambda: clock)
    timing = interleaved(*(partial(timed, partial(call, name), CPU) for name in ("ours", "reference")), 3)
    assert calls == ["ours", "reference"] * 3
    assert timing == Timing(2, 4)


def test_the_first_calls_are_not_timed(monkeypatch):
    calls: list[str] = []
    monkeypatch.setattr(suite, "timed", lambda action, device: calls.append("clock") or timed(action, device))
    benchmark = Benchmark(
        "a/b", "step", 1.0, 1, 2, lambda: lambda: calls.append("ours"), lambda: lambda: calls.append("reference")
    )
    benchmark.measure(CPU)
    assert calls == ["ours", "clock", "reference"] + ["clock", "ours", "clock", "reference"] * 2


def test_figures_are_for_one_unit():
    benchmark = Benchmark("a/b", "step", 50.0, 4, 1, lambda: int, lambda: int)
    figures = benchmark.figures(Timing(2.0, 6.0), 3_000_000, device=CPU, peak=1000.0)
    assert figures == Figures("a/b", 500.0, 1500.0, 3.0, 50.0, 0.1, 3.0, "cpu")


def test_the_best_peaks_of_a_run_count():
    assert Peaks(1, 5).or_better(Peaks(2, 4)) == Peaks(2, 5)


def test_the_reference_has_tf32_and_leaves_the_flags_as_they_were():
    def flags() -> list[bool]:
        return [torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32]

    before, seen = flags(), []
    reference.tf32()(lambda: seen.extend(flags()))()
    assert not all(before)
    assert all(seen)
    assert flags() == before


@pytest.mark.parametrize(("side", "filters", "classes"), [(32, 128, 10), (16, 8, 3)])
def test_the_operations_of_a_convnet_are_those_of_the_closed_form(side, filters, classes):
    task = Task("t", 3, side, side, classes, (0.5,) * 3, (0.25,) * 3)
    area = side * side
    convolutions = 2 * 9 * filters * (3 * area + filters * area // 4 + filters * area // 16)
    expected = convolutions + 2 * filters * area // 64 * classes
    assert forward_flop(ConvNet(*task.image_shape, classes, filters=filters), task) == expected


def test_peaks_count_two_operations_for_each_product_and_bytes_read_and_written(monkeypatch):
    clock = itertools.count(step=0.5)
    monkeypatch.setattr(bench_timing.time, "perf_counter", lambda: next(clock))
    assert measure_peaks(CPU, torch.float32, side=8, copied=100) == Peaks(flop=2 * 2 * 8**3, bytes=2 * 200)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux reports it")
def test_memory_on_a_cpu_is_the_peak_since_the_meter_was_created():
    torch.ones(100 << 20, dtype=torch.uint8)  # freed at once, as large blocks are
    meter = MemoryMeter(CPU)
    torch.ones(60 << 20, dtype=torch.uint8)
    assert meter.read() == pytest.approx(60 << 20, rel=0.2)


def test_memory_is_none_if_the_platform_does_not_report_it(monkeypatch):
    monkeypatch.setattr(bench_timing, "_reset_peak", lambda: False)
    assert MemoryMeter(CPU).read() is None


def test_the_command_prints_a_table_and_writes_every_figure(call, tmp_path):
    code, out, err = call("bench", "--quick", "--device", "cpu", "--threads", 1, "--json", "figures.json")
    assert (code, err) == (0, "")
    records = json.loads((tmp_path / "figures.json").read_text())
    assert [record["name"] for record in records] == NAMES
    for record in records:
        assert list(record) == KEYS
        assert record["ratio"] == pytest.approx(record["reference_ms"] / record["ours_ms"])
        assert min(record[key] for key in ("ours_ms", "reference_ms", "flop", "peak_share")) > 0
        assert record["memory_mb"] is None or record["memory_mb"] > 0
        assert record["device"] == "cpu"
        assert record["name"] in out
    for text in ("engine eager", "precision fp32", "threads 1", f"torch {torch.__version__}", "TFLOP/s", "GB/s"):
        assert text in out


def test_figures_are_compared_with_an_earlier_file(call, tmp_path):
    line = ("bench", "local", "--quick", "--device", "cpu", "--repeats", 2)
    assert call(*line, "--json", "old.json")[0] == 0
    (old,) = json.loads((tmp_path / "old.json").read_text())
    old["ours_ms"], old["device"] = 12345.678, "another GPU"
    (tmp_path / "old.json").write_text(json.dumps([old]))
    code, out, err = call(*line, "--json", "new.json", "--compare", "old.json")
    assert (code, err) == (0, "")
    (new,) = json.loads((tmp_path / "new.json").read_text())
    (row,) = [row for row in out.splitlines() if row.startswith("local/step")]
    assert f"12345.678 {12345.678 / new['ours_ms']:7.2f} " in row
    assert "another device: another GPU" in out


def test_a_benchmark_that_the_earlier_file_lacks_is_shown_without_comparison(call, tmp_path):
    (tmp_path / "old.json").write_text('[{"name": "server/step", "ours_ms": 1.0, "device": "cpu"}]')
    code, out, _ = call("bench", "local", "--quick", "--device", "cpu", "--compare", "old.json")
    assert code == 0
    assert "earlier ms" in out
    assert "another device" not in out


def test_slow_benchmarks_are_repeated_twice_and_fast_ones_as_often_as_asked():
    for seconds, expected in ((5.0, 2), (1.9, 3), (0.1, 7)):
        calls: list[int] = []
        interleaved(lambda: calls.append(1) or seconds, lambda: 1.0, 7, limit=8.0)  # noqa: B023
        assert len(calls) == expected


def test_the_reference_is_timed_in_another_process_that_ends_with_the_block():
    with ReferenceProcess(partial(Bench, "local", device="cpu", quick=True)) as elsewhere:
        assert elsewhere._process.pid != os.getpid()
        assert 0 < elsewhere.time(0) < 60
        assert 0 < elsewhere.time(0) < 60
    assert elsewhere._process.exitcode == 0


def test_a_reference_process_that_was_killed_is_reported():
    with ReferenceProcess(partial(Bench, "local", device="cpu", quick=True)) as elsewhere:
        elsewhere.time(0)
        elsewhere._process.kill()
        with pytest.raises(FedafError, match="FEDAF-BENCH-FAILED"):
            elsewhere.time(0)


def test_one_group_is_measured_alone(call, tmp_path):
    code, out, _ = call("bench", "local", "--quick", "--device", "cpu", "--repeats", 3, "--json", "figures.json")
    assert code == 0
    assert [record["name"] for record in json.loads((tmp_path / "figures.json").read_text())] == ["local/step"]
    assert "condense" not in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["sever"], ["'sever'", "'server'", "condense", "[FEDAF-BENCH-UNKNOWN]"]),
        (["--device", "tpu"], ["'tpu'", "auto, cpu", "[FEDAF-DEVICE-UNKNOWN]"]),
        (["--engine", "fast"], ["'fast'", "eager, cuda-graphs", "[FEDAF-ENGINE-UNKNOWN]"]),
        (["--engine", "cuda-graphs", "--device", "cpu"], ["'cuda-graphs'", "cpu", "[FEDAF-ENGINE-DEVICE]"]),
        (["--precision", "fp8"], ["'fp8'", "bf16", "[FEDAF-ENGINE-PRECISION]"]),
        (["--precision", "bf16", "--device", "cpu"], ["'bf16'", "cpu", "[FEDAF-ENGINE-DEVICE]"]),
        (["--repeats", "0"], ["--repeats", "0"]),
        (["--threads", "0"], ["--threads", "0"]),
        (["--compare", "nowhere.json"], ["nowhere.json", "--json", "[FEDAF-BENCH-COMPARE]"]),
        (["--compare", "pyproject.toml"], ["pyproject.toml", "--json", "[FEDAF-BENCH-COMPARE]"]),
        (["--json", "nowhere/figures.json"], ["nowhere/figures.json", "[FEDAF-BENCH-FILE]"]),
    ],
)
def test_bad_arguments_are_one_sentence(call, args, words):
    code, _, err = call("bench", "--quick", *args)
    assert_one_sentence(code, err, words)
