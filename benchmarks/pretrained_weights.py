"""A pretrained model against `transformers`: logits, greedy tokens, memory while loading.

    TRANSFORMERS_PYTHON benchmarks/pretrained_weights.py reference DIR reference.npz [ADAPTER]
    python -m benchmarks.pretrained_weights compare DIR reference.npz

`reference` runs where torch and transformers are, and imports nothing else. `compare` loads the
directory as a warm start does. Resident memory counts the weights and all else that loading takes.
"""

import argparse
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

NEW_TOKENS, NUM_GREEDY = 32, 10
TEXTS = (
    'The capital of France is',
    'def add(a, b):\n    return a + b\n\nprint(add(2, 3))',
    'Once upon a time, in a small village near the sea, there lived an old fisherman',
    'Water boils at',
    'The largest planet of the solar system is',
    '1, 2, 3, 5, 8, 13,',
    '>>> import numpy as np\n>>> x = np.',
    'Q: Who wrote Hamlet?\nA:',
    'She opened the door and saw',
    'In 1969, humans first landed on',
    'The opposite of hot is',
    'To make bread you need flour, water,',
    'class Stack:\n    def push(self, item):',
    'Dear Sir or Madam,',
    'A prime number is a number that',
    'SELECT name FROM users WHERE',
    'Photosynthesis is the process by which',
    'My favourite colour is',
    'The three states of matter are',
    'Guten Morgen! Wie geht es',
)


def write_reference(directory: str, file: str, adapter: str = '') -> None:
    """Writes ids, logits and greedy continuations of the texts, with an adapter if there is one."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    if adapter:
        import peft

        model = peft.PeftModel.from_pretrained(model, adapter)
    arrays: dict[str, np.ndarray] = {}
    for i, text in enumerate(TEXTS):
        ids = tokenizer(text, return_tensors='pt').input_ids
        with torch.no_grad():
            arrays |= {f'ids{i}': ids.numpy(), f'logits{i}': model.eval()(ids).logits.numpy()}
        if i < NUM_GREEDY:
            for _ in range(NEW_TOKENS):  # Ends of texts do not end it.
                with torch.no_grad():
                    best = model(ids).logits[:, -1:].argmax(-1)
                ids = torch.cat([ids, best], dim=1)
            arrays[f'greedy{i}'] = ids[0, -NEW_TOKENS:].numpy()
    np.savez(file, allow_pickle=False, **arrays)


def resident_bytes() -> int:
    """Memory of this process, files mapped into it included."""
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith('VmRSS')) * 1024


def watched(work: Callable[[], Any]) -> tuple[Any, int]:
    """The result of some work, and the most memory that it took beyond that of before."""
    before, most, is_done = resident_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not is_done.wait(0.005):
            most = max(most, resident_bytes() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        return work(), max(most, resident_bytes() - before)
    finally:
        is_done.set()
        thread.join()


def compare(directory: str, file: str) -> None:
    """Prints differences from the reference, and memory."""
    import jax

    from trainer.decoding import Greedy
    from trainer.experiment import Experiment, TrainLoop
    from trainer.inputs.synthetic import SyntheticLmInput
    from trainer.layers.base import ForwardContext
    from trainer.learner import SGD, Learner
    from trainer.pretrained.families import model_of
    from trainer.program.setup import compiled, localized
    from trainer.program.step_functions import decode
    from trainer.tasks import LanguageModelTask
    from trainer.warm_start.warm_start import WarmStartLoader, warm_start_sources
    from trainer.warm_start_rules import Pretrained

    model = model_of(directory)
    task = LanguageModelTask(
        model=model,
        learner=Learner(1e-3, optimizer=SGD()),
        decoder=Greedy(max_decode_steps=NEW_TOKENS),
    )
    data = SyntheticLmInput(
        batch_size=1, is_training=True, sequence_length=64, vocab_size=model.vocab_size
    )
    made = Experiment(
        task=task, train_input=data, train=TrainLoop(init_from_checkpoint=Pretrained(directory))
    )
    program, values = compiled(localized(made))
    key = program.random_key(0)
    # A first state compiles, and a second one shows the memory of loading alone.
    loader = WarmStartLoader(made, warm_start_sources(made, '/nowhere'), program)
    loader.load(key, values)
    began = time.perf_counter()
    state, extra = watched(lambda: jax.block_until_ready(loader.load(key, values)))
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
    print(f'{weights / 1e6:.0f} MB of weights, loaded in {time.perf_counter() - began:.1f} s; ')
    print(f'{extra / 1e6:.0f} MB of memory at most, {extra / weights:.2f} x the weights')

    arrays = np.load(file)
    apply = jax.jit(model.module().apply)
    ids = [arrays[f'ids{i}'] for i in range(len(TEXTS))]
    longest = max(each.shape[1] for each in ids)
    worst, agree, total = 0.0, 0, 0
    for i, each in enumerate(ids):
        row = np.zeros((1, longest), np.int32)
        row[:, : each.shape[1]] = each
        logits = np.asarray(apply({'params': state.params}, row))[:, : each.shape[1]]
        wanted = arrays[f'logits{i}']
        worst = max(worst, float(np.abs(logits - wanted).max()))
        agree += int((logits.argmax(-1) == wanted.argmax(-1)).sum())
        total += each.shape[1]
    print(
        f'largest difference of a logit {worst:.2g}; most likely tokens agree at {agree} of {total}'
    )
    rows = np.zeros((NUM_GREEDY, longest + NEW_TOKENS), np.int32)
    lengths = np.array([each.shape[1] for each in ids[:NUM_GREEDY]], np.int32)
    for row, each in zip(rows, ids, strict=False):
        row[: each.shape[1]] = each[0]
    batch = {'ids': rows, 'prefix_lengths': lengths}
    decoding = jax.jit(
        lambda params: decode(task, {'params': params}, batch, key, ForwardContext())
    )
    texts = np.asarray(decoding(state.params).decoded.ids_BNT)[:, 0]
    equal = sum(bool((text == arrays[f'greedy{i}']).all()) for i, text in enumerate(texts))
    print(f'{equal} of {NUM_GREEDY} greedy continuations of {NEW_TOKENS} tokens are identical')


def main() -> None:
    """Runs one of the two."""
    flags = argparse.ArgumentParser()
    flags.add_argument('work', choices=['reference', 'compare'])
    flags.add_argument('directory')
    flags.add_argument('file', help='the .npz file between them')
    flags.add_argument('adapter', nargs='?', default='', help='a directory of peft')
    args = flags.parse_args()
    if args.work == 'reference':
        write_reference(args.directory, args.file, args.adapter)
    else:
        compare(args.directory, args.file)


if __name__ == '__main__':
    main()
