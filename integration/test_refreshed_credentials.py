"""Credentials that end during a job of Spark, refreshed in the tasks by a user's own module."""

import json
import time

import pyspark.sql.functions as sf

import arrow_shuffle
from tests.support.expiring_store import GRACE_S, LIFE_S, PROVIDER_MODULE, expiring
from tests.support.guarantees import guarantee


def slowly(batches):
    for batch in batches:
        yield batch
        time.sleep(0.5)


@guarantee("refreshed credentials")
def test_tasks_refresh_credentials_by_a_module_that_was_added_to_the_session(spark, s3, tmp_path):
    path = f"s3://{s3.new_bucket()}/a"
    with expiring(s3) as store:
        (tmp_path / "own_credentials.py").write_text(PROVIDER_MODULE.format(url=store.url))
        spark.addArtifact(str(tmp_path / "own_credentials.py"), pyfile=True)
        options = store.options | {"credential_provider": "own_credentials:provider"}
        frame = spark.range(0, 90_000, 1, 2).mapInArrow(slowly, "id long")
        began = time.monotonic()
        arrow_shuffle.write_shuffle(
            frame, path, keys="id", num_subpartitions=3, storage_options=options
        )
        assert time.monotonic() - began > LIFE_S + GRACE_S
        named = {f"storage.{name}": value for name, value in options.items()}
        read = spark.read.format("arrow_shuffle").options(**named).load(path)
        assert read.agg(sf.count("*"), sf.sum("id")).first() == (90_000, sum(range(90_000)))
        read.write.format("arrow_shuffle").options(
            **named, keys=json.dumps(["id"]), numSubpartitions=3
        ).mode("overwrite").save(path)
        assert store.refused == 0
        assert len(store.tokens) > 3
