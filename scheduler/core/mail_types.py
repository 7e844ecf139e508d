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
WORDS: Final = (*MailType, "ALL")
