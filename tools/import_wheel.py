"""Imports every module of the installed wheel, and runs its command.

python import_wheel.py <where it is installed>
"""

import importlib
import pathlib
import pkgutil
import subprocess
import sys

root = pathlib.Path(sys.argv[1]).resolve()
for name in ('trainer', 'paxtune', 'search_spaces'):
    package = importlib.import_module(name)
    where = pathlib.Path(package.__path__[0]).resolve()
    assert where == root / name, f'{name} came from {where}, not from the wheel'
    assert (where / 'py.typed').exists(), f'{name} was packed without py.typed'
    modules = [found.name for found in pkgutil.walk_packages(package.__path__, f'{name}.')]
    for module in modules:
        importlib.import_module(module)
    print(f'{name}: {len(modules)} modules')
script = importlib.import_module('paxtune.plots.script').script()
assert script.is_small, 'the wheel was packed without plotly.js: see tools/hatch_build.py'
print(f'plotly.js: {len(script.packed)} bytes')
subprocess.run([sys.executable, root / 'bin' / 'paxtune', '--version'], check=True)
