"""Every "may this person do this to that?", as tables read by one function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Q, QuerySet
from django.utils import timezone

from accounts.models import Membership, Project, ProjectRole, SiteRole, User
from accounts.scopes import implied
from infra import request_context
from infra.errors import NotAllowed, NotFound

#: Each role may do what those before it may.
ROLE_ORDER: Final = (ProjectRole.VIEWER, ProjectRole.MEMBER, ProjectRole.LEAD)

VIEWER, MEMBER, LEAD = ROLE_ORDER
OPERATOR, AUDITOR = SiteRole.OPERATOR, SiteRole.AUDITOR


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may: the least project role, site roles, and the thing's own user while still a member.

    Site admins and superusers may whatever any site role may. `open_only` asks for an open project.
    """

    role: ProjectRole | None = None
    site: tuple[SiteRole, ...] = ()
    owner: bool = False
    open_only: bool = False
    admin: bool = True


#: On a project.
PROJECT_RULES: Final[Mapping[str, Rule]] = {
    "view": Rule(role=VIEWER, site=(OPERATOR, AUDITOR)),
    "submit": Rule(role=MEMBER, open_only=True, admin=False),
    "manage": Rule(role=LEAD),
    # The names of its secrets; jobs of members are given the values.
    "see_secrets": Rule(role=MEMBER),
    "view_quota": Rule(role=VIEWER, site=(OPERATOR, AUDITOR)),
    "ask_quota": Rule(role=LEAD, open_only=True),
    "split_quota": Rule(role=LEAD, site=(OPERATOR,)),
    "edit_quota": Rule(site=(OPERATOR,)),
}

#: On what somebody has in a project, a job: only `thing.project` and `thing.user` are looked at.
OWNED_RULES: Final[Mapping[str, Rule]] = {
    "view": Rule(role=VIEWER, site=(OPERATOR, AUDITOR)),
    "cancel": Rule(role=LEAD, site=(OPERATOR,), owner=True),
    "hold": Rule(role=LEAD, site=(OPERATOR,), owner=True),
    "release": Rule(role=LEAD, site=(OPERATOR,), owner=True),
    "requeue": Rule(role=LEAD, site=(OPERATOR,), owner=True),
    "edit": Rule(role=LEAD, site=(OPERATOR,), owner=True),
    "boost": Rule(site=(OPERATOR,)),
    # The values of its environment, which may be secrets.
    "see_inside": Rule(role=LEAD, owner=True),
    # The files of its working folder: those who work in the project, not those who only watch it or the site.
    "read_results": Rule(role=MEMBER, owner=True),
    "remove_results": Rule(role=LEAD, site=(OPERATOR,), owner=True),
}

#: On something personal, such as a token or an account: its person, and the site's admins.
PERSONAL_RULES: Final[Mapping[str, Rule]] = {
    "view": Rule(owner=True),
    "edit": Rule(owner=True),
    "revoke": Rule(owner=True),
}

#: On the site as a whole: `thing` is None, or something that belongs to no project (a node, an open queue).
SITE_RULES: Final[Mapping[str, Rule]] = {
    "view": Rule(site=(SiteRole.NONE,)),
    "operate": Rule(site=(OPERATOR,)),
    "audit": Rule(site=(AUDITOR,)),
    "administer": Rule(),
}


def may(user: Any, verb: str, thing: Any = None, *, roles: Mapping[int, str] | None = None) -> bool:
    """Whether the person may do this to that; one query for the role, none when `roles` is given.

    Site verbs (operate, audit, administer) mean the same whatever thing they are asked about. The token of
    the request under way, when it is this person's, narrows the answer to its project.
    """
    if not isinstance(user, User) or not user.is_active:
        return False
    if thing is None or (verb in SITE_RULES and verb != "view"):
        return not _held_to_a_project(user) and _site_allows(user, _rule(SITE_RULES, verb))
    if isinstance(thing, User):
        return _personal(user, verb, owner_id=thing.pk)
    if isinstance(thing, Project):
        return _in_project(user, _rule(PROJECT_RULES, verb), thing, owner_id=None, roles=roles)
    if hasattr(thing, "digest"):  # an API token: personal, though it may name a project
        return _personal(user, verb, owner_id=thing.user_id)
    if getattr(thing, "project_id", None) is None:
        return _site_allows(user, _rule(SITE_RULES, verb))
    if hasattr(thing, "user_id"):
        return _in_project(user, _rule(OWNED_RULES, verb), thing.project, owner_id=thing.user_id, roles=roles)
    return _in_project(user, _rule(PROJECT_RULES, verb), thing.project, owner_id=None, roles=roles)


