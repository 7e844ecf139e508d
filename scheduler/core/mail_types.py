"""What a job may ask to be mailed about: the words of Slurm's --mail-type."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class MailType(StrEnum):
    """The words that a job's row keeps; ALL stands for several of them."""

    NONE = "NONE"
    BEGIN = "BEGIN"
    END = "END"
    FAIL = "FAIL"
    REQUEUE = "REQUEUE"
    INVALID_DEPEND = "INVALID_DEPEND"
    TIME_LIMIT = "TIME_LIMIT"
    TIME_LIMIT_90 = "TIME_LIMIT_90"
    TIME_LIMIT_80 = "TIME_LIMIT_80"
    TIME_LIMIT_50 = "TIME_LIMIT_50"
    ARRAY_TASKS = "ARRAY_TASKS"


#: What ALL stands for, as in Slurm.
ALL: Final = (MailType.BEGIN, MailType.END, MailType.FAIL, MailType.INVALID_DEPEND, MailType.REQUEUE)
#: Every word that may be written.
WORDS: Final = (*(word.value for word in MailType), "ALL")


def parse_mail_types(text: str) -> str:
    """The words of a list joined by commas, in any case, each once and in one order; ALL is written out.

    Raises ValueError that names the first unknown word, or says that NONE stands beside others.
    """
    given = [word.strip().upper() for word in text.split(",") if word.strip()]
    unknown = next((word for word in given if word not in WORDS), None)
    if unknown is not None:
        raise ValueError(f"{unknown[:40]!r} is not a type of mail; types are {', '.join(WORDS)}")
    wanted = {*given, *(ALL if "ALL" in given else ())} - {"ALL"}
    if MailType.NONE in wanted and len(wanted) > 1:
        raise ValueError("NONE stands for no mail at all; write it alone")
    return ",".join(word for word in MailType if word in wanted)
