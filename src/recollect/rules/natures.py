"""What storages can execute: orders, weights, uniform draws, and mixtures of these.

A user may derive a selector of one of these natures. What says anything else would be executed as
something that it does not mean, so tables and storages refuse it.
"""

from __future__ import annotations

from collections.abc import Callable

from recollect.errors import InvalidValue
from recollect.rules.selectors import Mixed, Ordered, Proportional, Selector, Uniform, parts_of

NATURES = (Ordered, Proportional, Uniform)
_INSTEAD = (
    "order by a field with rc.Smallest or rc.Largest, weigh by a tag that you set with "
    "rc.Weighted, or mix selectors with rc.Mixed"
)


def check_executable(
    role: str, selector: Selector, knows: Callable[[Selector], bool] | None = None
) -> None:
    """Refuse what storages cannot execute, or would execute as something else than it means.

    `knows` says of a selector that a table's storage executes it nevertheless.
    """
    for part in (selector, *parts_of(selector)):
        if knows is not None and knows(part):
            continue
        if not isinstance(part, (*NATURES, Mixed)):
            raise unexecutable(part, role)
        added, ours = _additions(type(part))
        if added:
            raise InvalidValue(
                f"{role}: {type(part).__name__} adds {', '.join(added)} to {ours}, which no "
                f"storage asks for; {_INSTEAD}"
            )


def unexecutable(selector: Selector, role: str = "selector") -> InvalidValue:
    """What a storage raises for a selector that is of no nature it knows."""
    return InvalidValue(
        f"{role}: {type(selector).__name__} is no order and no weight that a storage could "
        f"execute; {_INSTEAD}"
    )


def _additions(kind: type[Selector]) -> tuple[list[str], str]:
    """What a class adds to one of ours that no storage would ask for, and the name of ours.

    It may say anew what ours says, have data, helpers that begin with `_`, and ways to be made.
    """
    bases = iter(kind.__mro__)
    added: list[str] = []
    while (base := next(bases)).__module__ != Selector.__module__:
        for name, value in vars(base).items():
            asked = callable(value) or isinstance(value, property | staticmethod)
            if asked and (name == "__call__" or not name.startswith("_")):
                added.append(name)
    known = {name for ours in (base, *bases) for name in vars(ours)}
    return [name for name in added if name not in known], base.__name__
