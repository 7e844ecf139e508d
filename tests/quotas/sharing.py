"""A site with two departments, three projects and some use: what the doors of shares are tried on."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace

from django.utils import timezone

from accounts.models import Project, User
from quotas.selectors.fair_share_source import Held
from quotas.services.shares import count_use
from tests.support.factories import (
    ClusterFactory,
    MembershipFactory,
    NodeFactory,
    OrganizationFactory,
    ProjectFactory,
    the_cast,
)


def use(project: Project, user: User, *, gpu_hours: float, ended: datetime | None = None) -> None:
    """So many GPU-hours in the hour before it ended."""
    end = (ended or timezone.now()).timestamp()
    count_use([Held(project.pk, user.pk, end - 3600, end, gpu_hours, 0.0, 0.0)])


def a_shared_site() -> SimpleNamespace:
    """Vision used three times what the others did together; Secret is a sibling that members may not know."""
    cast = the_cast()
    home = cast.project.organization
    home.share_weight = 3
    home.save()
    secret = ProjectFactory(slug="secret", name="Secret", organization=home, share_weight=2)
    hidden = MembershipFactory(project=secret).user
    other = ProjectFactory(slug="other", name="Other", organization=OrganizationFactory(name="Far away"))
    NodeFactory(cluster=ClusterFactory(), gpus=8)
    use(cast.project, cast.owner, gpu_hours=9)
    use(cast.project, cast.colleague, gpu_hours=3)
    use(secret, hidden, gpu_hours=4)
    use(other, MembershipFactory(project=other).user, gpu_hours=1, ended=timezone.now() - timedelta(days=1))
    return SimpleNamespace(cast=cast, home=home, secret=secret, hidden=hidden, other=other)
