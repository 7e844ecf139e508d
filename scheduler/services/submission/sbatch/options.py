"""The options of `sbatch` as getopt_long reads them: names, short letters, which take a value, and words of a line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from scheduler.services.submission.fields import BadValue

#: Options that stand alone.
FLAGS: Final = frozenset(
    [
        "contiguous",
        "help",
        "hold",
        "ignore-pbs",
        "no-requeue",
        "overcommit",
        "oversubscribe",
        "parsable",
        "quiet",
        "reboot",
        "requeue",
        "spread-job",
        "test-only",
        "usage",
        "use-min-nodes",
        "verbose",
        "version",
        "wait",
    ]
)
#: Options whose value, if there is one, is joined to them: `--nice=10`, and `--nice 10` is `--nice` and a word.
OPTIONAL: Final = frozenset(["exclusive", "get-user-env", "nice", "no-kill", "propagate"])
_VALUED: Final = [
    "account",
    "acctg-freq",
    "array",
    "batch",
    "bb",
    "bbf",
    "begin",
    "chdir",
    "cluster-constraint",
    "clusters",
    "comment",
    "constraint",
    "container",
    "core-spec",
    "cores-per-socket",
    "cpu-freq",
    "cpus-per-gpu",
    "cpus-per-task",
    "deadline",
    "delay-boot",
    "dependency",
    "distribution",
    "error",
    "exclude",
    "export",
    "export-file",
    "extra-node-info",
    "gid",
    "gpu-bind",
    "gpu-freq",
    "gpus",
    "gpus-per-node",
    "gpus-per-socket",
    "gpus-per-task",
    "gres",
    "gres-flags",
    "hint",
    "input",
    "job-name",
    "kill-on-invalid-dep",
    "licenses",
    "mail-type",
    "mail-user",
    "mcs-label",
    "mem",
    "mem-bind",
    "mem-per-cpu",
    "mem-per-gpu",
    "mincpus",
    "network",
    "nodefile",
    "nodelist",
    "nodes",
    "ntasks",
    "ntasks-per-core",
    "ntasks-per-gpu",
    "ntasks-per-node",
    "ntasks-per-socket",
    "open-mode",
    "output",
    "partition",
    "power",
    "prefer",
    "priority",
    "profile",
    "qos",
    "reservation",
    "signal",
    "sockets-per-node",
    "switches",
    "tasks-per-node",
    "thread-spec",
    "threads-per-core",
    "time",
    "time-min",
    "tmp",
    "uid",
    "wait-all-nodes",
    "wckey",
    "wrap",
]
#: Options of this portal that Slurm does not have.
OWN: Final = frozenset(["relax", "secret", "upload"])
LONG: Final = frozenset([*FLAGS, *OPTIONAL, *_VALUED, *OWN])
SHORT: Final = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task",
    "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "h": "help",
    "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "M": "clusters", "m": "distribution",
    "N": "nodes", "n": "ntasks", "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos",
    "S": "core-spec", "s": "oversubscribe", "t": "time", "V": "version", "v": "verbose", "W": "wait",
    "w": "nodelist", "x": "exclude",
}  # fmt: skip
#: Two names of one option.
SAME: Final = {"tasks-per-node": "ntasks-per-node"}
#: Options that mean something without a value: no array, no dependency, nothing exported.
MAY_BE_EMPTY: Final = frozenset(["array", "dependency", "export"])

#: Variables of a person's shell that `sbatch` reads, and the options that they give.
VARIABLES: Final = {
    **{
        f"SBATCH_{name.upper().replace('-', '_')}": name
        for name in [
            "account",
            "acctg-freq",
            "batch",
            "clusters",
            "constraint",
            "container",
            "core-spec",
            "cpus-per-gpu",
            "delay-boot",
            "distribution",
            "exclusive",
            "export",
            "get-user-env",
            "gpu-bind",
            "gpu-freq",
            "gpus",
            "gpus-per-node",
            "gpus-per-task",
            "gres",
            "gres-flags",
            "hint",
            "ignore-pbs",
            "job-name",
            "mem-bind",
            "mem-per-cpu",
            "mem-per-gpu",
            "network",
            "no-kill",
            "no-requeue",
            "open-mode",
            "overcommit",
            "partition",
            "power",
            "profile",
            "qos",
            "requeue",
            "reservation",
            "signal",
            "spread-job",
            "thread-spec",
            "threads-per-core",
            "use-min-nodes",
            "wait",
            "wait-all-nodes",
            "wckey",
        ]
    },
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_DEBUG": "verbose",
    "SBATCH_MEM_PER_NODE": "mem",
    "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_TIMELIMIT": "time",
}

#: Characters that word processors write for a hyphen.
_DASHES: Final = {
    "\u2010": "hyphen", "\u2011": "non-breaking hyphen", "\u2012": "figure dash", "\u2013": "en dash",
    "\u2014": "em dash", "\u2015": "horizontal bar", "\u2212": "minus sign", "\ufe58": "small em dash",
    "\ufe63": "small hyphen-minus", "\uff0d": "full-width hyphen",
}  # fmt: skip


class Option(NamedTuple):
    """One option: its whole name and its value, None where it has none."""

    name: str
    value: str | None


def split_words(text: str) -> list[str]:
    """The words of a #SBATCH line: quotes join, # begins a comment also behind a word, a backslash outside quotes is
    dropped, and # behind one is no comment."""
    words: list[str] = []
    word: list[str] | None = None
    quote = before = ""
    for letter in text:
        escaped, before = before == "\\", letter
        if quote:
            if letter == quote:
                quote = ""
            elif word is not None:
                word.append(letter)
        elif letter in "'\"":
            quote, word = letter, word if word is not None else []
        elif letter.isspace():
            if word is not None:
                words.append("".join(word))
            word = None
        elif letter == "#" and not escaped:
            break
        elif letter != "\\":
            word = _add(word, letter)
    if quote:
        raise BadValue(f"the quotation mark {quote} is not closed")
    if word is not None:
        words.append("".join(word))
    return words


