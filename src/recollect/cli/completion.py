"""`recollect completion SHELL`: a script with which a shell completes commands and options.

The script is made from the parser of the commands, so that it knows each of them, and completes
without starting Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from recollect.cli.command_parser import CommandParser
from recollect.cli.display import add_examples

SCRIPT = """\
_recollect() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" path="recollect" words="" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$path ${{COMP_WORDS[i]}}" in
            {paths}) path="$path ${{COMP_WORDS[i]}}" ;;
        esac
    done
    case "$path" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _recollect recollect
"""
SHELLS = ("bash", "zsh")
# A fresh zsh has no completion at all until compinit; bashcompinit alone fails there.
ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
autoload -U +X bashcompinit && bashcompinit
"""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "completion", help="print a script that lets a shell complete commands and options"
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=" or ".join(SHELLS))
    add_examples(
        parser,
        'eval "$(recollect completion bash)"    # in ~/.bashrc',
        'eval "$(recollect completion zsh)"     # in ~/.zshrc',
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    print((ZSH if given.shell == "zsh" else "") + script(given.parser), end="")
    return 0


def script(parser: CommandParser) -> str:
    """Completion of every command that a parser knows, for bash."""
    known = dict(_commands(parser, "recollect"))
    paths = " | ".join(f'"{path}"' for path in known if path != "recollect")
    cases = "\n".join(
        f'        "{path}") words="{" ".join(words)}" ;;' for path, words in known.items()
    )
    return SCRIPT.format(paths=paths, cases=cases)


def _commands(parser: CommandParser, path: str) -> Iterator[tuple[str, list[str]]]:
    """Each command with the words that may follow it: options, choices and its own commands."""
    words: list[str] = []
    for argument in parser.arguments:
        words += [option for option in argument.option_strings if option.startswith("--")]
        if argument.choices is not None:
            words += map(str, argument.choices)
    yield path, [*parser.commands, *words]
    for name, command in parser.commands.items():
        yield from _commands(command, f"{path} {name}")
