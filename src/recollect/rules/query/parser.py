"""Queries from text, for the command line and HTTP: a tokenizer and a recursive descent.

    query      := both ("or" both)*
    both       := unary ("and" unary)*
    unary      := "not" unary | "(" query ")" | condition
    condition  := name ("=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=") value
                | name ["not"] "in" "(" [value ("," value)*] ")"
                | name "between" value "and" value
                | name "is" ["not"] ("absent" | "null")
    value      := number | "inf" | 'text' | "text" | "true" | "false"

Keywords ignore case. A quote inside quotes is doubled. A name is letters, digits, underscores
and dots; any other name, and a keyword as a name, stands in backticks.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NoReturn

from recollect.errors import QueryError
from recollect.rules.query.expression import (
    KEYWORDS,
    MAX_DEPTH,
    MAX_DIGITS,
    NAME,
    OPERATOR_NAMES,
    And,
    Field,
    Not,
    Op,
    Or,
    Query,
    Scalar,
    combine,
)

MAX_LENGTH = 100_000
_WINDOW = 60  # how much text an error shows

_TOKEN = re.compile(
    rf"""
      (?P<space>\s+)
    | (?P<number>[+-]?(?:inf|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)(?![\w.]))
    | (?P<string>'(?:[^']|'')*+'|"(?:[^"]|"")*+")
    | (?P<quoted>`(?:[^`]|``)++`)
    | (?P<word>{NAME.pattern})
    | (?P<symbol><=|>=|==|!=|<>|[=<>(),])
    """,
    re.VERBOSE | re.IGNORECASE,
)
_OPS: dict[str, Op] = {"=": "==", "<>": "!=", **{op: op for op in OPERATOR_NAMES}}


def parse(text: str) -> Query:
    """The query that `text` says; a `QueryError` points at what it can't read.

    >>> import recollect as rc
    >>> rc.parse("task = 'math' and score > 0.8")
    And(parts=(Compare(field='task', op='==', value='math'), Compare(field='score', op='>', value=0.8)))
    >>> rc.parse("task = math")
    Traceback (most recent call last):
    recollect.errors.QueryError: expected a value (text needs quotes) at position 8, found 'math'
      task = math
             ^
    """  # noqa: E501
    if not isinstance(text, str):
        raise QueryError(f"parse reads a str, got {type(text).__name__}")
    if len(text) > MAX_LENGTH:
        raise QueryError(f"a query may have {MAX_LENGTH} characters, this has {len(text)}")
    return _Parser(text).whole()


@dataclass(frozen=True)
class _Token:
    kind: str  # number, string, name or end; or the keyword or symbol itself
    text: str
    start: int


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = self._tokens()
        self.at = 0

    def whole(self) -> Query:
        query = self._either(0)
        self._expect("end", "`and`, `or` or the end")
        return query

    def _either(self, depth: int) -> Query:
        parts = [self._both(depth)]
        while self._accept("or"):
            parts.append(self._both(depth))
        return combine(Or, parts)

    def _both(self, depth: int) -> Query:
        parts = [self._unary(depth)]
        while self._accept("and"):
            parts.append(self._unary(depth))
        return combine(And, parts)

    def _unary(self, depth: int) -> Query:
        if depth > MAX_DEPTH:
            self._fail(f"at most {MAX_DEPTH} levels of parentheses and `not`")
        if self._accept("not"):
            return Not(self._unary(depth + 1))
        if self._accept("("):
            query = self._either(depth + 1)
            self._expect(")", "`and`, `or` or `)`")
            return query
        return self._condition()

    def _condition(self) -> Query:
        token = self._expect("name", "a field's name, `not` or `(`")
        field = Field(_unquote(token.text) if token.text[0] == "`" else token.text)
        if op := _OPS.get(self.token.kind):
            self.at += 1
            return field.compare(op, self._value())
        if self._accept("between"):
            low = self._value()
            self._expect("and", "`and` and the upper bound")
            return field.between(low, self._value())
        if self._accept("is"):
            op = "!=" if self._accept("not") else "=="
            if not self._accept("null"):
                self._expect("absent", "`absent` or `null`")
            return field.compare(op, None)
        if self._accept("not"):
            self._expect("in", "`in`")
            return Not(field.isin(self._values()))
        self._expect("in", "an operator (= != < <= > >=, in, not in, between, is)")
        return field.isin(self._values())

    def _values(self) -> list[Scalar]:
        self._expect("(", "`(` and a list of values")
        values: list[Scalar] = []
        while not self._accept(")"):
            if values:
                self._expect(",", "`,` or `)`")
            values.append(self._value())
        return values

    def _value(self) -> Scalar:
        token = self.token
        if token.kind in ("true", "false"):
            value: Scalar = token.kind == "true"
        elif token.kind == "string":
            value = _unquote(token.text)
        elif token.kind == "number":
            value = self._number(token.text)
        elif token.kind in ("null", "absent"):
            self._fail("a value (for absent ones write `is absent`)")
        else:
            self._fail("a value (text needs quotes)" if token.kind == "name" else "a value")
        self.at += 1
        return value

    def _number(self, text: str) -> Scalar:
        if text.lstrip("+-").isdigit():
            if len(text) > MAX_DIGITS:
                self._fail(f"a number of at most {MAX_DIGITS} digits")
            return int(text)
        value = float(text)
        if math.isinf(value) and not text.lower().endswith("inf"):
            self._fail("a number in the range of a float, or inf")
        return value

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def _accept(self, kind: str) -> bool:
        found = self.token.kind == kind
        self.at += found
        return found

    def _expect(self, kind: str, expected: str) -> _Token:
        token = self.token
        if not self._accept(kind):
            self._fail(expected)
        return token

    def _tokens(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while at < len(self.text):
            match = _TOKEN.match(self.text, at)
            if match is None:
                if self.text[at] in "'\"`":
                    _fail(self.text, at, "a closing quote", "none")
                _fail(self.text, at, "a name, a value or an operator", repr(self.text[at]))
            kind, text = str(match.lastgroup), match.group()
            if kind == "symbol" or (kind == "word" and text.lower() in KEYWORDS):
                kind = text.lower()
            elif kind in ("word", "quoted"):
                kind = "name"
            if kind != "space":
                tokens.append(_Token(kind, text, at))
            at = match.end()
        return [*tokens, _Token("end", "", len(self.text))]

    def _fail(self, expected: str) -> NoReturn:
        found = repr(self.token.text[:_WINDOW]) if self.token.text else "the end"
        _fail(self.text, self.token.start, expected, found)


def _unquote(text: str) -> str:
    return text[1:-1].replace(text[0] * 2, text[0])


def _fail(text: str, at: int, expected: str, found: str) -> NoReturn:
    start = max(0, at - _WINDOW)
    shown = "".join(c if c.isprintable() else " " for c in text[start : at + _WINDOW])
    raise QueryError(
        f"expected {expected} at position {at + 1}, found {found}\n"
        f"  {shown}\n  {' ' * (at - start)}^"
    )
