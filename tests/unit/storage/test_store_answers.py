"""Answers of stores that are lost, cut, late or refusals, by all three libraries of obstore."""

import time

import pytest

from arrow_format.errors import OptionError, StorageError
from arrow_format.storage.object_store import ObjectStorage
from arrow_format.storage.open import ObjectExistsError
from arrow_format.storage.protocol import PutRefusedError
from tests.support.answering_server import Answer, answering, refusal
from tests.support.azure_server import ACCOUNT
from tests.support.azure_server import SECRET as ACCOUNT_KEY
from tests.support.guarantees import guarantee
from tests.support.s3_server import KEY_ID, SECRET
from tests.support.stores import retrying_for

SCHEMES = ("s3", "az", "gs")
OPTIONS = {
    "s3": {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET},
    "az": {"azure_storage_account_name": ACCOUNT, "azure_storage_account_key": ACCOUNT_KEY},
    "gs": {"google_bearer_token": "ya29.never-to-be-shown"},
}
ENDPOINT = {"s3": "aws_endpoint_url", "az": "azure_storage_endpoint", "gs": "google_base_url"}
LAST_MODIFIED = "Tue, 24 Nov 2026 12:00:00 GMT"
EMPTY_LISTING = {
    "s3": b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>",
    "az": b"<EnumerationResults><Blobs></Blobs><NextMarker/></EnumerationResults>",
    "gs": b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>",
}
PARTS = 9 << 20
"""Bytes that are more than one part."""


@pytest.fixture(autouse=True)
def short_retries():
    with retrying_for(1):
        yield


@pytest.fixture
def unasked(monkeypatch):
    """Puts go to the store at once, without a look at whether it keeps their condition."""
    monkeypatch.setattr(ObjectStorage, "check_puts", lambda _storage: None)


def at(url, scheme, options=None, **more):
    own = OPTIONS[scheme] if options is None else options
    return ObjectStorage(
        f"{scheme}://bucket/root", own | {ENDPOINT[scheme]: url, "allow_http": "true"} | more
    )


@pytest.fixture(params=SCHEMES)
def scheme(request):
    return request.param


def in_parts(answer, count):
    """Azure's answer to several requests in one, each of which has the same."""
    head = "--b\r\nContent-Type: application/http\r\nContent-ID: {}\r\n\r\n"
    content = "".join(head.format(number) + answer for number in range(count)) + "--b--\r\n"
    headers = {"Content-Type": "multipart/mixed; boundary=b"}
    return Answer(202, content.encode(), headers)


# Retries ------------------------------------------------------------------------------------------


def test_retries_end_by_time_and_not_by_their_number(scheme):
    refused = 0

    def answer(_asked):
        nonlocal refused
        if refused < 30:
            refused += 1
            return refusal(503, "SlowDown")
        return Answer(200, b"x", {"Last-Modified": LAST_MODIFIED, "ETag": '"e"'})

    with answering(answer) as url:
        assert at(url, scheme).read("a") == b"x"
        assert refused == 30


@pytest.mark.slow
def test_a_store_that_refuses_for_good_is_reported_when_the_time_is_over(scheme):
    with answering(lambda _asked: refusal(503, "SlowDown", "Reduce your rate.")) as url:
        storage, began = at(url, scheme), time.monotonic()
        with pytest.raises(StorageError, match=r"503 .*SlowDown: Reduce your rate.*Try again"):
            storage.read("a")
        assert 1 < time.monotonic() - began < 20


# Conflicts ----------------------------------------------------------------------------------------

