"""Signing in and out."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpResponse
from django.utils.translation import gettext_lazy as _

from accounts.backends import demo_logins_allowed
from accounts.models import SiteRole, User


class SignInForm(AuthenticationForm):
    error_messages = {
        "invalid_login": _("This name and password do not fit together. Both are case-sensitive."),
        "inactive": _("This account is closed. An administrator can open it again."),
    }


class SignIn(LoginView):
    """Name and password; after too many wrong ones the page says how long to wait (axes counts them)."""

    template_name = "accounts/signin.html"
    authentication_form = SignInForm
    redirect_authenticated_user = True

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        request = self.request
        locked = bool(getattr(request, "axes_locked_out", False))
        request.axes_locked_out = False  # type: ignore[attr-defined]  # this page says it better than axes' own
        context = self.get_context_data(
            form=form,
            locked_minutes=round(settings.AXES_COOLOFF_TIME * 60) if locked else None,
            demo_refused=getattr(request, "demo_account_refused", False),
        )
        return self.render_to_response(context, status=429 if locked else 200)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs) | {"demo_people": self._demo_people()}

    def _demo_people(self) -> list[dict[str, str]]:
        """The demo accounts, where their passwords work: on this machine, outside production."""
        if not demo_logins_allowed(self.request):
            return []
        people = User.objects.filter(is_demo=True, is_active=True).order_by("id")[:12]
        return [
            {
                "username": person.username,
                "password": f"{person.username}-demo",
                "role": person.get_site_role_display() if person.site_role != SiteRole.NONE else "researcher",
            }
            for person in people
        ]


class SignOut(LogoutView):
    http_method_names = ["post", "options"]
