"""A job of Spark that is ours: described in Spark's UI, and cancelled when its caller is stopped.

It runs in a thread of its own. What describes a job are properties of the thread that starts it, so
those of the caller stay as they are. And Ctrl-C, or the stop button of a notebook, interrupts the
caller while it waits for that thread, not in the middle of an answer of the JVM: its connection
still works, and cancels the job.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from connector.environment.report import raise_cause
from connector.session import is_connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

Result = TypeVar("Result")

SECONDS_BETWEEN_CANCELS = 0.2
"""A job that was not there yet when it was cancelled is there at one of the next."""


def run_as_job(spark: SparkSession, what: str, action: Callable[[], Result]) -> Result:
    """Return the result of an action of Spark, such as ``collect()``.

    Its jobs have the tag ``arrow_shuffle <what> <unique>`` and, on a classic session, the
    description ``arrow_shuffle <what>``; those of Spark Connect are described by the server. They
    have the caller's tags and properties too. When an exception such as KeyboardInterrupt comes
    while they run they are cancelled, and it passes once none runs; the next one passes at once.

    Raises what the action raises; or, where a Python that lacks something is the cause, an
    OptionError that says what to do.
    """
    tag = job_tag(what)
    if is_connect(spark):
        started: Callable[[], Result] = _tagged_on_connect(spark, tag, action)
    else:
        started = _tagged_on_classic(spark, tag, f"arrow_shuffle {what}", action)
    # No join(): one that Ctrl-C interrupts takes the thread for ended (Python 3.11).
    done: Future[Result] = Future()
    try:
        threading.Thread(
            target=_run, args=(started, done), name="arrow_shuffle job", daemon=True
        ).start()
        wait([done])
    except BaseException:
        while not done.done():
            with contextlib.suppress(Exception):  # such as that the session was stopped
                _cancel(spark, tag)
            wait([done], SECONDS_BETWEEN_CANCELS)
        raise
    try:
        return done.result()
    except Exception as error:
        raise_cause(spark, error)
        raise


def job_tag(what: str) -> str:
    """Return a tag of its own for a job; Spark allows no comma in one."""
    return f"arrow_shuffle {what} {secrets.token_hex(4)}".replace(",", ";")


def _run(action: Callable[[], Result], done: Future[Result]) -> None:
    try:
        result = action()
    except BaseException as error:  # the caller raises it
        done.set_exception(error)
    else:
        done.set_result(result)


def _tagged_on_classic(
    spark: SparkSession, tag: str, description: str, action: Callable[[], Result]
) -> Callable[[], Result]:
    """Return a function for another thread, with the properties of this one and our own."""
    from pyspark import inheritable_thread_target

    def run() -> Result:
        context = spark.sparkContext
        context.addJobTag(tag)
        context.setJobDescription(description)
        return action()

    inherits: Any = inheritable_thread_target(spark)
    inheriting: Callable[[], Result] = inherits(run)
    return inheriting


def _tagged_on_connect(
    spark: SparkSession, tag: str, action: Callable[[], Result]
) -> Callable[[], Result]:
    """Return a function for another thread, with the tags of this one and our own."""
    tags = {*spark.getTags(), tag}

    def run() -> Result:
        for each in tags:
            spark.addTag(each)
        return action()

    return run


def _cancel(spark: SparkSession, tag: str) -> None:
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)
