import subprocess
import sys


def test_tensorflow_is_imported_at_first_use():
    program = 'import sys, trainer.inputs; print(*sorted(sys.modules))'
    result = subprocess.run(
        [sys.executable, '-c', program], capture_output=True, check=True, text=True
    )
    modules = set(result.stdout.split())
    assert 'trainer.inputs.seqio.seqio_input' in modules
    assert modules.isdisjoint({'tensorflow', 'tensorflow_datasets', 'seqio', 'sentencepiece'})