ACTIONS = {
    "read": lambda storage: storage.read("a"),
    "stat": lambda storage: storage.stat("a"),
    "list": lambda storage: storage.list(""),
    "replace": lambda storage: storage.replace("a", b"x", sync=False),
    "delete": lambda storage: storage.delete("a"),
    "delete all": lambda storage: storage.delete_all(["a", "b"]),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_conflict_means_that_an_object_exists_for_a_conditional_put_alone(scheme, action):
    """Azure answers so to everything while a container is being deleted."""
    with answering(lambda _asked: refusal(409, "ContainerBeingDeleted")) as url:
        storage = at(url, scheme)
        with pytest.raises(StorageError, match=r"409 Conflict.*cannot .*Try again") as error:
            ACTIONS[action](storage)
        assert not isinstance(error.value, ObjectExistsError)
        assert ("ContainerBeingDeleted: Some text" in str(error.value)) == (action != "stat")
        with pytest.raises(ObjectExistsError):
            storage._put("a", b"x")


@pytest.mark.slow
@pytest.mark.usefixtures("unasked")
def test_a_put_that_is_always_in_conflict_shows_what_the_store_says(scheme):

    def answer(asked):
        return Answer(404) if asked.method == "GET" else refusal(409, "OperationAborted")

    with (
        answering(answer) as url,
        pytest.raises(StorageError, match=r"a: .*409 Conflict: OperationAborted.*try again"),
    ):
        at(url, scheme).put_if_absent("a", b"x", sync=False)


@pytest.mark.usefixtures("unasked")
@guarantee("refused commit")
@pytest.mark.parametrize("earlier", ["nothing", "lost", "failed"])
def test_a_put_that_is_refused_is_certain_only_at_its_first_try(scheme, earlier):
    answers = {"nothing": [], "lost": [Answer(200, lost=True)], "failed": [refusal(503)]}[earlier]

    def answer(asked):
        return answers.pop() if answers else refusal(403, "AccessDenied")

    with (
        answering(answer) as url,
        pytest.raises(StorageError, match="a: 403 Forbidden: AccessDenied") as error,
    ):
        at(url, scheme).put_if_absent("a", b"mine", sync=False)
    assert not answers
    assert isinstance(error.value, PutRefusedError) == (earlier == "nothing")


@pytest.mark.usefixtures("unasked")
@guarantee("refused commit")
def test_a_put_that_is_refused_behind_a_conflict_is_not_certain(scheme):
    """The conflict may be one with its own first try."""
    puts = iter([refusal(412, "PreconditionFailed"), refusal(403, "AccessDenied")])

    def answer(asked):
        return next(puts) if asked.method == "PUT" else Answer(404)

    with answering(answer) as url, pytest.raises(StorageError, match="403 Forbidden") as error:
        at(url, scheme).put_if_absent("a", b"mine", sync=False)
    assert not isinstance(error.value, PutRefusedError)


# Answers that are lost ----------------------------------------------------------------------------


@pytest.mark.usefixtures("unasked")
@guarantee("lost answers", "retried put")
@pytest.mark.parametrize("carried_out", [False, True])
def test_a_conditional_put_without_an_answer_is_repeated(scheme, carried_out):
    """obstore does not repeat it, since it cannot know whose object it would find."""
    puts = 0

    def answer(asked):
        nonlocal puts
        if asked.method == "GET":
            return Answer(200, b"mine", {"Last-Modified": LAST_MODIFIED, "ETag": '"e"'})
        puts += 1
        if puts == 1:
            return Answer(200, lost=True)
        done = Answer(201 if scheme == "az" else 200, headers={"ETag": '"e"'})
        return refusal(412, "PreconditionFailed") if carried_out else done

    with answering(answer) as url:
        at(url, scheme).put_if_absent("a", b"mine", sync=False)
    assert puts == 2


@pytest.mark.slow
@pytest.mark.usefixtures("unasked")
def test_a_put_that_is_never_answered_fails_when_the_time_is_over(scheme):
    with answering(lambda _asked: Answer(200, lost=True)) as url:
        began = time.monotonic()
        with pytest.raises(StorageError, match=r"root/a: .*cannot create it"):
            at(url, scheme).put_if_absent("a", b"mine", sync=False)
        assert 1 < time.monotonic() - began < 20


@guarantee("lost answers")
@pytest.mark.parametrize("paths", [["a"], ["a", "b"]])
def test_a_deletion_without_an_answer_is_repeated(scheme, paths):
    asked = 0

    def answer(_asked):
        nonlocal asked
        asked += 1
        if asked == 1:
            return Answer(200, lost=True)
        if scheme == "gs":
            return Answer(204)
        if scheme == "az":
            return in_parts("HTTP/1.1 202 Accepted\r\n\r\n\r\n", len(paths))
        deleted = "".join(f"<Deleted><Key>root/{path}</Key></Deleted>" for path in paths)
        return Answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    with answering(answer) as url:
        at(url, scheme).delete_all(paths)
    assert asked > 1


# Answers that are cut -----------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("action", ["list", "files", "stat"])
def test_a_listing_that_is_cut_is_asked_again_once(scheme, action, times):
    cut = 0

    def answer(asked):
        nonlocal cut
        if asked.method == "HEAD":
            return Answer(404)
        cut += 1
        return Answer(200, EMPTY_LISTING[scheme], cut=cut <= times)

    ask = {
        "list": lambda storage: storage.list("a") == [],
        "files": lambda storage: storage.files("a", depth=2) == {},
        "stat": lambda storage: storage.stat("a") is None,
    }[action]
    with answering(answer) as url:
        if times == 1:
            assert ask(at(url, scheme))
        else:
            with pytest.raises(StorageError, match=r"root/a: .*cannot (list|look at) it"):
                ask(at(url, scheme))
        assert cut == 2


@pytest.mark.parametrize("action", ["read", "range"])
def test_a_read_that_is_cut_goes_on(scheme, action):
    """By obstore, with the rest."""
    content, cut = bytes(range(200)), 0

    def answer(asked):
        nonlocal cut
        cut += 1
        first, last = 0, len(content) - 1
        if wanted := asked.headers.get("Range"):
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        end = first + (last - first) // 2 if cut == 1 else last + 1
        where = {"Content-Range": f"bytes {first}-{last}/{len(content)}"} if wanted else {}
        where["Content-Length"] = str(last + 1 - first)
        headers = {"Last-Modified": LAST_MODIFIED, "ETag": '"e"'} | where
        return Answer(206 if wanted else 200, content[first:end], headers, cut=cut == 1)

    with answering(answer) as url:
        storage = at(url, scheme)
        if action == "read":
            assert storage.read("a") == content
        else:
            (found,) = storage.get_ranges("a", [(10, 100)])
            assert found.to_pybytes() == content[10:110]
    assert cut == 2


def test_a_deletion_whose_answer_is_cut_is_asked_again():
    cut = 0

    def answer(_asked):
        nonlocal cut
        cut += 1
        deleted = b"<Deleted><Key>root/a</Key></Deleted><Deleted><Key>root/b</Key></Deleted>"
        return Answer(200, b"<DeleteResult>%b</DeleteResult>" % deleted, cut=cut == 1)

    with answering(answer) as url:
        at(url, "s3").delete_all(["a", "b"])
    assert cut == 2


# Uploads ------------------------------------------------------------------------------------------

FORGOTTEN = {
    "s3": refusal(404, "NoSuchUpload", "The specified upload does not exist."),
    "az": refusal(400, "InvalidBlockList", "The specified block list is invalid."),
    "gs": refusal(404, "NoSuchUpload", "The requested upload was not found."),
}
"""What stores say when an upload is finished that they finished before, and its answer got lost."""


def forgetful(scheme, num_bytes):
    """Return answers of a store that finished an upload already, of an object of that size."""

    def answer(asked):
        if asked.method == "HEAD" and num_bytes is None:
            return Answer(404)
        if asked.method == "HEAD":
            size = {"Content-Length": str(num_bytes)}
            return Answer(200, headers={"Last-Modified": LAST_MODIFIED, "ETag": '"e"'} | size)
        if asked.method == "GET":
            return Answer(200, EMPTY_LISTING[scheme])
        if "uploads" in asked.path.partition("?")[2].split("="):
            named = b"<UploadId>some</UploadId><Bucket>b</Bucket><Key>k</Key>"
            named = b"<InitiateMultipartUploadResult>%b</InitiateMultipartUploadResult>" % named
            return Answer(200, named)
        if "partNumber" in asked.path or "comp=block&" in asked.path:
            return Answer(201 if scheme == "az" else 200, headers={"ETag": '"e"'})
        return FORGOTTEN[scheme]

    return answer


def upload(storage):
    writer = storage.open_writer("a", sync=False)
    writer.writev([bytes(PARTS)])
    writer.close()


@guarantee("lost answers")
def test_an_upload_whose_last_answer_was_lost_is_whole(scheme):
    with answering(forgetful(scheme, PARTS)) as url:
        upload(at(url, scheme))


@guarantee("lost answers")
@pytest.mark.parametrize("num_bytes", [None, PARTS - 1])
def test_an_upload_that_was_not_finished_fails(scheme, num_bytes):
    with (
        answering(forgetful(scheme, num_bytes)) as url,
        pytest.raises(StorageError, match=r"root/a: .*cannot finish it.*forgotten.*write it again"),
    ):
        upload(at(url, scheme))


# Advice -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP"])
def test_no_token_is_sent_without_tls_but_where_it_is_allowed(name, monkeypatch):
    scheme = {"AWS": "s3", "AZURE": "az", "GOOGLE": "gs"}[name.partition("_")[0]]
    asked = []

    def answer(one):
        asked.append(one)
        return Answer(200, EMPTY_LISTING[scheme])

    with answering(answer) as url:
        options = OPTIONS[scheme] | {ENDPOINT[scheme]: url}
        with pytest.raises(StorageError, match=f"without TLS set {name}=true or allow_http"):
            ObjectStorage(f"{scheme}://bucket/root", options).list("")
        assert not asked
        for allowed in ("allow_http", name.lower()):
            assert ObjectStorage(f"{scheme}://b/c", options | {allowed: "true"}).list("") == []
        with pytest.raises(StorageError, match="without TLS"):
            ObjectStorage(f"{scheme}://b/c", options | {name.lower(): "false"}).list("")
        monkeypatch.setenv(name, "true")
        assert ObjectStorage(f"{scheme}://b/c", options).list("") == []


def test_an_address_of_google_by_the_environment_needs_the_same_leave(monkeypatch):
    with answering(lambda _asked: Answer(200, EMPTY_LISTING["gs"])) as url:
        monkeypatch.setenv("GOOGLE_BASE_URL", url)
        with pytest.raises(StorageError, match="GOOGLE_ALLOW_HTTP"):
            ObjectStorage("gs://bucket/root", OPTIONS["gs"]).list("")


@pytest.mark.parametrize(
    ("scheme", "variable", "metadata", "missing"),
    [
        ("s3", "AWS_ACCESS_KEY_ID and AWS_SECRET", "AWS_METADATA_ENDPOINT", ()),
        ("az", "AZURE_STORAGE_ACCOUNT_NAME and AZ", "AZURE_MSI_ENDPOINT", ()),
        ("az", "AZURE_STORAGE_ACCOUNT_NAME and AZ", "AZURE_MSI_ENDPOINT", ACCOUNT),
        ("gs", "GOOGLE_APPLICATION_CREDENTIALS, or", "GCE_METADATA_IP", ()),
    ],
)
def test_missing_credentials_are_asked_for_by_their_names(
    scheme, variable, metadata, missing, monkeypatch
):
    options = {n: v for n, v in OPTIONS[scheme].items() if v == ACCOUNT and v != missing}
    with answering(lambda _asked: Answer(404)) as url:
        monkeypatch.setenv("GCE_METADATA_HOST", url[7:])
        monkeypatch.setenv(metadata, url if "URL" in metadata or "END" in metadata else url[7:])
        monkeypatch.setenv("HOME", "/nonexistent")
        with pytest.raises((StorageError, OptionError), match=f"No credentials.*{variable}"):
            at(url, scheme, options).read("a")


def test_nobody_writes_to_google_without_credentials(monkeypatch):
    found = {"Last-Modified": LAST_MODIFIED, "ETag": '"e"'}
    with answering(lambda one: Answer(404 if "computeM" in one.path else 200, b"x", found)) as url:
        monkeypatch.setenv("GCE_METADATA_HOST", url[7:])
        monkeypatch.setenv("GCE_METADATA_IP", url[7:])
        monkeypatch.setenv("HOME", "/nonexistent")
        storage = at(url, "gs", {}, google_skip_signature="true")
        assert storage.read("a") == b"x"
        with pytest.raises(StorageError, match=r"Without credentials gs:// can only be read"):
            storage.replace("a", b"x", sync=False)


@pytest.mark.parametrize("status", [400, 405])
def test_a_request_that_no_repetition_helps_does_not_say_try_again(scheme, status):
    with answering(lambda _asked: refusal(status, "InvalidResourceName")) as url:
        with pytest.raises(StorageError, match=r"InvalidResourceName: .*names in the URI") as error:
            at(url, scheme).list("")
        assert "ry again" not in str(error.value)


def test_a_deletion_that_azure_does_not_authorise_says_so():
    code = "x-ms-error-code: AuthorizationPermissionMismatch"
    answer = in_parts(f"HTTP/1.1 403 Forbidden\r\n{code}\r\n\r\n\r\n", 2)
    with (
        answering(lambda _asked: answer) as url,
        pytest.raises(StorageError, match=r"403.*cannot delete it.*what they allow"),
    ):
        at(url, "az").delete_all(["a", "b"])


def test_an_endpoint_that_nobody_serves_is_no_secret_and_the_key_is_one(scheme):
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:1/.*cannot be reached") as error:
        at("http://127.0.0.1:1", scheme).list("")
    assert not any(value in str(error.value) for value in (SECRET, ACCOUNT_KEY, "never-to-be"))
