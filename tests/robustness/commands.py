"""Malformed command lines and damaged files, and the judge of what the command line does with them.

`python -m tests.robustness.commands FILE [SEED]` runs 600 lines and 200 files in one process, a line of JSON for each.
A line may end well (0, 1) or be refused (2) in one line; a traceback, exit code 70 or more than 30 seconds of processor
time is a fault, and so are 300 seconds by the clock.
"""

import contextlib
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

from sigprop.cli.app import app, exit_code

LINES, FILES, LIMIT = 600, 200, 30
JUNK = ["", " ", "None", "nan", "inf", "-inf", "0", "-1", "1e23", "1e400", "99999999999999999999999", "a", "'a'", "[1]",
        "()", "{}", "true", "[[]]", "\x1b[31m", "\u202e", "../..", "/", "a=b", "=", "%s", "0x10", "1,2", ":", "::",
        "1:2:3:4", "é", "-", "--", "*", "__class__", "open('x')", "1j", "tpu", "cuda:9", "nan,nan", "b'x'", "0.5",
        "-0.0", "None,"]  # fmt: skip
SETTINGS = {
    "mlp": ["depth", "width", "activation", "sigma_w", "sigma_b", "inputs", "outputs", "norm", "residual"],
    "transformer": ["depth", "width", "heads", "context", "vocabulary", "dropout", "kind", "norm_placement", "norm"],
    "vit": ["depth", "width", "heads", "image", "patch", "channels", "classes"],
    "resnet": ["depth", "width", "channels", "classes"],
    "mixer": ["depth", "width", "image", "patch"],
}
CONFIG_KEYS = ["n_layer", "n_head", "n_embd", "vocab_size", "n_positions", "activation_function", "layer_norm_epsilon",
               "initializer_range", "resid_pdrop", "n_inner", "scale_attn_weights", "tie_word_embeddings",
               "bos_token_id", "architectures", "dtype", "torch_dtype", "attn_implementation"]  # fmt: skip
SMALL = ["--set", "depth=1", "--set", "width=8"]
BASES = [
    ["predict", "mlp", *SMALL, "--tokens", "4", "--state", "kernel", "--networks", "1",
     "--verify", "0", "--measure", "--seeds", "1"],
    ["predict", "transformer", *SMALL, "--set", "heads=1", "--tokens", "8", "--verify", "0"],
    ["measure", "mlp", *SMALL, "--batch", "2", "--tokens", "4", "--seeds", "1", "--sites", "*"],
    ["measure", "transformer", *SMALL, "--set", "heads=1", "--tokens", "8", "--batch", "1"],
    ["measure", "vit", *SMALL, "--set", "heads=1", "--batch", "1"],
    ["measure", "resnet", *SMALL, "--batch", "1"],
    ["measure", "mixer", *SMALL, "--batch", "1"],
    ["check", "mlp", *SMALL, "--batch", "1", "--tokens", "4", "--optimizer", "sgd", "--lr", "0.1", "--seed", "0",
     "--fail-on", "never", "--plan", "plan.json"],
    ["plan", "mlp", *SMALL, "--recipe", "xavier", "--depth", "none", "--base-width", "8", "--optimizer", "adamw"],
    ["plan", "transformer", *SMALL, "--set", "heads=1", "--recipe", "mup", "--base-width", "8", "--tokens", "8"],
    ["plan", "transformer", *SMALL, "--set", "heads=1", "--recipe", "unit", "--width", "mup", "--base-width", "4",
     "--option", "k=0.3", "--tokens", "8", "--compare", "xavier"],
    ["critical", "tanh", "--norm", "none", "--residual", "0", "--stages", "1"],
    ["critical", "leaky_relu", "--set", "slope=0.1"],
    ["research", "exponents", "muP", "--optimizer", "adam", "--alignment", "full", "--depth", "2"],
    ["research", "exponents", "a=0,0,1;b=0,1/2,1/2;c=0,0,1", "--optimizer", "sgd"],
    ["research", "phase", "mlp", "--sigma-w", "1:2:2", "--sigma-b", "0:1:2", "--residual", "0", "--activation", "tanh",
     "--norm", "none", "--inits", "1", "--depth", "2", "--width", "4", "--device", "cpu", "--seed", "0", "--quiet"],
    ["research", "phase", "mlp", "--measure", "--sigma-w", "1:2:2", "--sigma-b", "0:1:2", "--inits", "1", "--depth",
     "2", "--width", "4", "--device", "cpu", "--seed", "0", "--quiet"],
    ["coordcheck", "mlp", "--set", "depth=1", "--widths", "4,8", "--recipe", "mup", "--expect", "mup", "--depth-rule",
     "none", "--optimizer", "sgd", "--lr", "0.1", "--steps", "1", "--seeds", "1", "--tolerance", "9", "--quiet"],
    ["research", "reproduce", "list", "--scale", "small", "--device", "cpu"],
    ["research", "train", "mlp", *SMALL, "--train", "steps=1", "--train", "lr=0.1", "--train", "seed=0", "--quiet"],
    ["research", "sweep", "show", "nowhere"],
    ["recipes"],
    ["diff", "whole", "config.json", "--tokens", "4"],
    ["measure", "config.json", "--set", "n_layer=1", "--tokens", "4", "--batch", "1"],
    ["predict", "config.json", "--set", "n_layer=1", "--tokens", "4", "--verify", "0"],
]  # fmt: skip


