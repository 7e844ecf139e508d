"""Admin pages of people and their API tokens."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.decorators import action, display
from unfold.forms import AdminPasswordChangeForm, UserCreationForm
from unfold.widgets import (
    UnfoldAdminEmailInputWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from accounts.admin.base import FactsAdmin, FactsInline, ReasonedForm, ServiceAdmin
from accounts.models import ApiToken, Membership, User
from accounts.services import audit
from accounts.services.tokens import revoke_token
from accounts.services.users import (
    create_user,
    disable_user,
    edit_user,
    enable_user,
    end_sessions,
    raise_access_version,
    set_site_role,
)
from infra.errors import MusterError

admin.site.unregister(Group)  # rights follow site roles and memberships; a group would do nothing

DETAILS = ("username", "first_name", "last_name", "email", "priority_ceiling", "is_demo")


class PersonForm(ReasonedForm):
    class Meta:
        model = User
        fields = (*DETAILS, "site_role", "is_active")
        widgets = {
            "username": UnfoldAdminTextInputWidget(),
            "first_name": UnfoldAdminTextInputWidget(),
            "last_name": UnfoldAdminTextInputWidget(),
            "email": UnfoldAdminEmailInputWidget(),
            "priority_ceiling": UnfoldAdminIntegerFieldWidget(),
            "is_demo": UnfoldBooleanSwitchWidget(),
            "site_role": UnfoldAdminSelectWidget(),
            "is_active": UnfoldBooleanSwitchWidget(),
        }

    def clean_priority_ceiling(self) -> int:
        ceiling: int = self.cleaned_data["priority_ceiling"]
        if ceiling > 100:
            raise forms.ValidationError("A priority goes from 0 to 100.")
        return ceiling


class MembershipsOfPerson(FactsInline):
    model = Membership
    fields = ("project", "role", "expires_at")
    readonly_fields = fields
    verbose_name_plural = "projects"


class TokensOfPerson(FactsInline):
    model = ApiToken
    fields = ("name", "prefix", "scopes", "expires_at", "last_used_at", "revoked_at")
    readonly_fields = fields


@admin.register(get_user_model())
class PersonAdmin(ServiceAdmin, DjangoUserAdmin):  # type: ignore[misc, type-arg]  # mixins over both
    """Operators look; admins make accounts, give site roles, shut accounts and end sessions."""

    edit_verb = "administer"
    form = PersonForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("username", "full_name", "email", "role", "state", "last_login", "date_joined")
    list_filter = ("site_role", "is_active", "is_demo")
    search_fields = ("username", "first_name", "last_name", "email")
    ordering = ("username",)
    filter_horizontal = ()
    readonly_fields = ("last_login", "date_joined", "access_version", "is_staff", "is_superuser")
    fieldsets = (
        (None, {"fields": ("username", ("first_name", "last_name"), "email")}),
        ("Rights", {"fields": ("site_role", "is_active", "priority_ceiling", "is_demo", "reason")}),
        (
            "Facts",
            {"fields": (("last_login", "date_joined"), "access_version", ("is_staff", "is_superuser"))},
        ),
    )
    add_fieldsets = (
        (None, {"classes": ("wide",), "fields": ("username", "usable_password", "password1", "password2")}),
    )
    inlines = (MembershipsOfPerson, TokensOfPerson)
    actions = ("disable", "end_their_sessions")

    @display(description="Name")
    def full_name(self, person: User) -> str:
        return person.get_full_name()

    @display(description="Site role", label={"admin": "danger", "operator": "warning", "auditor": "info"})
    def role(self, person: User) -> str:
        return "admin" if person.is_superuser else person.site_role

    @display(description="State", label={"open": "success", "disabled": "danger", "demo": "info"})
    def state(self, person: User) -> str:
        return "disabled" if not person.is_active else "demo" if person.is_demo else "open"

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        by: Any = request.user
        if not change:
            data = form.cleaned_data
            made = create_user(
                username=data["username"],
                password=data.get("password1") if data.get("usable_password", True) else None,
                by=by,
            )
            obj.pk = made.pk
            obj.refresh_from_db()
            return
        person = User.objects.get(pk=obj.pk)
        data, reason = form.cleaned_data, form.cleaned_data["reason"]
        details = {name: data[name] for name in form.changed_data if name in DETAILS}
        if details:
            edit_user(user=person, by=by, changes=details, reason=reason)
        if "site_role" in form.changed_data:
            set_site_role(user=person, role=data["site_role"], by=by, reason=reason)
        if "is_active" in form.changed_data:
            verb = enable_user if data["is_active"] else disable_user
            verb(user=person, by=by, reason=reason)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """The inlines are to look at, and there is nothing else."""

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:
        with transaction.atomic():
            return super().user_change_password(request, id, form_url)

    def log_change(  # type: ignore[override]  # the audit trail is the log
        self, request: HttpRequest, obj: User, message: Any
    ) -> None:
        """Django's own password page saves by itself and then comes here, in the transaction above."""
        match = request.resolver_match
        if match is not None and match.url_name == "auth_user_password_change":
            raise_access_version(obj)
            audit.record(by=request.user, action="user.password", thing=obj)  # type: ignore[arg-type]

    @action(description="Disable: end sessions, revoke tokens", permissions=["edit"])
    def disable(self, request: HttpRequest, people: QuerySet[User]) -> None:
        self._each(request, people, lambda person: disable_user(user=person, by=request.user))  # type: ignore[arg-type]

    @action(description="End sessions", permissions=["edit"])
    def end_their_sessions(self, request: HttpRequest, people: QuerySet[User]) -> None:
        self._each(request, people, lambda person: end_sessions(user=person, by=request.user))  # type: ignore[arg-type]

    def _each(self, request: HttpRequest, people: QuerySet[User], verb: Any) -> None:
        done = 0
        for person in people:
            try:
                verb(person)
                done += 1
            except MusterError as error:
                audit.record_refusal(error, by=request.user)
                messages.error(request, str(error))
        if done:
            messages.success(request, f"Done for {done} {'person' if done == 1 else 'people'}.")


@admin.register(ApiToken)
class TokenAdmin(FactsAdmin):
    """Tokens without their secrets, which are nowhere; an admin may revoke them."""

    edit_verb = "administer"
    list_display = ("name", "prefix", "user", "what", "project", "state", "expires_at", "last_used_at")
    list_select_related = ("user", "project")
    list_filter = ("revoked_at", "expires_at")
    search_fields = ("name", "prefix", "user__username")
    exclude = ("digest",)
    actions = ("revoke",)

    @display(description="Scopes")
    def what(self, token: ApiToken) -> str:
        return ", ".join(token.scopes)

    @display(description="State", label={"works": "success", "revoked": "danger", "expired": "warning"})
    def state(self, token: ApiToken) -> str:
        from django.utils import timezone

        if token.revoked_at:
            return "revoked"
        return "expired" if token.expires_at <= timezone.now() else "works"

    @action(description="Revoke immediately; this cannot be undone", permissions=["edit"])
    def revoke(self, request: HttpRequest, tokens: QuerySet[ApiToken]) -> None:
        count = 0
        for token in tokens.select_related("user"):
            revoke_token(token=token, by=request.user)  # type: ignore[arg-type]
            count += 1
        messages.success(request, f"Revoked {count} {'token' if count == 1 else 'tokens'}.")
