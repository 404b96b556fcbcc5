import gc
import weakref

import pytest

from trainer.runtime.garbage_collection import GcSchedule, begin_start_up, end_start_up


class Circle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.pax('gc_interval_steps')
def test_garbage_is_collected_at_its_steps_alone() -> None:
    with pytest.raises(KeyError), GcSchedule(4) as garbage:
        assert not gc.isenabled()
        seen = weakref.ref(Circle())
        for step in (1, 2, 3):
            garbage.after(step)
            assert seen() is not None
        garbage.after(4)
        assert seen() is None
        raise KeyError
    assert gc.isenabled()


def test_none_leaves_it_to_python() -> None:
    with GcSchedule(None) as garbage:
        assert gc.isenabled()
        garbage.after(4)
    gc.disable()
    try:
        with GcSchedule(4):
            pass
        assert not gc.isenabled()  # It was not, before.
    finally:
        gc.enable()


def test_nothing_is_collected_until_a_command_has_started() -> None:
    begin_start_up()
    try:
        seen = weakref.ref(Circle())
        assert not gc.isenabled()
    finally:
        end_start_up()
    assert gc.isenabled() and gc.get_freeze_count() > 0
    gc.collect()
    assert seen() is not None  # It was made before.
    gc.unfreeze()
    gc.collect()
    assert seen() is None


def test_the_end_of_a_start_changes_nothing_where_none_began() -> None:
    gc.disable()
    try:
        end_start_up()
        assert not gc.isenabled()
    finally:
        gc.enable()
