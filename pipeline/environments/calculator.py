"""The built-in environment `calculator`: a task with a tool that takes its time.

Role: an example of tool use, of a delayed reward, and of what waits.
Data in: what the model says: an expression that ends with the call sign is a call, anything else is its answer.
Data out: the value of the expression, after `latency_s`; at the answer the reward, part of it credited to the turn of
the call that made it possible.
Invariants: expressions are integers with + - * and brackets, parsed, never evaluated as code.
Failure: an expression that is none gives `error`; nothing is raised.
"""

from __future__ import annotations

import ast
import asyncio
import operator
import re
from collections.abc import Callable
from random import Random

from pipeline.environments.base import Action, Observation, Task

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_EXPRESSION = re.compile(r"[0-9+\-*() ]{1,64}")
_NUMBER = re.compile(r"-?\d+")
_MOST = 10**12  # values beyond are errors: a tool bounds what it gives


class Calculator:
    """See the module.

    Args:
        latency_s: of each call.
        jitter: each latency is drawn from latency_s * (1 - jitter) to latency_s * (1 + jitter).
        call: sign at the end of a call.
        error: answer to a call that is no expression.
        right: reward of the right answer.
        credit: what the turn of the last useful call gets of it, once the answer is right.
    """

    def __init__(
        self,
        *,
        latency_s: float = 0.0,
        jitter: float = 0.0,
        call: str = "=",
        error: str = "?",
        right: float = 1.0,
        credit: float = 0.0,
    ) -> None:
        if latency_s < 0 or not 0 <= jitter <= 1:
            raise ValueError(f"latency_s {latency_s} and jitter {jitter}; allowed are 0 and up, and 0 to 1")
        self._latency_s, self._jitter = latency_s, jitter
        self._call, self._error = call, error
        self._right, self._credit = right, credit
        self._wanted: int | None = None
        self._useful: int | None = None  # turn of the last call that gave the wanted value
        self._draws = Random()  # noqa: S311 - spreads latencies

    async def reset(self, task: Task) -> Observation:
        """The task is the expression in the prompt, or the number in its reference answer."""
        self._draws = Random(task.seed * 65_537 + task.member)  # noqa: S311 - spreads latencies
        wanted = _NUMBER.search(task.answer) if task.answer is not None else None
        self._wanted = int(wanted[0]) if wanted is not None else evaluate(task.prompt)
        if self._wanted is None:
            raise ValueError(f"no reference answer, and the prompt is no expression: {task.prompt!r:.80}")
        return Observation()

    async def step(self, action: Action) -> Observation:
        """Compute, or judge the answer."""
        text = action.text.strip()
        if not text.endswith(self._call):
            return self._judge(text, turn=action.turn)
        await asyncio.sleep(self._latency_s * (1 + self._jitter * self._draws.uniform(-1, 1)))
        value = evaluate(text[: -len(self._call)])
        if value is not None and value == self._wanted:
            self._useful = action.turn
        return Observation(text=self._error if value is None else str(value))

    async def close(self) -> None:
        """Nothing is held."""

    def _judge(self, text: str, *, turn: int) -> Observation:
        found = _NUMBER.search(text)
        right = found is not None and int(found[0]) == self._wanted
        used = "no" if self._useful is None else "yes"
        if not right:
            return Observation(done=True, facts={"right": "no", "used_tool": used})
        earlier = {} if self._useful is None or self._useful == turn else {self._useful: self._credit}
        return Observation(reward=self._right, done=True, earlier=earlier, facts={"right": "yes", "used_tool": used})


def evaluate(text: str) -> int | None:
    """The value of an expression of integers; None: it is none, or too large."""
    found = _EXPRESSION.fullmatch(text.strip().removesuffix("="))
    if found is None:
        return None
    try:
        tree = ast.parse(found[0].strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return None
    value = _value(tree.body)
    return value if value is not None and abs(value) <= _MOST else None


def _value(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _value(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left), _value(node.right)
        return None if left is None or right is None else _OPERATORS[type(node.op)](left, right)
    return None
