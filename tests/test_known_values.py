"""The page of known values shows each statement of the classes."""

from tests.known_values import MARK, PAGE, table


def test_known_values_page_has_the_table_of_the_classes() -> None:
    assert PAGE.read_text().partition(MARK)[2].strip() == table().strip(), (
        'python -m tests.known_values --write'
    )