def line(chance):
    """A command line with one to three things wrong with it."""
    base = list(chance.choice(BASES))
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        kind = chance.choice((0, 1, 2, 3, 3, 3, 4, 5, 6))
        values = [at for at in range(1, len(base)) if not base[at].startswith("--")]
        if kind <= 2 and values:
            base[chance.choice(values)] = chance.choice(JUNK)
        elif kind == 3:
            keys = next((SETTINGS[word] for word in base if word in SETTINGS), CONFIG_KEYS)
            base += ["--set", f"{chance.choice(keys)}={chance.choice(JUNK)}"]
        elif kind == 4:
            del base[chance.randrange(1, len(base)) if len(base) > 1 else 0 :][:1]
        elif kind == 5:
            base.insert(
                chance.randint(1, len(base)), chance.choice([*JUNK, "--json", "--all", "--help?", "-q", "--nothing"])
            )
        else:
            options = [at for at in range(1, len(base)) if base[at].startswith("--")]
            if options:
                at = chance.choice(options)
                base[at + 1 : at + 2] = [chance.choice(JUNK)]
    return base


def prepared(folder):
    """A small checkpoint, a config, a plan and a profile, good ones."""
    import torch
    import transformers

    from sigprop import plan
    from sigprop.models import build

    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=8, vocab_size=32, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config)
        mlp = build("mlp", depth=1, width=8)
    model.save_pretrained(folder / "whole")
    model.save_pretrained(folder / "sharded", max_shard_size="2KB")
    (folder / "config.json").write_text((folder / "whole/config.json").read_text())
    plan(mlp, "xavier").to_json(folder / "plan.json")
    (folder / "sweep.toml").write_text('[model]\nsource = "mlp"\nset = {depth = 1, width = 8}\n[train]\nsteps = 1\n')
    (folder / "sums.py").write_text("from torch import nn\n\ndef net():\n    return nn.Linear(2, 2)\n")


DAMAGED = [
    ("whole/model.safetensors", ["check", "whole", "--tokens", "4", "--batch", "1", "--quiet"]),
    ("sharded/model.safetensors.index.json", ["check", "sharded", "--tokens", "4", "--batch", "1", "--quiet"]),
    ("sharded/*.safetensors", ["measure", "sharded", "--tokens", "4", "--batch", "1", "--quiet"]),
    ("whole/config.json", ["check", "whole", "--tokens", "4", "--batch", "1", "--quiet"]),
    ("config.json", ["predict", "config.json", "--tokens", "4", "--verify", "0", "--quiet"]),
    ("plan.json", ["check", "mlp", *SMALL, "--plan", "plan.json", "--quiet"]),
    ("sweep.toml", ["research", "sweep", "run", "sweep.toml", "runs", "--quiet"]),
    ("sums.py", ["predict", "sums.py:net", "--quiet"]),
]


