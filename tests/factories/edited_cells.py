"""Cells of a notebook, with edits that change their meaning."""

from typing import Any

HEAD = """
import dataclasses, enum, functools, types
import flax.linen as nn, jax, jax.numpy as jnp
from flax import nnx
from typing import Any, NamedTuple
from trainer.layers import Layer, LinenAdapter, Linear, NnxAdapter
from trainer.learner import Optimizer, Schedule
from trainer.losses import SoftmaxCrossEntropy
"""
NET = 'class Net(Layer):\n    def forward(self, x): return {}\nmade = Net()'
"""A cell."""


def cell(source: str, notebook: dict[str, Any]) -> Any:
    """Runs a cell; returns the value that it calls `made`."""
    exec(compile(source, '<cell>', 'exec'), notebook)
    return notebook.get('made')


def notebook() -> dict[str, Any]:
    found = {'__name__': 'a_notebook'}
    cell(HEAD, found)
    return found


EDITS = {
    'method': ('', NET.format('x'), NET.format('2 * x')),
    'constant': ('', NET.format('2 * x'), NET.format('2.0 * x')),
    'helper': ('', 'def f(x): return x\n' + NET.format('f(x)'), 'def f(x): return -x'),
    'helper of a helper': (
        'def g(x): return x\ndef f(x): return g(x)',
        NET.format('f(x)'),
        'def g(x): return -x',
    ),
    'global number': ('', 'SCALE = 1.0\n' + NET.format('SCALE * x'), 'SCALE = 100.0'),
    'global dict in place': ('C = {"a": 1}', NET.format('C["a"] * x'), 'C["a"] = 2'),
    'global array': ('A = jnp.ones(3)', NET.format('A * x'), 'A = jnp.zeros(3)'),
    'global object': (
        'C = types.SimpleNamespace(a=1)\nclass S: a = C',
        NET.format('S().a * x'),
        'class S: a = 2',
    ),
    'default of an argument': (
        'def f(x, by=1): return by * x',
        NET.format('f(x)'),
        'def f(x, by=2): return by * x',
    ),
    'closure': (
        'def maker(by):\n    def f(x): return by * x\n    return f\nf = maker(1)',
        NET.format('f(x)'),
        'f = maker(2)',
    ),
    'lambda': ('f = lambda x: x', NET.format('f(x)'), 'f = lambda x: -x'),
    'partial': (
        'def g(x, by): return by * x\nf = functools.partial(g, by=1)',
        NET.format('f(x)'),
        'f = functools.partial(g, by=2)',
    ),
    'jitted function': (
        '@jax.jit\ndef f(x): return x',
        NET.format('f(x)'),
        '@jax.jit\ndef f(x): return -x',
    ),
    'own gradient': (
        '@jax.custom_vjp\ndef f(x): return x\nf.defvjp(lambda x: (x, None), lambda _, g: (g,))',
        NET.format('f(x)'),
        'f.defvjp(lambda x: (x, None), lambda _, g: (-g,))',
    ),
    'base': (
        'class Base(Layer):\n    def forward(self, x): return x',
        'class Net(Base): pass\nmade = Net()',
        'class Base(Layer):\n    def forward(self, x): return -x\n'
        'class Net(Base): pass\nmade = Net()',
    ),
    'attribute of the class': (
        '',
        'class Net(Layer):\n    by = 1\n    def forward(self, x): return self.by * x\nmade = Net()',
        'Net.by = 2',
    ),
    'patched method': ('', NET.format('x'), 'Net.forward = lambda self, x: -x'),
    'patched property': (
        'class Base(Layer):\n    @property\n    def by(self): return 1',
        'class Net(Base):\n    def forward(self, x): return self.by * x\nmade = Net()',
        'Base.by = property(lambda self: 2)',
    ),
    'static method': (
        '',
        'class Net(Layer):\n    @staticmethod\n    def f(x): return x\nmade = Net()',
        'class Net(Layer):\n    @staticmethod\n    def f(x): return -x\nmade = Net()',
    ),
    'nested value': (
        'class Loss(SoftmaxCrossEntropy):\n    def of(self, o, l): return super().of(o, l)',
        'class Net(Layer):\n    loss: Any\nmade = Net([Loss()])',
        'class Loss(SoftmaxCrossEntropy):\n    def of(self, o, l): return 2 * super().of(o, l)\n'
        'made = Net([Loss()])',
    ),
    'function in a field': (
        'class Net(Layer):\n    f: Any',
        'def f(x): return x\nmade = Net(f)',
        'def f(x): return -x\nmade = Net(f)',
    ),
    'module of linen': (
        'class M(nn.Module):\n    @nn.compact\n    def __call__(self, x): return x',
        'class Net(LinenAdapter):\n    def make(self): return M()\nmade = Net()',
        'class M(nn.Module):\n    @nn.compact\n    def __call__(self, x): return -x',
    ),
    'module of nnx': (
        'class M(nnx.Module):\n    def __call__(self, x): return x',
        'class Net(NnxAdapter):\n    def make(self, rngs): return M()\nmade = Net()',
        'class M(nnx.Module):\n    def __call__(self, x): return -x',
    ),
    'fields of a module of linen': (
        'module = nn.Dense(3)',
        'class Net(LinenAdapter):\n    def make(self): return module.clone()\nmade = Net()',
        'module = nn.Dense(4)',
    ),
    'edited function in a partial': (
        'def g(x, by): return by * x',
        'f = functools.partial(g, by=1)\n' + NET.format('f(x)'),
        'def g(x, by): return by - x\nf = functools.partial(g, by=1)',
    ),
    'decorator': (
        'def scaled(by):\n    def wrap(f):\n        @functools.wraps(f)\n'
        '        def inner(x): return by * f(x)\n        return inner\n    return wrap\n'
        '@scaled(1)\ndef f(x): return x',
        NET.format('f(x)'),
        '@scaled(2)\ndef f(x): return x',
    ),
    'decorated function': (
        'def scaled(f):\n    def inner(x): return 2 * f(x)\n    return inner\n'
        '@scaled\ndef f(x): return x',
        NET.format('f(x)'),
        '@scaled\ndef f(x): return -x',
    ),
    'reassigned method': (
        'class S:\n    def f(self, x): return x',
        NET.format('S().f(x)'),
        'S.f = lambda self, x: -x',
    ),
    'field of a dataclass': (
        '@dataclasses.dataclass\nclass S:\n    by: int = 1',
        NET.format('S().by * x'),
        '@dataclasses.dataclass\nclass S:\n    by: int = 2',
    ),
    'factory of a dataclass': (
        '@dataclasses.dataclass\nclass S:\n    by: list = dataclasses.field(default_factory=list)',
        NET.format('S().by * x'),
        '@dataclasses.dataclass\nclass S:\n'
        '    by: list = dataclasses.field(default_factory=lambda: [2])',
    ),
    'class in a function': (
        'def maker(by):\n    class S:\n        def f(self, x): return by * x\n    return S\n'
        'S = maker(1)',
        NET.format('S().f(x)'),
        'S = maker(2)',
    ),
    'state of a callable object': (
        'class S:\n    def __init__(self, by): self.by = by\n'
        '    def __call__(self, x): return self.by * x\nf = S(1)',
        NET.format('f(x)'),
        'f = S(2)',
    ),
    'class of a callable object': (
        'class S:\n    def __call__(self, x): return x\nf = S()',
        NET.format('f(x)'),
        'class S:\n    def __call__(self, x): return -x\nf = S()',
    ),
    'setup of a module of linen': (
        'class M(nn.Module):\n    def setup(self): self.f = nn.Dense(3)\n'
        '    def __call__(self, x): return self.f(x)',
        'class Net(LinenAdapter):\n    def make(self): return M()\nmade = Net()',
        'class M(nn.Module):\n    def setup(self): self.f = nn.Dense(3, use_bias=False)\n'
        '    def __call__(self, x): return self.f(x)',
    ),
    'list of a class': (
        'class L(list):\n    def total(self): return sum(self)\nS = L([1])',
        NET.format('S.total() * x'),
        'class L(list):\n    def total(self): return -sum(self)\nS = L([1])',
    ),
    'number of a class': (
        'class F(float):\n    def twice(self): return 2 * self\nS = F(1)',
        NET.format('S.twice() * x'),
        'class F(float):\n    def twice(self): return 3 * self\nS = F(1)',
    ),
    'member of an enum': (
        'class E(enum.Enum):\n    A = 1',
        NET.format('E.A.value * x'),
        'class E(enum.Enum):\n    A = 2',
    ),
    'metaclass': (
        'class M(type):\n    def f(cls, x): return x\nclass S(metaclass=M): pass',
        NET.format('S.f(x)'),
        'class M(type):\n    def f(cls, x): return -x\nclass S(metaclass=M): pass',
    ),
    'attribute of a function': (
        'def f(x): return f.by * x\nf.by = 1',
        NET.format('f(x)'),
        'f.by = 2',
    ),
    'other function of a name': (
        'def f(x): return x\ndef g(x): return -x\nh = f',
        NET.format('h(x) + f(x) + g(x)'),
        'h = g',
    ),
    'function of a library': ('f = jnp.tanh', NET.format('f(x)'), 'f = jnp.sin'),
    'namespace': (
        'C = types.SimpleNamespace(a=1)',
        NET.format('C.a * x'),
        'C = types.SimpleNamespace(a=2)',
    ),
    'layer': ('layer = Linear(3)', NET.format('layer(x)'), 'layer = Linear(4)'),
    'partial in a field': (
        'class Net(Layer):\n    f: Any\ndef g(x, by): return by * x',
        'made = Net(functools.partial(g, by=1))',
        'made = Net(functools.partial(g, by=2))',
    ),
    'lambda in a field': (
        'class Net(Layer):\n    f: Any',
        'made = Net(lambda x: x)',
        'made = Net(lambda x: -x)',
    ),
    'two lambdas in fields': (
        'class Net(Layer):\n    f: Any\n    g: Any',
        'made = Net(lambda x: x, lambda x: -x)',
        'made = Net(lambda x: -x, lambda x: x)',
    ),
    'two swapped functions': (
        'def f(x): return x\ndef g(x): return -x',
        NET.format('f(x) + 2 * g(x)'),
        'def f(x): return -x\ndef g(x): return x',
    ),
    'large list in place': (
        'L = list(range(20_000))',
        NET.format('L[0] * x'),
        'L[0] = 5',
    ),
    'attribute that objects change': (
        'class S:\n    by = 1\n    def f(self, x):\n        self.by += 1\n'
        '        return self.by * x',
        NET.format('S().f(x)'),
        'S.by = 2',
    ),
    'partial method': (
        '',
        'class Net(Layer):\n    def f(self, x, by): return by * x\n'
        '    g = functools.partialmethod(f, by=1)\n'
        '    def forward(self, x): return self.g(x)\nmade = Net()',
        'class Net(Layer):\n    def f(self, x, by): return by * x\n'
        '    g = functools.partialmethod(f, by=2)\n'
        '    def forward(self, x): return self.g(x)\nmade = Net()',
    ),
    'descriptor': (
        'class D:\n    def __init__(self, by): self.by = by\n'
        '    def __get__(self, owner, kind): return self.by',
        'class S:\n    by = D(1)\n' + NET.format('S().by * x'),
        'class S:\n    by = D(2)',
    ),
    'function for a type': (
        '@functools.singledispatch\ndef f(x): return x\n@f.register\ndef _(x: int): return x',
        NET.format('f(x)'),
        '@f.register\ndef _(x: int): return -x',
    ),
    'method for a type': (
        'class S:\n    @functools.singledispatchmethod\n    def f(self, x): return x\n'
        '    @f.register\n    def _(self, x: int): return x',
        NET.format('S().f(x)'),
        'class S:\n    @functools.singledispatchmethod\n    def f(self, x): return x\n'
        '    @f.register\n    def _(self, x: int): return -x',
    ),
    'long text': ('T = "a" * 100_000', NET.format('len(T) * x'), 'T += "b"'),
}
