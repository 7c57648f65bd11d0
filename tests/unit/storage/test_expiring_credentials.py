"""Credentials that end during a job: who refreshes them, and what is said where nobody does."""

import base64
import json
import logging
import os
import pickle
import re
import subprocess
import sys
import time
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from arrow_format import MergePolicy, delete_rows, merge_shuffle, open_shuffle, write_shuffle
from arrow_format.errors import OptionError, StorageError
from arrow_format.jobs.job import run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.options import WriteOptions
from arrow_format.storage import credentials
from arrow_format.storage.credentials import end_of
from arrow_format.storage.object_store import ObjectStorage
from connector.options.batch import parse_storage_options
from tests.support.answering_server import Answer, answering, refusal
from tests.support.expiring_store import GRACE_S, LIFE_S, PROVIDER_MODULE, expiring
from tests.support.guarantees import guarantee
from tests.support.own_authority import own_authority
from tests.support.s3_server import KEY_ID, SECRET
from tests.support.small_shuffles import begin, write_rows
from tests.support.stores import retrying_for

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
SMALL_BUFFER = WriteOptions(codec="none", sort_buffer_bytes=4 << 20)
STORE = None
"""The store that :func:`provider` is for; it is found by its name, so it has no argument."""


def provider():
    given = STORE.credentials()
    ends = float(given["aws_session_token"].removeprefix("until-"))
    return {
        "access_key_id": given["aws_access_key_id"],
        "secret_access_key": given["aws_secret_access_key"],
        "token": given["aws_session_token"],
        "expires_at": datetime.fromtimestamp(ends, UTC),
    }


class Provider:
    """The same as a class."""

    def __call__(self):
        return provider()


class Broken:
    """Cannot be made."""

    def __init__(self):
        msg = "hunter2"
        raise RuntimeError(msg)


def broken():
    msg = "hunter2"
    raise KeyError(msg)


async def asynchronous():
    return provider()


NO_CALLABLE = "hunter2"


@pytest.fixture(autouse=True)
def short_retries(monkeypatch):
    monkeypatch.setattr(credentials, "_ANNOUNCED", set())
    with retrying_for(1):
        yield


@pytest.fixture
def store(s3, monkeypatch):
    with expiring(s3) as served:
        monkeypatch.setattr("tests.unit.storage.test_expiring_credentials.STORE", served)
        yield served


