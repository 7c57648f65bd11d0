"""Object stores: what they do otherwise than a file system, and what is never told of them."""

import gc
import json
import multiprocessing
import pickle
import socket
import sys
import time
import traceback

import pytest

from arrow_format.errors import CorruptShuffleError, OptionError, ShuffleError, StorageError
from arrow_format.storage import object_store, obstore_connection
from arrow_format.storage.object_store import ObjectStorage
from arrow_format.storage.open import ObjectExistsError, ObjectNotFoundError, open_storage
from arrow_format.storage.options import STORES, StorageOptions
from tests.support.guarantees import guarantee
from tests.support.s3_server import KEY_ID, SECRET
from tests.support.stores import retrying_for


@pytest.fixture
def bucket(s3):
    return s3.new_bucket()


@pytest.fixture
def storage(s3, bucket):
    return ObjectStorage(f"s3://{bucket}/root", s3.options)


@pytest.fixture
def impatient():
    """Fewer retries, of which the tests need none."""
    with retrying_for(1):
        yield


def told(error):
    """All that a log or a reporter would have of an error, also what `from None` hides."""
    found, chain = [], [error.value]
    while chain:
        one = chain.pop()
        found += [repr(one), *map(str, one.args), *traceback.format_exception(one)]
        chain += filter(None, (one.__cause__, one.__context__))
    return "".join(found)


def values_of_frames(error):
    """Values of our frames that an error passed, which some reporters show."""
    frames = [frame for frame, _ in traceback.walk_tb(error.value.__traceback__)]
    ours = [frame for frame in frames if "arrow_format" in frame.f_code.co_filename]
    assert ours
    return repr([frame.f_locals for frame in ours])


# Uploads ------------------------------------------------------------------------------------------


def test_nothing_is_left_of_an_upload_that_is_given_up(s3, bucket, storage):
    writer = storage.open_writer("a", sync=False)
    writer.writev([bytes(40 << 20)])
    assert s3.uploads(bucket) == ["root/a"]
    assert storage.list("") == [], "nobody sees it before it is complete"
    writer.abort()
    assert s3.uploads(bucket) == []


def test_an_upload_keeps_to_its_parts(storage, monkeypatch):
    monkeypatch.setattr(object_store, "MAX_OBJECT_BYTES", 100)
    writer = storage.open_writer("a", sync=False)
    writer.writev([bytes(100)])
    with pytest.raises(StorageError, match="root/a: is larger than the 100 bytes an object may"):
        writer.writev([bytes(1)])
    with pytest.raises(StorageError, match="root/a: cannot be cut to 8 bytes"):
        writer.truncate(8)
    writer.abort()


@guarantee("upload signs")
def test_an_upload_that_takes_long_shows_itself_and_leaves_nothing(
    s3, bucket, storage, monkeypatch
):
    monkeypatch.setattr(object_store, "SIGN_INTERVAL_S", 0.2)
    for end in ("close", "abort"):
        writer = storage.open_writer("job/a", sync=False)
        writer.writev([b"x"])
        assert storage.list("job") == [], "most end before there is anything to show"
        time.sleep(0.25)
        with s3.requests(bucket) as requests:
            for _ in range(50):
                writer.writev([b"x"])
        assert len(requests) == 1, "not more often"
        assert storage.list("job") == ["a.writing"]
        first = storage.stat("job/a.writing").modified_ms
        time.sleep(1.1)  # the store tells seconds
        writer.writev([b"x"])
        assert storage.stat("job/a.writing").modified_ms > first
        getattr(writer, end)()
        assert storage.list("job") == (["a"] if end == "close" else [])
        storage.delete("job/a")


def test_a_sign_that_cannot_be_put_is_no_failure(storage, monkeypatch):
    monkeypatch.setattr(object_store, "SIGN_INTERVAL_S", 0)

    def refused(*_arguments, **_how):
        msg = "refused"
        raise StorageError(msg)

    writer = storage.open_writer("job/a", sync=False)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "_put", refused)
        patch.setattr(storage, "delete", refused)
        writer.writev([b"x"])
        writer.close()
    assert storage.read("job/a") == b"x"


# Conditional puts ---------------------------------------------------------------------------------


def test_a_put_that_was_repeated_after_its_answer_got_lost_has_won(s3):
    storage = ObjectStorage(f"s3://{s3.new_bucket('forgetful')}/root", s3.options)
    storage.put_if_absent("a", b"mine", sync=True)
    with pytest.raises(ObjectExistsError):
        storage.put_if_absent("a", b"yours", sync=True)
    assert bytes(storage.get_ranges("a", [(0, 4)])[0]) == b"mine"


# Credentials --------------------------------------------------------------------------------------


