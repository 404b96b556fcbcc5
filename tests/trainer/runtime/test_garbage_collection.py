import gc
import weakref

import pytest

from trainer.runtime.garbage_collection import GcSchedule


class Circle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


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