def slow_batches(num_bytes, lasts_s):
    """Yield batches of so many bytes in so many seconds."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    rows, count = num_bytes // 16 // 12, 12

    def batches():
        for number in range(count):
            values = pa.array(range(number * rows, (number + 1) * rows), pa.int64())
            yield pa.record_batch([values, values], schema=schema)
            time.sleep(lasts_s / count)

    return pa.RecordBatchReader.from_batches(schema, batches())


def written(path, options):
    """Write for longer than credentials last, and read it."""
    rows = slow_batches(24 << 20, LIFE_S + GRACE_S + 1)
    write_rows(path, rows, "k", storage_options=options, options=SMALL_BUFFER)
    return open_shuffle(path, storage_options=options).num_rows


BY_ENVIRONMENT = {
    "container": {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "{url}/container",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "{file}",
    },
    "machine": {"AWS_METADATA_ENDPOINT": "{url}"},
    "web identity": {
        "AWS_WEB_IDENTITY_TOKEN_FILE": "{file}",
        "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/some",
        "AWS_ENDPOINT_URL_STS": "{tls}",
    },
}


@guarantee("refreshed credentials")
@pytest.mark.parametrize("how", ["provider", *BY_ENVIRONMENT])
def test_a_write_outlives_the_credentials_that_it_began_with(store, s3, how, tmp_path, monkeypatch):
    options = dict(store.options)
    (tmp_path / "token").write_text("some")
    authority = own_authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.authority))
    with answering(store.answer, authority.context) as tls:
        places = {"url": store.url, "tls": tls, "file": tmp_path / "token"}
        for name, value in BY_ENVIRONMENT.get(how, {}).items():
            monkeypatch.setenv(name, value.format(**places))
        if how == "provider":
            options["credential_provider"] = f"{__name__}:provider"
        assert written(f"s3://{s3.new_bucket()}/a", options) > 0
    assert store.refused == 0
    assert store.handed_out > 2
    ends = sorted(float(token.removeprefix("until-")) for token in store.tokens)
    assert ends[-1] - ends[0] > LIFE_S + GRACE_S, "so the first had ended before the last request"


@guarantee("refreshed credentials")
@pytest.mark.parametrize(("scheme", "workload"), [("az", False), ("az", True), ("gs", False)])
def test_the_identity_of_a_machine_is_asked_for_again(scheme, workload, tmp_path, monkeypatch):
    given, used = [], []

    def answer(asked):
        if re.search("/computeMetadata/|/msi|/oauth2/v2.0/token", asked.path):
            given.append(f"token-{len(given)}")
            ends = str(int(time.time()) + 2)
            named = {"access_token": given[-1], "token_type": "Bearer", "resource": "some"}
            named |= {"expires_in": "2" if "/msi" in asked.path else 2, "expires_on": ends}
            return Answer(200, json.dumps(named).encode())
        used.append(asked.headers["Authorization"])
        return Answer(201 if scheme == "az" else 200, headers={"ETag": '"e"'})

    authority = own_authority(tmp_path)
    with answering(answer) as url, answering(answer, authority.context) as tls:
        if workload:
            (tmp_path / "token").write_text("some")
            monkeypatch.setenv("SSL_CERT_FILE", str(authority.authority))
            monkeypatch.setenv("AZURE_AUTHORITY_HOST", tls)
            monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
            monkeypatch.setenv("AZURE_CLIENT_ID", "some")
            monkeypatch.setenv("AZURE_TENANT_ID", "some")
        monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"{url}/msi")
        monkeypatch.setenv("GCE_METADATA_HOST", url[7:])
        monkeypatch.setenv("HOME", "/nonexistent")
        options = {
            "az": {"azure_storage_account_name": "some", "azure_storage_endpoint": url},
            "gs": {"google_base_url": url},
        }[scheme]
        storage = ObjectStorage(f"{scheme}://bucket/a", options | {"allow_http": "true"})
        for _ in range(3):
            storage.replace("x", b"", sync=False)
            time.sleep(0.2)
    assert used == [f"Bearer {token}" for token in given]
    assert len(used) == 3


def test_a_write_with_a_token_as_text_says_what_became_of_it(store, s3):
    options = store.options | store.credentials()
    with pytest.raises(StorageError, match=r"ExpiredToken.*have expired.*credential_provider"):
        written(f"s3://{s3.new_bucket()}/a", options)


@pytest.mark.parametrize("name", ["provider", "Provider"])
def test_a_provider_travels_by_its_name(store, s3, name):
    """As in Spark's options, which are text."""
    given = {"storage.credential_provider": f"{__name__}:{name}"}
    options = store.options | dict(parse_storage_options(given))
    storage = ObjectStorage(f"s3://{s3.new_bucket()}/a", options)
    assert storage.list("") == []
    assert "credential_provider" in repr(storage.options)


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("nothing", r'expected "package.module:name" of'),
        ("no_such_module:provider", "ModuleNotFoundError when this process loaded it"),
        (f"{__name__}:absent", "AttributeError when this process loaded it"),
        (f"{__name__}:Broken", "RuntimeError when this process loaded it"),
        (f"{__name__}:NO_CALLABLE", "cannot be called"),
        (f"{__name__}:asynchronous", "is asynchronous"),
    ],
)
def test_what_is_no_provider_is_refused(store, named, expected):
    with pytest.raises(OptionError, match=expected) as error:
        ObjectStorage("s3://bucket/a", store.options | {"credential_provider": named})
    assert "hunter2" not in "".join(traceback.format_exception(error.value))


def test_a_variable_names_a_provider_where_no_options_are_given(monkeypatch):
    named = f"{__name__}:provider"
    monkeypatch.setenv("ARROW_SHUFFLE_CREDENTIAL_PROVIDER", named)
    for none in (None, {}, parse_storage_options({})):
        storage = ObjectStorage("s3://bucket/a", none)
        assert dict(storage.options) == {"credential_provider": named}
        assert pickle.loads(pickle.dumps(storage)) == storage
    given = {"aws_region": "us-east-1"}
    assert dict(ObjectStorage("s3://bucket/a", given).options) == given


