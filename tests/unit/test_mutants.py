"""The mutation trial on planted modules: what it changes, what it leaves alone, and which tests it calls good."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from mutants import EQUIVALENT, PER_FILE, ROOT, SEED, TARGETS, chosen, located, read_equivalent  # noqa: E402
from mutators import mutants_of  # noqa: E402


@pytest.mark.parametrize(
    ("statement", "changes"),
    [
        ("x = a < 2", ["x = (a <= 2)", "x = (a > 2)", "x = a < (3)", "x = a < (1)"]),
        ("x = 0 <= a < b", ["x = (0 < a < b)", "x = (0 >= a < b)", "x = (0 <= a <= b)", "x = (0 <= a > b)",
                            "x = (1) <= a < b", "x = (-1) <= a < b"]),
        ("x = a == b", ["x = (a != b)"]),
        ("x = a + b * c", ["x = (a - (b * c))", "x = a + (b / c)"]),
        ("x = a and not b", ["x = (a) or (not b)", "x = a and (b)"]),
        ("x = min(a, b)", ["x = max(a, b)"]),
        ("x = a.clamp(min=b)", ["x = a.clamp(max=b)"]),
        ("x = f(a, b, c=1.5)", ["x = f(b, a, c=1.5)", "x = f(a, b, c=2.25)"]),
        ("x = f(a, 'b')", []),
        ("x = f(a[-1], -b)", ["x = f(a[(0)], -b)", "x = f(a[(-2)], -b)", "x = f(a[-1], (b))"]),
        ("x = b if a else c", ["x = b if (not (a)) else c"]),
        ("x = [a for a in b if a]", ["x = [a for a in b if (not (a))]"]),
        ("x[a] = True", ["pass", "x[a] = False"]),
        ("a.append(b)", ["pass"]),
        ("x += b", ["pass"]),
        ("raise ValueError(f'{a + 1}')", ["pass"]),
        ("return a, b", ["return (b, a)"]),
        ("return a < b", ["return not (a < b)", "return (a <= b)", "return (a > b)"]),
        ("return a - b", ["return -(a - b)", "return (a + b)"]),
        ("return a", ["return None"]),
        ("x = refuse(given=f'{a}', needed='b' + c, fix=d < 1)", []),
        ("assert a < b", []),
        ("'text'", []),
    ],
)  # fmt: skip
def test_each_change_of_a_statement(statement, changes):
    source = f'def f(a: int, b=None):\n    """Text."""\n    {statement}\n'
    found = [mutant.source.splitlines()[2].strip() for mutant in mutants_of("planted", source)]
    assert sorted(found) == sorted(changes)


def test_a_change_is_made_in_its_place_and_nowhere_else():
    source = (
        "x = 'ä·ß', 1 + 1  # text\n\n\nclass C:\n    def f(self) -> 'int':\n        if self.y:\n            return 2\n"
    )
    found = mutants_of("planted", source)
    assert {mutant.source for mutant in found if mutant.line == 1} == {
        source.replace("1 + 1", text) for text in ("(1 - 1)", "(2) + 1", "(0) + 1", "1 + (2)", "1 + (0)")
    }
    (negated,) = (mutant for mutant in found if mutant.kind == "negated condition")
    assert negated.source == source.replace("if self.y", "if (not (self.y))")
    assert (negated.function, negated.statement, negated.line) == ("C.f", "if self.y", 6)
    for mutant in found:
        ast.parse(mutant.source)


MANY = "def f(a, b):\n" + "".join(f"    x{number} = a < b + {number}\n" for number in range(10)) + "    a.pop()\n"


def test_which_changes_are_tried_depends_on_seed_and_content_and_not_on_lines():
    picked = chosen(mutants_of("m", MANY), 8, 0)
    moved = chosen(mutants_of("m", "import ast\n\n\n# text\n" + MANY), 8, 0)
    assert [mutant.content for mutant in picked] == [mutant.content for mutant in moved]
    assert picked[0].line != moved[0].line
    assert {mutant.content for mutant in picked} != {mutant.content for mutant in chosen(mutants_of("m", MANY), 8, 1)}
    # of each kind in turn, as long as there are any
    assert {mutant.kind for mutant in picked} == {"comparison", "arithmetic", "off by one", "dropped statement"}
    assert len(chosen(mutants_of("m", MANY), 10**6, 0)) == len(mutants_of("m", MANY))


def test_changes_known_to_change_nothing_are_not_tried(tmp_path):
    found = mutants_of("m", MANY)
    first, *others = chosen(found, 5, 0)
    keys = ("module", "function", "statement", "before", "after")
    path = tmp_path / "equivalent.json"
    path.write_text(json.dumps([{**dict(zip(keys, first.content, strict=True)), "reason": "speed"}]), "utf-8")
    equivalent = read_equivalent(path)
    assert list(equivalent.values()) == ["speed"]
    again = chosen(found, 5, 0, equivalent)
    assert first not in again
    assert set(others) <= set(again) | {first}
    assert read_equivalent(tmp_path / "none.json") == {}


def test_the_table_names_files_that_exist_and_each_gives_enough_to_try():
    equivalent = read_equivalent(EQUIVALENT)
    assert all(len(reason) > 20 for reason in equivalent.values())
    objectives = {path.stem for path in (ROOT / "src/limbeck/objectives").glob("[!_]*.py")} - {"messages"}
    assert objectives <= set(TARGETS)
    num = 0
    for name, target in TARGETS.items():
        found = located(ROOT, target)
        picked = chosen(mutants_of(name, (ROOT / found.source).read_text("utf-8")), PER_FILE, SEED, equivalent)
        for mutant in picked:
            ast.parse(mutant.source)
        assert len(picked) >= 10
        num += len(picked)
        assert all((ROOT / test).exists() for test in found.tests)
    assert num >= 150


PLANTED = """
def price(num, unit):
    if num >= 10:
        unit -= 2
    return num * unit
