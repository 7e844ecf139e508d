"""The sections of the document that are not about clusters, with what is inside their entries."""

from __future__ import annotations

from typing import Final

from scheduler.configuration.people_sections import Members, Organizations, People, Projects
from scheduler.configuration.quota_sections import Budgets, Limits, Prices
from scheduler.configuration.sections import Section


class _People(People):
    inside = (Limits(),)


class _Organizations(Organizations):
    inside = (Budgets(), Limits())


class _Projects(Projects):
    inside = (Members(), Budgets(), Limits())


OF_SITE: Final[tuple[Section, ...]] = (_People(), _Organizations(), _Projects(), Prices())