def test_credentials_of_the_environment(s3, bucket, monkeypatch):
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    storage = open_storage(f"s3://{bucket}/root")
    storage.put_if_absent("a", b"x", sync=False)
    assert storage.list("") == ["a"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOFSOMEBODYELSE")
    with pytest.raises(StorageError, match="403"):
        open_storage(f"s3://{bucket}/root").list("")
    assert open_storage(f"s3://{bucket}/root", s3.options).list("") == ["a"], "options win"


def test_what_is_shown_holds_no_secret(s3, storage):
    options = StorageOptions(s3.options)
    for shown in (repr(storage), str(storage), repr(options), str(options), f"{options}"):
        assert SECRET not in shown
        assert KEY_ID not in shown
    assert "aws_secret_access_key" in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(pickle.loads(pickle.dumps(options))) == hash(options)


@guarantee("no credentials in errors")
@pytest.mark.parametrize("by_environment", [False, True])
def test_refused_credentials(s3, bucket, monkeypatch, by_environment):
    options = s3.options | {"aws_access_key_id": "AKIDOFSOMEBODYELSE"}
    if by_environment:
        for name, value in (s3.environment | {"AWS_ACCESS_KEY_ID": "AKIDOFSOMEBODYELSE"}).items():
            monkeypatch.setenv(name, value)
    storage = ObjectStorage(f"s3://{bucket}/root", None if by_environment else options)
    for action in (
        lambda: storage.list(""),
        lambda: storage.files("", depth=2),
        lambda: storage.stat("a"),
        lambda: storage.read("a"),
        lambda: storage.get_ranges("a", [(0, 1)]),
        lambda: storage.put_if_absent("a", b"", sync=False),
        lambda: storage.delete("a"),
        lambda: storage.delete_all(["a", "b"]),
    ):
        with pytest.raises(
            StorageError, match=f"^s3://{bucket}/root.*403 Forbidden.*Check the cred"
        ) as error:
            action()
        if "look at it" not in str(error.value):  # such an answer has no text
            assert "The AWS Access Key Id *** does not exist" in str(error.value)
        assert error.value.__cause__ is None
        assert error.value.__context__ is None
        shown = told(error) + (values_of_frames(error) if by_environment else "")
        assert SECRET not in shown
        assert "AKIDOFSOMEBODYELSE" not in shown


def test_what_was_being_handled_stays_in_the_chain(storage):
    def clean_up():
        try:
            int("no number")
        except ValueError:
            storage.read("a")

    with pytest.raises(ObjectNotFoundError) as error:
        clean_up()
    assert "no number" in repr(error.value.__context__)


def test_no_credentials_at_all(s3, bucket, impatient, monkeypatch):
    options = {name: v for name, v in s3.options.items() if "key" not in name}
    options["metadata_endpoint"] = s3.url
    for name in s3.environment:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StorageError, match=f"s3://{bucket}/root/a: .*cannot read it"):
        ObjectStorage(f"s3://{bucket}/root", options).get_ranges("a", [(0, 1)])


# What else is refused -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("scheme", STORES)
def test_no_test_asks_a_metadata_service(scheme, impatient, monkeypatch):
    """Without credentials obstore does, wherever it runs: see :data:`NO_METADATA`."""
    for name in ("AWS_ACCESS_KEY_ID", "AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    options = {"azure_storage_account_name": "nobody"} if scheme == "az" else {}
    with pytest.raises(StorageError, match=r"(PUT|GET) http://127\.0\.0\.1:1/"):
        ObjectStorage(f"{scheme}://anywhere/root", options).list("")


def test_a_missing_bucket(s3):
    storage = ObjectStorage("s3://no-such-bucket/root", s3.options)
    for action in (
        lambda: storage.list(""),
        lambda: storage.stat("a"),
        lambda: storage.get_ranges("a", [(0, 1)]),
        lambda: storage.put_if_absent("a", b"", sync=False),
    ):
        with pytest.raises(
            StorageError, match=r"s3://no-such-bucket/root.*There is no such bucket"
        ):
            action()


def test_a_store_that_does_not_answer(s3, impatient):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        options = s3.options | {"aws_endpoint_url": url, "timeout": "500ms"}
        started = time.monotonic()
        with pytest.raises(StorageError, match=r"root/commit_log/probes/.*cannot put an object"):
            ObjectStorage("s3://bucket/root", options).put_if_absent("a", b"", sync=False)
        assert time.monotonic() - started < 10


def test_an_endpoint_without_tls_is_asked_for(s3):
    options = {name: v for name, v in s3.options.items() if name != "aws_allow_http"}
    with pytest.raises(StorageError, match="For an endpoint without TLS set AWS_ALLOW_HTTP"):
        ObjectStorage("s3://bucket/root", options).list("")


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://", "expected s3://bucket/prefix"),
        ("s3:///a", "expected s3://bucket/prefix"),
        ("s3://b/../a", "expected s3://bucket/prefix"),
        ("s3://b/a//c", "expected s3://bucket/prefix"),
        ("s3://user:hunter2@b/a", "and nothing else; credentials belong"),
        ("az://b/a?sig=hunter2", "and nothing else; credentials belong"),
        (r"s3://b/back\slash", "has a backslash, which some stores take for a slash"),
        (r"gs://b\a", "has a backslash"),
        ("az://b/a./c", "a name ends in a dot, which Azure"),
        ("az://b/a.", "a name ends in a dot"),
    ],
)
@guarantee("kept names")
def test_uris(uri, expected):
    with pytest.raises(OptionError, match=expected) as error:
        open_storage(uri)
    assert "hunter2" not in told(error)