"""
GOOD = """
from planted import price

def test_price():
    assert [price(num, 20) for num in (1, 9, 10, 11)] == [20, 180, 180, 198]
"""
# runs every line and says next to nothing of the results
WEAK = """
from planted import price

def test_price():
    assert price(1, 20) is not None
    assert price(30, 20) < 30 * 20
"""
ENDLESS = "def count_down(num):\n    while num:\n        num -= 1\n    return num\n"
ENDS = "from endless import count_down\n\ndef test_end():\n    assert count_down(3) == 0\n"
DRIVER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import hypothesis, pytest
import mutants
root = Path(sys.argv[2])
mutants.TIMEOUT_FACTOR = float(sys.argv[3])
targets, found = {}, {}
for name in sys.argv[4:]:
    source, _, test = name.partition(":")
    targets[name] = mutants.Target(f"src/{source}.py", (f"tests/test_{test}.py",))
    changes = mutants.mutants_of(source, (root / targets[name].source).read_text())
    kinds = {"planted": ("comparison", "arithmetic", "dropped statement"), "endless": ("dropped statement",)}[source]
    found[name] = [each for each in changes if each.kind in kinds]
mutants.TIMEOUT_EXTRA_S = 5
trials = mutants.try_all(root, targets, found, num_workers=2)
share = mutants.report(trials)
print(json.dumps({"share": share, "of": len(trials), "survivors": [t.mutant.after for t in trials if not t.killed]}))
"""


def tried(folder: Path, *names: str, timeout_factor: float = 50, **texts: str) -> subprocess.CompletedProcess[str]:
    """A trial of the files named `source:test`."""
    files = {f"src/{name.partition(':')[0]}.py": texts["source"] for name in names}
    files |= {f"tests/test_{name.partition(':')[2]}.py": texts[name.partition(":")[2]] for name in names}
    for name, text in {**files, "pyproject.toml": ""}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", DRIVER, str(SCRIPTS), str(folder), str(timeout_factor), *names]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_a_good_test_kills_every_change_and_a_weak_one_is_found_out(tmp_path):
    done = tried(tmp_path, "planted:good", "planted:weak", source=PLANTED, good=GOOD, weak=WEAK)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    # two comparisons, one product, one dropped statement; the weak test sees neither the edge nor the product
    assert found == {"share": 6 / 8, "of": 8, "survivors": found["survivors"]}
    assert sorted(found["survivors"]) == ["(num / unit)", "(num > 10)"]
    assert "planted:3  price  [comparison]  num >= 10  ->  (num > 10)" in done.stdout
    assert "      in: if num >= 10" in done.stdout
    assert (tmp_path / "src/planted.py").read_text() == PLANTED  # nothing is changed where the code lives


def test_a_change_that_never_ends_counts_as_killed(tmp_path):
    done = tried(tmp_path, "endless:end", source=ENDLESS, end=ENDS, timeout_factor=1)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"share": 1.0, "of": 1, "survivors": []}


def test_tests_that_fail_on_unchanged_code_end_the_trial(tmp_path):
    done = tried(tmp_path, "planted:wrong", source=PLANTED, wrong=GOOD.replace("198", "200"))
    assert done.returncode == 2
    assert "FAIL" in done.stdout
    assert "198 != 200" in done.stdout  # what failed is shown


def test_only_known_files_can_be_asked_for():
    command = [sys.executable, str(SCRIPTS / "mutants.py"), "--list", "--only"]
    listed = subprocess.run([*command, "reduce"], capture_output=True, text=True, check=True)
    assert "reduce:" in listed.stdout
    refused = subprocess.run([*command, "reduction"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "--only names reduction; the files are" in refused.stderr


def test_a_mutant_is_known_by_what_it_changes():
    mutant = mutants_of("m", "x = 1\n")[0]
    assert replace(mutant, line=99).content == mutant.content
