"""Would the tests notice? Changes the code a little, many times, and reports each change that no test notices.

    python scripts/mutants.py                       # as many of each file as `make mutants` tries
    python scripts/mutants.py --only forms,optim    # some of the files
    python scripts/mutants.py --per-file 30         # more of each file
    python scripts/mutants.py --list                # what would be tried

Each change (a mutant) is made in a temporary copy of the tree, and the tests of its file run there until one fails.
A mutant is killed when a test fails or the tests take far too long, and has survived otherwise. Which mutants are
tried depends on their content and the seed alone, so lines may move. Those in mutants_equivalent.json are left out:
they change nothing that a test could see, and the file says why.

Exit code 0 when at least 90 % are killed, 1 otherwise, 2 when the tests fail on unchanged code.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib.util
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path

from mutators import Mutant, mutants_of

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Target:
    """A file and the tests that ought to notice a change of it, the quickest first; ** is any folders between."""

    source: str
    tests: tuple[str, ...]


def _target(source: str, *tests: str) -> Target:
    return Target(f"src/limbeck/{source}.py", tuple(f"tests/{test}.py" for test in tests))


def located(root: Path, target: Target) -> Target:
    """The target with the one path that each of its names stands for."""

    def one(pattern: str) -> str:
        (path,) = root.glob(pattern)
        return path.relative_to(root).as_posix()

    return Target(one(target.source), tuple(one(test) for test in target.tests))


TARGETS = {
    "cross_entropy": _target("objectives/cross_entropy", "unit/objectives/test_cross_entropy"),
    "divergence": _target(
        "objectives/divergence", "unit/objectives/test_divergence", "unit/objectives/test_divergence_numerics"
    ),
    "forms": _target("objectives/forms", "unit/objectives/test_divergence", "unit/objectives/test_divergence_numerics"),
    "fused": _target("objectives/fused", "unit/objectives/test_fused", "unit/objectives/test_head_and_readings"),
    "head": _target("objectives/head", "unit/objectives/test_head_and_readings", "unit/objectives/test_fused"),
    "objective": _target("objectives/objective", "unit/objectives/test_objective"),
    "reduce": _target("objectives/reduce", "unit/objectives/test_reduce"),
    "topk": _target("objectives/topk", "unit/objectives/test_topk"),
    "sampling": _target("rollouts/sampling", "unit/rollouts/test_sampling"),
    "optim": _target("training/optim", "unit/training/test_optim"),
    "batches": _target("training/batches", "unit/training/test_batches"),
    "statistics": _target("evaluation/**/statistics", "unit/evaluation/**/test_statistics"),
    "verdict": _target("evaluation/**/verdict", "unit/evaluation/**/test_verdict"),
    "targets": _target("data/targets", "unit/data/test_targets"),
    "split": _target("data/split", "unit/data/test_split"),
}

SEED = 0
PER_FILE = 11
SHARE_NEEDED = 0.9
NUM_WORKERS = 2
EQUIVALENT = Path(__file__).parent / "mutants_equivalent.json"
# Imported once for all trials; none of them is the code under test.
PRELOADED = ("numpy", "torch", "transformers", "transformers.models.llama.modeling_llama", "hypothesis")
NOT_COPIED = (".git", ".venv*", ".cache", "__pycache__", ".hypothesis", ".pytest_cache", ".ruff_cache", "runs", "build")
# Simulations that take minutes: without them too a change has to be noticed.
TESTS_LEFT_OUT = ("covers_the_truth", "seldom_gets", "settles_it", "interval_is_wide", "planted_gap")
# A trial may take so many times what the tests take on unchanged code, and this much more, before it counts as stuck.
TIMEOUT_FACTOR, TIMEOUT_EXTRA_S = 4, 30
OUTPUT = "output.txt"
MAX_BYTES = 8 * 2**30


@dataclass
class Trial:
    """A run of some tests in a copy of the tree, changed in one place or not at all."""

    tests: tuple[str, ...]
    timeout_s: float
    path: str = ""
    mutant: Mutant | None = None
    killed: bool = False
    seconds: float = 0.0
    output: str = ""


@dataclass
class Workplace:
    """A copy of the tree, and the trial that runs in it."""

    root: Path
    pid: int = 0
    trial: Trial | None = None
    started: float = 0.0
    original: dict[str, str] = field(default_factory=dict)

    def start(self, trial: Trial) -> None:
        self.trial, self.started = trial, time.monotonic()
        if trial.mutant is not None:
            path = self.root / trial.path
            self.original[trial.path] = path.read_text(encoding="utf-8")
            path.write_text(trial.mutant.source, encoding="utf-8")
        self.pid = os.fork()
        if self.pid == 0:
            _run_tests(self.root, trial.tests)

    def ended(self) -> bool:
        """Whether the trial is over; then its result is known and the tree as it was."""
        assert self.trial is not None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        self.trial.seconds = time.monotonic() - self.started
        if pid == 0:
            if self.trial.seconds < self.trial.timeout_s:
                return False
            os.killpg(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
        self.trial.killed = os.waitstatus_to_exitcode(status) != 0
        self.trial.output = (self.root / OUTPUT).read_text("utf-8", errors="replace")
        for path, text in self.original.items():
            (self.root / path).write_text(text, encoding="utf-8")
        self.original.clear()
        self.trial = None
        return True


def _run_tests(root: Path, tests: Sequence[str]) -> None:
    """Runs in a process of its own and never returns."""
    code = 3
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
        os.chdir(root)
        output = os.open(root / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["PYTHONPATH"] = str(root / "src")
        sys.path[:0] = [str(root / "src")]
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "--rootdir", str(root)]
        options += ["-k", " and ".join(f"not {name}" for name in TESTS_LEFT_OUT)]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what was imported for all trials
        if importlib.util.find_spec("hypothesis") is not None:
            options.append("--hypothesis-seed=0")
        code = int(pytest.main([*options, *tests]))
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        raise
    finally:
        os._exit(code)


def run_trials(root: Path, trials: Sequence[Trial], *, num_workers: int = NUM_WORKERS) -> Iterable[Trial]:
    """Runs trials in copies of the tree at `root`, several at once, and yields each when it is over."""
    waiting = list(reversed(trials))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        places = [Workplace(Path(folder) / f"tree-{number}") for number in range(min(num_workers, len(trials)))]
        for place in places:
            shutil.copytree(root, place.root, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
        while waiting or any(place.trial for place in places):
            for place in places:
                trial = place.trial
                if trial is not None and place.ended():
                    yield trial
                if place.trial is None and waiting:
                    place.start(waiting.pop())
            time.sleep(0.05)


def chosen(
    found: Sequence[Mutant], num: int, seed: int, equivalent: Mapping[tuple[str, ...], str] | None = None
) -> list[Mutant]:
    """`num` mutants of a file, of each kind in turn, in an order drawn from seed and content."""
    ways: dict[str, list[Mutant]] = {}
    for mutant in sorted(found, key=lambda mutant: _draw(seed, *mutant.content)):
        if mutant.content not in (equivalent or {}):
            ways.setdefault(mutant.kind, []).append(mutant)
    kinds = sorted(ways, key=lambda kind: _draw(seed, found[0].module, kind))
    rounds = zip_longest(*(ways[kind] for kind in kinds))
    return [mutant for mutant in chain.from_iterable(rounds) if mutant is not None][:num]


def _draw(seed: int, *words: str) -> bytes:
    return hashlib.sha256("\x00".join([str(seed), *words]).encode()).digest()


def read_equivalent(path: Path) -> dict[tuple[str, ...], str]:
    """The reason for each mutant that no test could notice, by its content."""
    if not path.exists():
        return {}
    entries = json.loads(path.read_text(encoding="utf-8"))
    keys = ("module", "function", "statement", "before", "after")
    return {tuple(entry[key] for key in keys): entry["reason"] for entry in entries}


def try_all(
    root: Path, targets: Mapping[str, Target], chosen_of: Mapping[str, Sequence[Mutant]], *, num_workers: int
) -> list[Trial]:
    """A trial of each mutant, after one of the unchanged code for each set of tests.

    Raises:
        SystemExit (2): tests that fail on unchanged code.
    """
    sets = {target.tests for name, target in targets.items() if chosen_of[name]}
    # two at a time as later, so that their times can be compared
    plain = list(run_trials(root, [Trial(tests, timeout_s=1800) for tests in sorted(sets)], num_workers=num_workers))
    for trial in plain:
        print(f"{trial.seconds:6.1f} s  {'FAIL' if trial.killed else 'pass'}  {' '.join(trial.tests)}", flush=True)
        if trial.killed:
            print(trial.output[-4000:])
    if any(trial.killed for trial in plain):
        print("Tests fail on unchanged code, so that nothing can be said of changed code. Make them pass first.")
        raise SystemExit(2)
    timeouts = {trial.tests: TIMEOUT_FACTOR * trial.seconds + TIMEOUT_EXTRA_S for trial in plain}
    trials = [
        Trial(target.tests, timeouts[target.tests], target.source, mutant)
        for name, target in targets.items()
        for mutant in chosen_of[name]
    ]
    done = []
    for trial in run_trials(root, trials, num_workers=num_workers):
        done.append(trial)
        word = "killed" if trial.killed else "SURVIVED"
        print(f"{len(done):4d}/{len(trials)}  {trial.seconds:6.1f} s  {word}  {described(trial.mutant)}", flush=True)
    return done


def described(mutant: Mutant) -> str:
    return f"{mutant.module}:{mutant.line}  {mutant.function}  [{mutant.kind}]  {mutant.before}  ->  {mutant.after}"


def report(trials: Sequence[Trial]) -> float:
    """Prints the survivors and the shares killed; returns the share of all."""
    survivors = [trial.mutant for trial in trials if not trial.killed]
    print(f"\n{len(survivors)} survivors")
    for mutant in sorted(survivors, key=lambda mutant: (mutant.module, mutant.line)):
        print(f"  {described(mutant)}\n      in: {mutant.statement}")
    print("\nkilled   of  share  file")
    for path in dict.fromkeys(trial.path for trial in trials):
        print(_line([trial for trial in trials if trial.path == path], path))
    print(_line(trials, "in all"))
    return sum(trial.killed for trial in trials) / len(trials)


def _line(trials: Sequence[Trial], name: str) -> str:
    killed = sum(trial.killed for trial in trials)
    return f"{killed:6d} {len(trials):4d} {killed / len(trials):6.0%}  {name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of files, with commas between: " + ", ".join(TARGETS))
    parser.add_argument("--per-file", type=int, default=PER_FILE, help=f"mutants of each file ({PER_FILE})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"another seed tries other mutants ({SEED})")
    parser.add_argument("--workers", type=int, default=NUM_WORKERS, help=f"trials at once ({NUM_WORKERS})")
    parser.add_argument("--list", action="store_true", help="print what would be tried and stop")
    options = parser.parse_args()
    unknown = set(options.only.split(",") if options.only else ()) - set(TARGETS)
    if unknown:
        parser.error(f"--only names {', '.join(sorted(unknown))}; the files are {', '.join(TARGETS)}")
    names = [name for name in TARGETS if not options.only or name in options.only.split(",")]
    targets = {name: located(ROOT, TARGETS[name]) for name in names}
    equivalent = read_equivalent(EQUIVALENT)
    found = {name: mutants_of(name, (ROOT / target.source).read_text("utf-8")) for name, target in targets.items()}
    known = {mutant.content for mutants in found.values() for mutant in mutants}
    for content in equivalent:
        if content[0] in found and content not in known:
            print(f"{EQUIVALENT.name} holds a change that is no longer possible: {content}")
    chosen_of = {name: chosen(mutants, options.per_file, options.seed, equivalent) for name, mutants in found.items()}
    if options.list:
        for mutant in chain.from_iterable(chosen_of.values()):
            print(described(mutant))
        print(f"{sum(map(len, chosen_of.values()))} of {sum(map(len, found.values()))}")
        return 0
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", TOKENIZERS_PARALLELISM="0")
    sys.dont_write_bytecode = True
    os.nice(10)
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()
    return 0 if report(try_all(ROOT, targets, chosen_of, num_workers=options.workers)) >= SHARE_NEEDED else 1


if __name__ == "__main__":
    raise SystemExit(main())
