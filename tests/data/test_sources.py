"""Sources of rows: what they give is what was stored, in order and by number; what is wrong is refused with its place."""

import threading

import numpy as np
import pytest

import gyromc as gm
from gyromc.data import Batches, Mapped, Parquet, Sequenced, files, over_blocks, prefetched, random_access, store

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((1000, 3)).astype(np.float32)
Y = RNG.integers(0, 2, 1000).astype(np.int8)


def saved(folder, X=X, y=Y, **options):
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    return Mapped(folder / "X.npy", folder / "y.npy", **options)


def parquet(folder, **columns):
    path = folder / "rows.parquet"
    names = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": Y} | columns
    pq.write_table(pa.table(names), path, row_group_size=300)
    return path


def sources(folder):
    return {
        "mapped": saved(folder),
        "parquet": Parquet(parquet(folder), "y"),
        "records": Sequenced(list(zip(X, Y, strict=True))),
        "batches": Batches([(X[:400], Y[:400]), (X[400:], Y[400:])], 1000),
    }


@pytest.mark.parametrize("kind", ["mapped", "parquet", "records", "batches"])
@pytest.mark.parametrize("size", [1, 7, 1000, 5000])
def test_blocks_are_all_rows_in_their_order(kind, size, tmp_path):
    source = sources(tmp_path)[kind]
    blocks = list(source.blocks(size))
    assert all(0 < len(x) == len(y) <= size for x, y in blocks)
    assert np.array_equal(np.concatenate([x for x, _ in blocks]), X)
    assert np.array_equal(np.concatenate([y for _, y in blocks]), Y)
    assert (source.num_rows, source.num_columns) == X.shape


@pytest.mark.parametrize("kind", ["mapped", "parquet", "records", "batches"])
def test_rows_by_number(kind, tmp_path, capsys):
    index = np.array([[5, 0, 999], [5, 5, 17]])
    x, y = random_access(sources(tmp_path)[kind]).read(index)
    assert np.array_equal(x, X[index])
    assert np.array_equal(y, Y[index])
    assert ("writing" in capsys.readouterr().err) == (kind in ("parquet", "batches"))


def test_pages_given_back_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SETTINGS", files.FileSettings(resident=2**13, around=2**11))
    tight, index = saved(tmp_path), RNG.integers(0, 1000, 300)
    assert tight.is_large()
    assert np.array_equal(tight.read(index)[0], X[index])
    assert np.array_equal(tight.read(index)[1], Y[index])


def test_numbers_that_are_no_rows_are_refused(tmp_path):
    with pytest.raises(gm.InvalidInput, match="numbers 0 to 999"):
        saved(tmp_path).read(np.array([1000]))
    with pytest.raises(gm.InvalidInput, match="cannot be read"):
        Batches([(X, Y)], 1000).read(np.array([0]))


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (X.astype(int), Y, "float32 or float64"),
        (X[0], Y, "a matrix"),
        (X, Y[:10], "one number per row"),
        (X, np.full(1000, "a"), "one number per row"),
        (np.asfortranarray(X), Y, "Fortran"),
    ],
)
def test_files_that_do_not_fit_are_refused(X, y, message, tmp_path):
    with pytest.raises(gm.InvalidInput, match=message):
        saved(tmp_path, X, y)


def test_a_file_that_is_cut_off_is_refused_and_one_that_is_cut_later_is_noticed(tmp_path):
    source = saved(tmp_path)
    with (tmp_path / "X.npy").open("r+b") as file:
        file.truncate(4000)
    with pytest.raises(gm.InvalidInput, match="ended while rows"):
        list(source.blocks(1000))
    with pytest.raises(gm.InvalidInput, match="cut off"):
        source.check_size()
    with pytest.raises(gm.InvalidInput, match="cut off"):
        Mapped(tmp_path / "X.npy", tmp_path / "y.npy")
    (tmp_path / "X.npy").write_bytes(b"no numbers")
    with pytest.raises(gm.InvalidInput, match=r"no \.npy file"):
        Mapped(tmp_path / "X.npy", tmp_path / "y.npy")


def test_parquet_refuses_texts_missing_values_and_unknown_columns(tmp_path):
    with pytest.raises(gm.InvalidInput, match=r"'t' of .* holds string"):
        Parquet(parquet(tmp_path, t=["a"] * 1000), "y")
    holes = pa.array([None if i == 640 else 1.0 for i in range(1000)])
    with pytest.raises(gm.InvalidInput, match="missing values, the first in row 640"):
        list(Parquet(parquet(tmp_path, holes=holes), "y").blocks(100))
    with pytest.raises(gm.InvalidInput, match="no column z"):
        Parquet(parquet(tmp_path), "z")
    assert Parquet(parquet(tmp_path), "y", ["c", "a"]).columns == ("c", "a")


def test_batches_must_keep_to_what_is_declared():
    with pytest.raises(gm.InvalidInput, match="yield 1,000 rows, and `num_rows` declares 1,001"):
        list(Batches([(X, Y)], 1001).blocks(10))
    with pytest.raises(gm.InvalidInput, match="more than the 999"):
        list(Batches([(X, Y)], 999).blocks(10))
    with pytest.raises(gm.InvalidInput, match="once only"):
        Batches(iter([(X, Y)]), 1000)
    with pytest.raises(gm.InvalidInput, match=r"shapes \(1, 2\) and \(1,\) at row 1000"):
        list(Batches([(X, Y), (np.ones((1, 2)), [1])], 1001).blocks(2000))
    assert len(list(Batches(lambda: iter([(X, Y)]), 1000).blocks(1000))) == 1


def test_stored_rows_replace_files_only_when_complete(tmp_path):
    kept = store(Sequenced(list(zip(X, Y, strict=True))), tmp_path, "float64")
    assert np.array_equal(kept.X, X)
    assert np.array_equal(np.load(tmp_path / "y.npy"), Y)
    before = (tmp_path / "X.npy").read_bytes()
    with pytest.raises(gm.InvalidInput, match="declares"):
        store(Batches([(X, Y)], 2000), tmp_path)
    assert (tmp_path / "X.npy").read_bytes() == before


def test_a_pass_is_in_order_whatever_the_threads_do(tmp_path):
    source = saved(tmp_path)
    found = list(over_blocks(source, lambda x, y: float(x[0, 0]), 10))
    assert found == [float(x) for x in X[::10, 0]]


def test_prefetching_raises_here_and_ends_its_thread():
    def failing():
        yield 1
        raise ValueError("disk")

    before = set(threading.enumerate())
    items = prefetched(failing())
    assert next(items) == 1
    with pytest.raises(ValueError, match="disk"):
        next(items)
    endless = prefetched(iter(int, 1))
    assert next(endless) == 0
    endless.close()
    assert set(threading.enumerate()) <= before  # threads of earlier tests may end meanwhile