def test_a_dot_at_the_end_of_a_name_is_kept_elsewhere(s3):
    bucket = s3.new_bucket()
    ObjectStorage(f"s3://{bucket}/a./c.", s3.options).put_if_absent("x", b"x", sync=True)
    assert s3.keys(bucket) == ["a./c./x"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"aws_sekret": "hunter2"}, "'aws_sekret' is not valid"),
        ({"aws_secret_access_key": b"hunter2"}, "is bytes; expected text"),
        ("hunter2", "is str: expected a mapping"),
        ({"aws_conditional_put": "hunter2"}, "could not connect"),
    ],
)
def test_options(options, expected):
    with pytest.raises(OptionError, match=expected) as error:
        open_storage("s3://bucket/a", options)
    assert "hunter2" not in told(error)


def test_without_obstore(monkeypatch):
    obstore_connection._connect.cache_clear()
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(OptionError, match=r"pip install 'arrow-shuffle\[object-stores\]'"):
        open_storage("s3://bucket/a")


def test_an_endpoint_without_a_scheme(s3):
    options = s3.options | {"aws_endpoint_url": "127.0.0.1:9000"}
    with pytest.raises(StorageError, match="an endpoint begins with http:// or https://"):
        ObjectStorage("s3://bucket/root", options).list("")


@pytest.mark.parametrize("by_environment", [False, True])
def test_a_broken_key_is_not_quoted(monkeypatch, by_environment):
    key = json.dumps(json.dumps({"private_key": "hunter2"})) + "\n"
    if by_environment:
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", key)
    options = {} if by_environment else {"google_service_account_key": key}
    with pytest.raises(OptionError, match="could not connect") as error:
        open_storage("gs://bucket/a", options)
    assert "hunter2" not in told(error)
    if by_environment:  # an option stands in the frames of who gave it
        assert "hunter2" not in values_of_frames(error)


# Damage and processes -----------------------------------------------------------------------------


def test_an_object_that_shrank(s3, bucket, storage):
    storage.put_if_absent("a", bytes(100), sync=False)
    reader = storage.open_reader("a")
    assert reader.get_ranges([(90, 10)])[0].size == 10
    s3.client().put_object(Bucket=bucket, Key="root/a", Body=bytes(95))
    with pytest.raises(CorruptShuffleError, match="has 95 bytes, expected at least 100"):
        reader.get_ranges([(90, 10)])
    with pytest.raises(CorruptShuffleError, match="has 95 bytes, expected at least 100"):
        reader.get_ranges([(96, 4)])


def test_nothing_of_what_is_not_there(storage):
    with pytest.raises(ObjectNotFoundError):
        storage.get_ranges("a", [(0, 0)])


def test_an_object_that_stands_for_a_directory(s3, bucket, storage):
    s3.client().put_object(Bucket=bucket, Key="root/", Body=b"")
    assert storage.list("") == []
    storage.put_if_absent("a", b"x", sync=False)
    assert storage.list("") == ["a"]


def list_in_a_fork(storage, answers):
    try:
        storage.list("")
    except ShuffleError as error:
        answers.put(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_says_what_is_wrong_and_a_new_process_works(storage):
    storage.put_if_absent("a", b"x", sync=False)
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    process = fork.Process(target=list_in_a_fork, args=(storage, answers))
    process.start()
    assert "start processes by spawn" in answers.get(timeout=30)
    process.join()
    gc.collect()
    assert storage.list("") == ["a"], "the parent goes on"


def test_no_bytes_are_read_of_what_is_beyond_the_end(storage):
    """As with bytes: whoever asks for a range has read of it somewhere."""
    storage.put_if_absent("a", b"12345", sync=False)
    assert [buffer.size for buffer in storage.get_ranges("a", [(0, 0), (5, 0)])] == [0, 0]
    with pytest.raises(CorruptShuffleError, match="5 bytes"):
        storage.get_ranges("a", [(0, 0), (6, 0)])


def test_all_are_deleted_where_a_store_minds_that_one_is_not_there(storage, monkeypatch):
    """Such a store refuses the request for all of them, and has deleted some or none."""
    for name in "abc":
        storage.put_if_absent(name, b"x", sync=False)
    real = object_store.obstore().delete

    def delete(store, paths):
        if not isinstance(paths, str):
            real(store, paths[0])
            raise FileNotFoundError(paths[1])
        real(store, paths)

    monkeypatch.setattr(object_store.obstore(), "delete", delete)
    storage.delete_all(["a", "missing", "b", "c"])
    assert storage.list("") == []
