"""Opening a data set takes little memory, with and without conversion."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedaf.data.storage.form import Writer
from support.datafiles import pixels, python2_pickle

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="needs Linux: the peak memory of a process is read from /proc"
)

COUNTS = {"train": 50_000, "test": 10_000}
MEASURE = """
import json, sys
from pathlib import Path
import torch
from fedaf.data import catalog

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024

open("/proc/self/clear_refs", "w").write("5")  # the peak starts from here
before = peak()
data = catalog.load(sys.argv[2], Path(sys.argv[1]))
opened = peak()
total = int(data.train.images[::5000].sum())
print(json.dumps([opened - before, peak() - before, len(data.train), total]))
"""


def measured(folder: Path, name: str = "cifar100") -> list[float]:
    done = subprocess.run([sys.executable, "-c", MEASURE, folder, name], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_an_npz_is_opened_in_place(tmp_path):
    piece = np.full((1000, 32, 32, 3), 7, np.uint8)
    with open(tmp_path / "cifar100.npz", "wb") as file, Writer(file, tmp_path) as writer:
        for part, count in COUNTS.items():
            writer.images(f"x_{part}", (32, 32, 3), (piece for _ in range(count // 1000)))
            writer.array(f"y_{part}", np.arange(count) % 100)
    opened, read, count, total = measured(tmp_path)
    print(f"opened with {opened:.0f} MB, rows read with {read:.0f} MB")
    assert count == 50_000
    assert total == 10 * 3072 * 7
    assert read < 60


def test_the_published_pickle_is_converted_piece_by_piece(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for part, count in COUNTS.items():
        labels = [n % 100 for n in range(count)]
        batch = {b"data": np.full((count, 3072), 7, np.uint8), b"fine_labels": labels, b"coarse_labels": labels}
        (folder / part).write_bytes(python2_pickle(batch | {b"filenames": [b"picture_s_%06d.png" % n for n in labels]}))
    opened, read, count, total = measured(tmp_path)
    print(f"opened with {opened:.0f} MB, rows read with {read:.0f} MB")
    assert count == 50_000
    assert total == 10 * 3072 * 7
    assert read < 300


def test_a_small_parquet_file_of_large_images_is_converted_piece_by_piece(tmp_path):
    """All rows of the file are one image of 4 MiB, most of it zeros after its end."""
    stream = io.BytesIO()
    Image.fromarray(pixels(8, 8)).save(stream, "PNG")
    image = stream.getvalue() + bytes(4 << 20)
    rows = pa.DictionaryArray.from_arrays(np.zeros(128, np.int32), pa.array([image]))
    path = tmp_path / "a.parquet"
    table = pa.table({"image": rows, "label": np.arange(128) % 2})
    pq.write_table(table, path, store_schema=False, dictionary_pagesize_limit=1 << 30, compression="zstd")
    assert path.stat().st_size < 100_000
    _, read, count, _ = measured(tmp_path, f"parquet:{path}")
    print(f"converted with {read:.0f} MB")
    assert count == 102
    assert read < 900