def require(user: Any, verb: str, thing: Any = None) -> None:
    """Raise NotAllowed unless `may`; NotFound when the person may not even see the thing."""
    if may(user, verb, thing):
        return
    if thing is not None and not may(user, "view", thing):
        raise NotFound(
            f"There is no such {_kind(thing)}, or you may not see it.",
            way_out="Check the name, or ask a lead of its project to add you.",
            refused=(verb, thing),
        )
    raise NotAllowed(
        f"You do not have permission to {_action(verb, thing)}.",
        way_out=_way_out(verb, thing),
        refused=(verb, thing),
    )


def allowed_verbs(user: User, thing: Any, verbs: Iterable[str] | None = None) -> frozenset[str]:
    """The verbs the person may use on a thing, with one query: for buttons and the API's `actions`."""
    if verbs is None:
        verbs = PROJECT_RULES if isinstance(thing, Project) else OWNED_RULES
    project_id = thing.pk if isinstance(thing, Project) else thing.project_id
    roles = roles_of(user, project_ids=[project_id])
    return frozenset(verb for verb in verbs if may(user, verb, thing, roles=roles))


def roles_of(user: User, *, project_ids: Iterable[int] | None = None) -> dict[int, str]:
    """The person's present role in each project (or in those given); ended memberships are left out.

    By a token that is held to one project, the role there and no other.
    """
    memberships = current_memberships().filter(user=user)
    if (held_to := token_project_id(user)) is not None:
        memberships = memberships.filter(project=held_to)
    if project_ids is not None:
        memberships = memberships.filter(project_id__in=list(project_ids))
    return dict(memberships.values_list("project_id", "role"))


def current_memberships() -> QuerySet[Membership]:
    """Memberships that have not expired."""
    return Membership.objects.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now()))


def sees_everything(user: User) -> bool:
    """Operators, auditors and admins see all projects; a token held to one project does not."""
    return (user.is_operator or user.is_auditor) and not _held_to_a_project(user)


def token_project_id(user: User) -> int | None:
    """The one project that the token in use is held to, if it is this person's and is held at all.

    A person whom a token signed in carries it along, so that work outside the request is held to it as well.
    Raises RequestIsOver in what is sent after the answer was returned.
    """
    known = request_context.current()
    if known.token_user_id == user.pk:
        return known.token_project_id
    held_by = user.held_by
    return None if held_by is None else held_by.project_id


def standing(user: User) -> dict[str, Any]:
    """What the person may now, in plain values that can be kept: site rights, roles, and the limits of the token.

    `covers_standing` says later whether as much is still theirs.
    """
    known = request_context.current()
    by_token = known.token_user_id == user.pk and known.token_scopes is not None
    return {
        "site": [
            name
            for name, has in (
                ("operator", user.is_operator), ("auditor", user.is_auditor), ("admin", user.is_site_admin),
            )
            if has
        ],
        "roles": {str(project_id): role for project_id, role in roles_of(user).items()} if user.is_active else {},
        "project": token_project_id(user),
        "scopes": sorted(implied(known.token_scopes or ())) if by_token else None,
    }  # fmt: skip


