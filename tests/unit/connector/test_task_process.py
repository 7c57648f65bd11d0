import pytest

from tests.support.programs import printed

PROGRAM = """
import gc
import pyarrow as pa
from connector.task_process import begin_task

begin_task()
assert pa.cpu_count() == 1
frozen = gc.get_freeze_count()
later = [[] for _ in range(100)]
begin_task()
assert frozen == gc.get_freeze_count() > 10_000, (frozen, gc.get_freeze_count())
assert len(gc.get_objects()) < frozen
"""


@pytest.mark.slow
def test_the_first_task_of_a_process_freezes_what_is_loaded_and_no_other_does():
    printed(PROGRAM)