def _add(word: list[str] | None, letter: str) -> list[str]:
    word = word if word is not None else []
    word.append(letter)
    return word


def read_options(words: Sequence[str]) -> Iterator[Option]:
    """The options of one line in order; raises BadValue at the first word that is none."""
    place = 0
    while place < len(words):
        word, place = words[place], place + 1
        if word == "--":
            if place < len(words):
                raise BadValue(f"{words[place][:60]!r} comes after --; only options are read")
            return
        if word.startswith("--"):
            option, taken = _long(word[2:], words[place:])
            place += taken
            yield option
        elif word.startswith("-") and len(word) > 1:
            for option, taken in _letters(word[1:], words[place:]):
                place += taken
                yield option
        else:
            raise BadValue(_no_option(word))


def _long(text: str, rest: Sequence[str]) -> tuple[Option, int]:
    """A long option, and how many of the words after it are its value."""
    said, equals, value = text.partition("=")
    name = whole_name(said)
    if name in FLAGS:
        if equals:
            raise BadValue(f"--{name} takes no value; {value[:40]!r} is one")
        return Option(name, None), 0
    if equals:
        return Option(name, _valued(name, value)), 0
    if name in OPTIONAL:
        return Option(name, None), 0
    if not rest:
        raise BadValue(f"--{name} needs a value")
    return Option(name, _valued(name, rest[0])), 1


def _letters(text: str, rest: Sequence[str]) -> Iterator[tuple[Option, int]]:
    """Short options that are written together, the last with its value."""
    for place, letter in enumerate(text):
        name = SHORT.get(letter)
        if name is None:
            raise BadValue(_no_letter(letter, text))
        after = text[place + 1 :]
        if name in FLAGS:
            yield Option(name, None), 0
            continue
        if name in OPTIONAL:
            yield Option(name, after or None), 0
        elif after:
            yield Option(name, _valued(name, after)), 0
        elif rest:
            yield Option(name, _valued(name, rest[0], f"-{letter}")), 1
        else:
            raise BadValue(f"-{letter} (--{name}) needs a value")
        return


def _valued(name: str, value: str, said: str = "") -> str:
    if not value and (said or name not in MAY_BE_EMPTY):
        raise BadValue(f"{said or f'--{name}'} needs a value, and the one given is empty")
    return value


def whole_name(said: str) -> str:
    """The option that a name or its beginning means; raises BadValue with the name that may have been meant."""
    if said in LONG:
        return SAME.get(said, said)
    begun = sorted(name for name in LONG - OWN if said and name.startswith(said))
    if len({SAME.get(name, name) for name in begun}) == 1:
        return SAME.get(begun[0], begun[0])
    if begun:
        raise BadValue(
            f"--{said[:60]} may be {', '.join(f'--{name}' for name in begun[:12])}; write the whole name"
        )
    near = difflib.get_close_matches(said[:60].lower().replace("_", "-"), sorted(LONG), n=1, cutoff=0.6)
    hint = f"did you mean --{near[0]}?" if near else "leave the option out"
    raise BadValue(f"there is no option --{said[:60]}; {hint}")


def _no_option(word: str) -> str:
    if word[:1] in _DASHES:
        return f"{word[:60]!r} begins with {_named(word[0])}; write the hyphen - of the keyboard"
    if word in ("hetjob", "packjob", ":"):
        return f"{word}: jobs of several shapes do not exist here; submit one job for each shape"
    return f"{word[:60]!r} is not an option; options begin with - or --"


def _no_letter(letter: str, text: str) -> str:
    if letter in _DASHES:
        return (
            f"{('-' + text)[:60]!r} has {_named(letter)}; write the hyphen - of the keyboard, as in --mem=1G"
        )
    near = difflib.get_close_matches(re.split("[= ]", text)[0], sorted(LONG), n=1, cutoff=0.7)
    hint = f"did you mean --{near[0]}?" if near else "leave the option out"
    return f"there is no option -{letter}; {hint}"


def _named(letter: str) -> str:
    return f"the character {letter} (U+{ord(letter):04X}, {_DASHES[letter]})"
