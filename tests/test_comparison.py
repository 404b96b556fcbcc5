"""The comparison with other tuners: versions, what the table of views leaves out, benchmarks."""

import importlib.metadata
import re

import optuna.visualization
import pytest

import paxtune.plots
from tests.documents import ROOT
from tools.parity import rows

TEXT = (ROOT / 'docs' / 'comparison.md').read_text()
PEERS = ('Optuna', 'Ax', 'Ray')
NOTHING = '–'


def table_below(heading: str) -> list[dict[str, str]]:
    """The rows of the table below a heading."""
    lines = TEXT.partition(f'\n## {heading}\n')[2].partition('\n## ')[0].splitlines()
    cells = [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines if line[:1] == '|']
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


@pytest.mark.parametrize('package', ['optuna', 'optuna-dashboard', 'ray'])
def test_versions_are_the_installed_ones(package: str) -> None:
    (line,) = re.findall(
        rf'^\| {package}(?: \([^|]*\))? \| ([\d.]+) \|', TEXT, re.MULTILINE | re.IGNORECASE
    )
    assert line == importlib.metadata.version(package)


def test_no_view_of_another_is_missing_in_paxtune() -> None:
    views = table_below('Views')
    assert len(views) > 40
    for row in views:
        assert row['paxtune'][:1] != NOTHING, row
        assert row['Test'].startswith('`tests/'), row


def test_every_claim_about_paxtune_has_a_test() -> None:
    found = list(rows(TEXT))
    assert len(found) > 70
    for row in found:
        assert re.match(r'`tests/[\w/]+\.py::test_\w+`', row.cells['Test']), row


def test_every_figure_of_optuna_is_in_a_table() -> None:
    figures = {name for name in optuna.visualization.__all__ if name.startswith('plot_')}
    assert len(figures) >= 12
    assert figures <= set(re.findall(r'`(plot_\w+)`', TEXT))


def test_every_figure_of_paxtune_is_a_view() -> None:
    named = {
        name for row in table_below('Views') for name in re.findall(r'`(\w+)`', row['paxtune'])
    }
    assert set(paxtune.plots.__all__) <= named


def test_missing_features_name_their_peer_and_an_alternative() -> None:
    missing = table_below('Not in paxtune')
    assert missing
    for row in missing:
        assert any(peer.lower() in row['Who has it'].lower() for peer in PEERS), row
        assert row['What there is instead'], row


def test_measured_claims_have_results() -> None:
    measured = table_below('Measured')
    linked = [re.search(r'\((\.\./benchmarks/results/\w+\.md)\)', e['Benchmark']) for e in measured]
    assert sum(each is not None for each in linked) >= 7
    for row, link in zip(measured, linked, strict=True):
        if link is None:
            assert 'not in a benchmark yet' in row['Benchmark']
        else:
            assert (ROOT / 'docs' / link[1]).is_file()


@pytest.mark.parametrize(
    ('result', 'stated', 'measured'),
    [
        ('search_quality', '0.36 of the regret', 'is 0.36 of the better of'),
        ('search_quality', 'interval 0.22 to 0.64', '(0.22 to 0.64)'),
        ('search_tables', '1.00 after 25 trials', '0.89 (0.80–0.98) | 1.00 (0.86–1.17) | 0.98'),
        ('search_tables', '0.24 and 0.30', '| 0.15 (0.07–0.28) | 0.24 (0.13–0.44) | 0.30'),
        ('search_tables', '1.24 and 1.27', '| 1.13 (1.00–1.27) | 1.24 (0.98–1.59) | 1.27'),
        ('early_stopping', '5.4 times less', 'promoting_asha 5.42'),
        ('early_stopping', '4.3 with ASHA', 'asha 4.28'),
        ('early_stopping', '1.9 with the median', 'median 1.85'),
        ('early_stopping', '3.8 with our default', '3.84 (3.44 to 4.42)'),
        ('suggest_latency', '0.37 s', 'default 100 trials first 0.332 s later 0.3717'),
        ('suggest_latency', 'GP 0.14 s', 'optuna_gp 100 trials first 0.178 s later 0.1390'),
        ('suggest_latency', 'TPE 0.002 s', 'optuna_tpe 100 trials first 0.003 s later 0.0023'),
        (
            'suggest_latency',
            'Vizier 11.8 s',
            'stock_vizier 100 trials first 10.973 s later 11.8203',
        ),
        ('engines', '0.18 s with workers', 'workers 0.180 s'),
        ('engines', '0.30 s on Ray', 'ray 0.301 s'),
        ('engines', 'Ray Tune 1.87 s', 'ray_tune 1.868 s'),
        ('service_load', '891 reports', '1000 paxtune, PostgreSQL suggest 62/s report 891/s'),
        ('service_load', 'Optuna 509', '1000 Optuna, PostgreSQL suggest 27/s report 509/s'),
        ('step_time', '1.003 to 1.025', 'exit code 0: 1.025, 1.003, 1.018 and 1.02'),
        ('step_time', '1.009 to 1.05 on an H200', '1.009 (small, 7 rounds), 1.05 (124M'),
        ('packing', '11.4 times', '1M 16 lanes packed 4.38 ms alone 52.61 ms 11.358'),
        ('chaos', '63 faults', '63 faults'),
    ],
)
def test_measured_numbers_stand_in_the_results(result: str, stated: str, measured: str) -> None:
    (row,) = [each for each in table_below('Measured') if f'/{result}.md' in each['Benchmark']]
    assert stated in row['Result']
    text = (ROOT / 'benchmarks' / 'results' / f'{result}.md').read_text()
    assert ' '.join(measured.split()) in ' '.join(text.split())