def covers_standing(now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Whether somebody of that standing may see all that somebody of the other could; nothing kept is not enough."""
    if not then:
        return False
    if now["project"] is not None and now["project"] != then["project"]:
        return False
    if now["scopes"] is not None and (
        then["scopes"] is None or not set(then["scopes"]) <= set(now["scopes"])
    ):
        return False
    if not set(then["site"]) <= set(now["site"]):
        return False
    held_to = then["project"]
    return all(
        _rank(now["roles"].get(project_id)) >= _rank(role)
        for project_id, role in then["roles"].items()
        if held_to is None or project_id == str(held_to)
    )


def _rank(role: str | None) -> int:
    """-1 for none."""
    return -1 if role is None else ROLE_ORDER.index(ProjectRole(role))


def _rule(rules: Mapping[str, Rule], verb: str) -> Rule:
    try:
        return rules[verb]
    except KeyError:
        raise ValueError(f"no rule says who may {verb!r}; the tables know {', '.join(rules)}") from None


def _in_project(
    user: User, rule: Rule, project: Project, *, owner_id: int | None, roles: Mapping[int, str] | None
) -> bool:
    held_to = token_project_id(user)
    if held_to is not None and held_to != project.pk:
        return False
    if rule.open_only and not project.active:
        return False
    if _site_allows(user, rule):
        return True
    if rule.role is None:
        return False
    if roles is None:
        roles = roles_of(user, project_ids=[project.pk])
    role = roles.get(project.pk)
    if role is None:
        return False
    least = MEMBER if rule.owner and owner_id == user.pk else rule.role
    return ROLE_ORDER.index(ProjectRole(role)) >= ROLE_ORDER.index(least)


def _site_allows(user: User, rule: Rule) -> bool:
    if user.is_site_admin and rule.admin:
        return True
    return any(_has_site_role(user, role) for role in rule.site)


def _has_site_role(user: User, role: SiteRole) -> bool:
    if role == SiteRole.OPERATOR:
        return user.is_operator
    if role == SiteRole.AUDITOR:
        return user.is_auditor
    return role == SiteRole.NONE  # anybody who is signed in


def _personal(user: User, verb: str, *, owner_id: int) -> bool:
    rule = _rule(PERSONAL_RULES, verb)
    return (rule.owner and owner_id == user.pk) or (user.is_site_admin and not _held_to_a_project(user))


def _held_to_a_project(user: User) -> bool:
    return token_project_id(user) is not None


def _kind(thing: Any) -> str:
    return str(thing._meta.verbose_name) if hasattr(thing, "_meta") else "thing"


#: How a refusal names an action, where the verb with the thing after it is no sentence.
_ACTIONS: Final = {
    "operate": "operate this site",
    "audit": "read the audit trail of this site",
    "administer": "administer this site",
    "submit": "submit jobs to {}",
    "see_secrets": "see the secrets of {}",
    "view_quota": "see the quota of {}",
    "ask_quota": "request quota for {}",
    "split_quota": "divide the quota of {}",
    "edit_quota": "change the quota of {}",
    "see_inside": "see the environment and checkpoints of {}",
    "read_results": "read the results of {}",
    "remove_results": "remove the results of {}",
}


def _action(verb: str, thing: Any) -> str:
    return _ACTIONS.get(verb, f"{verb.replace('_', ' ')} {{}}").format(_named(thing))


def _named(thing: Any) -> str:
    return "this site" if thing is None else f"{_kind(thing)} {thing}"


def _way_out(verb: str, thing: Any) -> str:
    if request_context.current().token_project_id is not None:
        return "Your token is limited to one project; use one without that limit."
    if verb in ("operate", "edit_quota"):
        return "Ask an operator of this site."
    if verb == "audit":
        return "Ask an auditor of this site."
    if verb == "administer":
        return "Ask an admin of this site."
    if verb == "submit":
        project = thing if isinstance(thing, Project) else getattr(thing, "project", None)
        if project is not None and not project.active:
            return "The project is closed and accepts no new jobs; use another one."
        return "Viewers can only read; ask a lead of the project to make you a member."
    return "Ask a lead of the project, or an operator of this site."
