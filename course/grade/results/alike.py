"""Near-identical solutions, for a person to look at. Names, comments and layout do not count; what is nearly the stub or the
reference says nothing."""

import ast
import io
import tokenize
from dataclasses import dataclass
from itertools import combinations

from course.exercises.sets import ExerciseSet

SHINGLE = 4  # tokens that are compared as one
NEAR = 0.9  # of the shingles of both: so much is called alike
OWN = 0.8  # nearer than this to the stub or the reference: not told
COMMON = (
    5  # more students than this, or a tenth of the class, with one and the same code: a usual way to write it
)


@dataclass(frozen=True)
class Pair:
    task: str
    one: str
    other: str
    similarity: float


def alike(results: list[dict], made: ExerciseSet) -> list[Pair]:
    """Pairs of students by task, the most similar first."""
    found = []
    for task in made.solutions:
        if task == "student":
            continue
        known = [shingles(text) for text in (made.stubs[task], made.solutions[task])]
        theirs = {
            r["student"]: shingles(r["solutions"][task]) for r in results if task in r.get("solutions", {})
        }
        theirs = {who: s for who, s in theirs.items() if s and all(similarity(s, k) < OWN for k in known)}
        written = list(theirs.values())
        usual = {s for s in set(written) if written.count(s) > max(COMMON, len(results) // 10)}
        for (one, a), (other, b) in combinations(sorted(theirs.items()), 2):
            if a not in usual and b not in usual and similarity(a, b) >= NEAR:
                found.append(Pair(task, one, other, similarity(a, b)))
    return sorted(found, key=lambda pair: (-pair.similarity, pair.task, pair.one))


def similarity(a: frozenset, b: frozenset) -> float:
    """Shingles in both, as a share of those in either."""
    return len(a & b) / len(a | b) if a and b else 0.0


def shingles(code: str) -> frozenset:
    """The code in its normal form, cut into overlapping runs of tokens; empty if it is no Python."""
    try:
        normal = normalised(code)
        words = [
            t.string or tokenize.tok_name[t.type]
            for t in tokenize.generate_tokens(io.StringIO(normal).readline)
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return frozenset()
    return frozenset(tuple(words[i : i + SHINGLE]) for i in range(len(words) - SHINGLE + 1))


def normalised(code: str) -> str:
    """One form for all that differ in local names, comments, docstrings, annotations and layout."""
    tree = ast.parse(code)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
            names.setdefault(node.arg if isinstance(node, ast.arg) else node.id, f"v{len(names)}")
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.arg, node.annotation = names[node.arg], None
        elif isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
