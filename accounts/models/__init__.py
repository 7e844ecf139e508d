"""The rows of people, projects, tokens and the audit trail."""

from accounts.models.audit import AuditChain, AuditCheck, AuditCheckpoint, AuditEvent, AuditOutcome
from accounts.models.project import Membership, Organization, Project, ProjectRole
from accounts.models.secret import Secret
from accounts.models.signin import SignInCount
from accounts.models.token import ApiToken
from accounts.models.user import SiteRole, User

__all__ = [
    "ApiToken",
    "AuditChain",
    "AuditCheck",
    "AuditCheckpoint",
    "AuditEvent",
    "AuditOutcome",
    "Membership",
    "Organization",
    "Project",
    "ProjectRole",
    "Secret",
    "SignInCount",
    "SiteRole",
    "User",
]