def damage(path, chance):
    """Bytes cut, changed, repeated or replaced; of a JSON file also one value."""
    content = path.read_bytes()
    kind = chance.randrange(7)
    place = chance.randrange(max(1, len(content)))
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[:place] + bytes(chance.randrange(256) for _ in range(8)) + content[place + 8 :]
    if kind == 2:
        return b"" if chance.random() < 0.3 else content[: min(8, place)]
    if kind == 3:
        return b"[" * 100_000 if path.suffix == ".json" else content + content[:place]
    if path.suffix != ".json":
        return bytes(chance.randrange(256) for _ in range(16)) + content[16:]
    data = json.loads(content)
    parent, keys = data, list(data)
    while True:
        key = chance.choice(keys)
        child = parent[key]
        if isinstance(child, (dict, list)) and child and chance.random() < 0.7:
            parent, keys = child, list(child) if isinstance(child, dict) else list(range(len(child)))
            continue
        parent[key] = chance.choice(
            [None, "x", -1, 0, 1e308, 10**30, [], {}, [[]], True, "../../etc/passwd", 0.5, [1, 2]]
        )
        return json.dumps(data).encode()


class Late(BaseException):
    """A command took too long."""


def outcome(arguments):
    """Exit code, seconds, and what was printed on stderr; 'hang' where it took too long."""

    def late(number, frame):
        raise Late

    out, err = io.StringIO(), io.StringIO()
    before = [signal.signal(number, late) for number in (signal.SIGALRM, signal.SIGPROF)]
    signal.alarm(10 * LIMIT)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    start = time.process_time()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = exit_code(app, [str(item) for item in arguments])
    except Late:
        code = "hang"
    except BaseException as error:  # exit_code lets nothing out
        code = f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in zip((signal.SIGALRM, signal.SIGPROF), before, strict=True):
            signal.signal(number, handler)
    return code, time.process_time() - start, err.getvalue()


def fault(code, err):
    """What is wrong with how a command ended; empty where nothing is."""
    if code not in (0, 1, 2):
        return f"exit {code}: {err.strip().splitlines()[-2:] if err else ''}"
    if "Traceback" in err:
        return f"a traceback: {err.strip().splitlines()[-1]}"
    if code == 2 and not err.strip():
        return "refused without a word"
    return ""


def lines(count, seed=0):
    chance = random.Random(seed)
    return [line(chance) for _ in range(count)]


def judged_files(folder, count, seed=0):
    """Run a command on `count` damaged files, one after the other."""
    chance = random.Random(f"files {seed}")
    for number in range(count):
        pattern, command = DAMAGED[number % len(DAMAGED)]
        path = chance.choice(sorted(folder.glob(pattern)))
        whole = path.read_bytes()
        path.write_bytes(damage(path, chance))
        try:
            yield [pattern, *command], outcome(command), path
        finally:
            path.write_bytes(whole)


def main() -> None:
    warnings.simplefilter("ignore")
    target, seed = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    found = []
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        prepared(Path(name))
        runs = [(arguments, outcome(arguments)) for arguments in lines(LINES, seed)]
        runs += [(arguments, result) for arguments, result, _ in judged_files(Path(name), FILES, seed)]
        os.chdir("/")
    for arguments, (code, seconds, err) in runs:
        found.append({"command": arguments, "code": code, "seconds": round(seconds, 2), "fault": fault(code, err)})
    target.write_text("".join(json.dumps(row) + "\n" for row in found))
    print(Counter(str(row["code"]) for row in found), sum(bool(row["fault"]) for row in found), "faults")
    for row in found:
        if row["fault"] or row["seconds"] > 10:
            print(row)


if __name__ == "__main__":
    main()