@guarantee("refreshed credentials")
def test_the_command_takes_a_provider_from_its_environment(store, s3, tmp_path):
    store.life_s = 0
    path = f"s3://{s3.new_bucket()}/a"
    rows = pa.table({"k": range(100)})
    write_shuffle(rows, path, keys="k", num_subpartitions=3, storage_options=s3.options)
    (tmp_path / "own_credentials.py").write_text(PROVIDER_MODULE.format(url=store.url))
    environment = {
        "AWS_ENDPOINT_URL": store.url,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "PYTHONPATH": str(tmp_path),
        "ARROW_SHUFFLE_CREDENTIAL_PROVIDER": "own_credentials:provider",
    }
    done = subprocess.run(
        [Path(sys.executable).parent / "arrow-shuffle", "verify", path],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert store.handed_out > 1, "each has ended at the next request, and is asked for again"
    assert not any(token in done.stdout + done.stderr for token in store.tokens)


def test_a_provider_that_fails_is_named_and_not_quoted(store):
    options = store.options | {"credential_provider": f"{__name__}:broken"}
    with pytest.raises(StorageError, match=r"credential_provider raised KeyError; .*Call") as error:
        ObjectStorage("s3://bucket/a", options).list("")
    assert "hunter2" not in str(error.value)


# When credentials end -----------------------------------------------------------------------------


def jwt(ends):
    claims = base64.urlsafe_b64encode(json.dumps({"exp": ends.timestamp()}).encode()).decode()
    return f"e30.{claims.rstrip('=')}.c2ln"


SAS = "?sv=2021-08-06&se=2026-11-24T12%3A00%3A00Z&sig=hunter2"


@pytest.mark.parametrize(
    ("scheme", "options", "environment", "expected"),
    [
        ("az", {"azure_storage_sas_key": SAS}, {}, "azure_storage_sas_key"),
        ("az", {"sas_token": SAS.lstrip("?")}, {}, "sas_token"),
        ("az", {}, {"AZURE_STORAGE_SAS_TOKEN": SAS}, "AZURE_STORAGE_SAS_TOKEN"),
        ("az", {"azure_storage_token": jwt(NOW)}, {}, "azure_storage_token"),
        ("az", {"azure_storage_token": "opaque"}, {}, None),
        ("az", {"azure_storage_account_key": "x", "sas_key": SAS}, {}, None),
        ("az", {"azure_storage_sas_key": "sv=1&se=nonsense&sig=x"}, {}, None),
        ("az", {"azure_storage_sas_key": "sv=1&sig=x"}, {}, None),
        ("az", {"sas_key": "se=9999-12-31T23%3A59%3A59-05%3A00&sig=x"}, {}, None),
        ("az", {"credential_provider": "a:b", "sas_key": SAS}, {}, None),
        ("az", {"azure_storage_account_key": "x"}, {"AZURE_STORAGE_SAS_KEY": SAS}, None),
        ("az", {}, {"SAS_TOKEN": SAS}, None),
        (
            "s3",
            {},
            {"AWS_SESSION_TOKEN": "x", "AWS_CREDENTIAL_EXPIRATION": "2026-11-24T13:00:00+01:00"},
            "AWS_CREDENTIAL_EXPIRATION",
        ),
        ("s3", {"aws_access_key_id": "x"}, {"AWS_CREDENTIAL_EXPIRATION": NOW.isoformat()}, None),
        ("s3", {}, {"AWS_CREDENTIAL_EXPIRATION": NOW.isoformat()}, None),
        ("s3", {"aws_session_token": "opaque"}, {}, None),
        ("gs", {"google_bearer_token": "opaque"}, {}, None),
    ],
)
def test_when_credentials_end(scheme, options, environment, expected):
    end = end_of(scheme, options, environment)
    assert (end and end.source) == expected
    assert end is None or end.at == NOW
    assert "hunter2" not in str(end)


def sas(ends):
    return f"sv=2021-08-06&se={ends:%Y-%m-%dT%H:%M:%SZ}&sig=hunter2"


def azure(url, ends):
    options = {"azure_storage_account_name": "some", "azure_storage_sas_key": sas(ends)}
    options |= {"azure_storage_endpoint": url, "allow_http": "true"}
    return ObjectStorage("az://container/a", options)


def test_a_refusal_after_the_end_says_when_it_was():
    answer = refusal(403, "AuthenticationFailed", "Server failed to authenticate the request.")
    ago, later = (datetime.now(UTC) + timedelta(hours=h) for h in (-1, 1))
    with answering(lambda _asked: answer) as url:
        with pytest.raises(StorageError, match=r"have ended.*credential_provider") as error:
            azure(url, ago).read("x")
        assert f"azure_storage_sas_key (until {ago:%Y-%m-%d %H:%M:%S} UTC)" in str(error.value)
        assert "hunter2" not in str(error.value)
        with pytest.raises(StorageError, match="Check the credentials, and what they allow"):
            azure(url, later).read("x")


@pytest.mark.parametrize(
    ("scheme", "answer"),
    [("gs", refusal(401, "AuthenticationRequired", "Invalid Credentials")), ("s3", Answer(400))],
)
def test_a_refusal_that_does_not_say_why_may_be_of_a_token_that_ended(scheme, answer):
    own = {"gs": {"google_bearer_token": "x"}, "s3": {"aws_access_key_id": "x"}}[scheme]
    own |= {"s3": {"aws_secret_access_key": "x", "aws_session_token": "x"}}.get(scheme, {})
    endpoint = {"gs": "google_base_url", "s3": "aws_endpoint_url"}[scheme]
    with answering(lambda _asked: answer) as url:
        storage = ObjectStorage(f"{scheme}://b/a", own | {endpoint: url, "allow_http": "true"})
        with pytest.raises(StorageError, match=r"a token (may have|has) expired"):
            storage.stat("x")


@guarantee("ended credentials")
def test_a_job_does_not_begin_with_credentials_that_have_ended():
    asked = []

    def answer(one):
        asked.append(one.method)
        return refusal(403, "AuthenticationFailed", "Signature fields not well formed.")

    with answering(answer) as url:
        storage = azure(url, datetime.now(UTC) - timedelta(seconds=1))
        rows = slow_batches(1 << 20, 0)
        with pytest.raises(StorageError, match="have ended"):
            write_shuffle(rows, storage, keys="k", num_subpartitions=1)
    assert asked == []
    assert rows.read_all().num_rows == (1 << 20) // 16 // 12 * 12, "none was read"


def test_a_job_announces_once_that_its_credentials_end_soon(caplog):
    start = datetime.now(UTC)
    with answering(lambda _asked: refusal(403)) as url, caplog.at_level(logging.WARNING):
        for minutes in (120, 30, 30):
            storage = azure(url, start + timedelta(minutes=minutes))
            with pytest.raises(StorageError):
                write_shuffle(pa.table({"k": [1]}), storage, keys="k", num_subpartitions=1)
    (told,) = caplog.messages
    assert "az://container/a: the credentials of azure_storage_sas_key (until" in told
    assert "hunter2" not in told


@pytest.fixture
def session(s3, monkeypatch):
    """A session token as text in the environment; sets when it ends."""
    for name, value in (s3.environment | {"AWS_SESSION_TOKEN": "some"}).items():
        monkeypatch.setenv(name, value)

    def until(minutes):
        at = datetime.now(UTC) + timedelta(minutes=minutes)
        monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", at.isoformat())
        return f"credentials of AWS_CREDENTIAL_EXPIRATION (until {at:%Y-%m-%d %H:%M:%S} UTC)"

    return until


@guarantee("ended credentials")
def test_a_task_uploads_nothing_with_credentials_that_have_ended(s3, session):
    session(30)
    bucket = s3.new_bucket()
    rows = slow_batches(24 << 20, 0)
    storage = ObjectStorage(f"s3://{bucket}/a")
    job = begin(storage, rows.schema, 1, HashPartitioner("k"), SMALL_BUFFER)
    open_target(job, "append")
    run_map_task(job, 0, 0, slow_batches(1 << 10, 0))
    end = session(-1)
    with s3.requests(bucket) as requests:
        with pytest.raises(StorageError, match=r"have ended.*credential_provider") as error:
            run_map_task(job, 1, 0, rows)
        assert f"s3://{bucket}/a: the {end} have ended" in str(error.value)
        with pytest.raises(StorageError, match="have ended"):
            write_shuffle(rows, storage, keys="k", num_subpartitions=1)
    assert not [one for one in requests if one.method in ("PUT", "POST")]


CHANGES = {
    "merge": lambda path: merge_shuffle(
        path, policy=MergePolicy(rewrite="always"), by="map_output"
    ),
    "deletion": lambda path: delete_rows(path, {"k": [1]}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_merge_and_a_deletion_announce_it_too(s3, session, caplog, change):
    path = f"s3://{s3.new_bucket()}/a"
    session(120)
    for _ in range(2):
        write_shuffle(pa.table({"k": [1]}), path, keys="k", num_subpartitions=1, mode="append")
    session(-1)
    with pytest.raises(StorageError, match="have ended"):
        change(path)
    end = session(30)
    with caplog.at_level(logging.WARNING):
        change(path)
    (told,) = caplog.messages
    assert f"{path}: the {end} end soon" in told


def test_a_provider_of_obstore_is_named_like_any_other(s3, monkeypatch, tmp_path):
    """It takes a profile, which obstore itself does not read."""
    path = f"s3://{s3.new_bucket()}/a"
    (tmp_path / "credentials").write_text(
        f"[of-test]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "of-test")
    known = {name: value for name, value in s3.options.items() if "key" not in name}
    options = known | {"credential_provider": "obstore.auth.boto3:Boto3CredentialProvider"}
    write_rows(path, pa.table({"k": [1]}), "k", storage_options=options)
    assert open_shuffle(path, storage_options=options).num_rows == 1
