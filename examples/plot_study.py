"""Plots of a study with one reward, from `study.to_pandas()`. The cells run in a notebook as well.

    python -m examples.plot_study --study_dir=runs/lm.StdlibTunable --out=plots.html

Where there is no study, it makes one first, of `examples.bare_function`: 24 trials, which take 20
seconds on two cores; the best has an error of about 0.0001.
"""

# %% Flags.
import argparse
from pathlib import Path

import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from examples import bare_function
from paxtune import load_study

flags = argparse.ArgumentParser()
flags.add_argument('--study_dir', default='runs/examples.plot_study')
flags.add_argument('--num_trials', type=int, default=24, help='of the study that is made')
flags.add_argument('--out', default='plots.html')
args, _ = flags.parse_known_args()  # A notebook has arguments of its own.

# %% The study.
if not Path(args.study_dir, 'study.db').exists():
    bare_function.search(args.num_trials, job_log_dir=args.study_dir).close()
study = load_study(args.study_dir)
(reward,) = study.rewards
trials = study.to_pandas()
trials[['state', 'stopped', reward.label, 'reason']]

# %% Optimization history: every trial, and the best so far of those that ran to their end.
done = trials[(trials.state == 'COMPLETED') & ~trials.stopped][reward.label]
best = done.cummin() if reward.goal == 'minimize' else done.cummax()
history = px.scatter(trials.reset_index(), x='trial', y=reward.label, color='stopped')
history.add_trace(go.Scatter(x=best.index, y=best, mode='lines', line_shape='hv', name='best'))
history.update_layout(title='Optimization history')

# %% Parallel coordinates: which decisions go with good rewards.
columns = [name for name in trials if name.startswith('decisions.')]
ranked = trials.dropna(subset=[reward.label])


def axis(values: pd.Series) -> dict:
    """Makes an axis for numbers, or one with a tick for each other value."""
    label = values.name.removeprefix('decisions.').split('.')[-1]
    numbers = pd.to_numeric(values, errors='coerce')
    if numbers.notna().all():
        return {'label': label, 'values': numbers}
    codes, names = pd.factorize(values.astype(str), sort=True)
    return {'label': label, 'values': codes, 'tickvals': [*range(len(names))], 'ticktext': names}


parallel = go.Figure(
    go.Parcoords(
        dimensions=[axis(ranked[name]) for name in [*columns, reward.label]],
        line={'color': ranked[reward.label], 'showscale': True},
    )
)
parallel.update_layout(title='Decisions')

# %% Learning curves: the reward at each measurement, which the table of final values lacks.
measured = pd.DataFrame(
    [
        {'trial': str(trial.id), 'outcome': trial.status, 'step': each.step, 'reward': each.reward}
        for trial in study.trials
        for each in trial.measurements
    ]
)
curves = px.line(
    measured,
    x='step',
    y='reward',
    color='outcome',
    line_group='trial',
    hover_name='trial',
    log_y=bool((measured.reward > 0).all()),
)
curves.update_layout(title='Learning curves', yaxis_title=reward.label)

# %% All plots in one file, which works offline.
html = [
    figure.to_html(full_html=False, include_plotlyjs=i == 0)
    for i, figure in enumerate([history, parallel, curves])
]
Path(args.out).write_text('\n'.join(html))
study.close()
print(f'{len(trials)} trials are plotted in {args.out}.')
