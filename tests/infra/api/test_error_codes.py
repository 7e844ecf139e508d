"""Pages about error codes: one for each code there is, for everybody, and none for a code that nothing raises."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import Client

from infra.api.error_codes import CODE_OF_STATUS, MEANINGS
from infra.api.problems import _DRF_CODES, problem
from infra.errors import MusterError
from quotas.models import ProviderStatus
from scheduler.services.submission.fields import DENIALS, HEADLINES
from tests.support.factories import UserFactory

ROOT = Path(__file__).resolve().parents[3]
#: Calls that name a code, as a keyword or, for a field's problem, as the third word.
SAY_A_CODE = re.compile(r"MusterError|InvalidInput|NotAllowed|NotFound|Conflict|TooMany|\w+Refused|_Unauthorized|"
                        r"UnknownAgent|json_problem|problem|wrong|ErrorDetail|FieldProblem")  # fmt: skip
A_CODE = re.compile(r"[a-z]+(-[a-z]+)*")


def said_in_the_source() -> set[str]:
    found: set[str] = set()
    for app in ("infra", "accounts", "config", "quotas", "scheduler"):
        for file in (ROOT / app).rglob("*.py"):
            if "migrations" not in file.parts:
                found |= set(_codes(ast.parse(file.read_text())))
    return found


def _codes(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if not SAY_A_CODE.fullmatch(name):
            continue
        said = [word.value for word in node.keywords if word.arg == "code"]
        if name == "FieldProblem":
            said += node.args[2:3]
        for value in said:
            if isinstance(value, ast.IfExp):
                yield from (one.value for one in (value.body, value.orelse) if isinstance(one, ast.Constant))
            elif isinstance(value, ast.Constant):
                yield value.value


def of_classes(kind: type[MusterError] = MusterError) -> set[str]:
    return {kind(message="").code}.union(*(of_classes(one) for one in kind.__subclasses__()))


def every_code() -> set[str]:
    from_outside = {
        f"provider-{status}"
        for status in (ProviderStatus.UNREACHABLE, ProviderStatus.REFUSED, ProviderStatus.OFF)
    }
    of_the_framework = {code for code, _ in _DRF_CODES.values()} | set(CODE_OF_STATUS.values())
    return said_in_the_source() | of_classes() | from_outside | of_the_framework | DENIALS | HEADLINES


def test_each_code_has_a_text_and_no_text_is_left_over() -> None:
    codes = every_code()

    assert len(codes) > 60
    assert codes == set(MEANINGS)
    assert all(A_CODE.fullmatch(code) for code in codes)


def test_each_code_has_a_page_that_needs_no_sign_in(client: Client, db: None) -> None:
    for code, meaning in MEANINGS.items():
        assert all((meaning.title, meaning.means, meaning.way_out)), code
        leads_to = problem(None, status=400, code=code, detail="")["type"]

        answer = client.get(leads_to)

        assert (leads_to, answer.status_code) == (f"/docs/errors/{code}", 200)
        page = answer.content.decode()
        assert code in page
        assert "`" not in page.partition("<main")[2].partition("</main>")[0]


def test_the_list_leads_to_all_of_them(client: Client, db: None) -> None:
    page = client.get("/docs/errors/").content.decode()

    assert set(re.findall(r'href="/docs/errors/([a-z-]+)"', page)) == set(MEANINGS)


@pytest.mark.parametrize("code", ["no-such-code", "INVALID", "invalid/x", "<script>"])
def test_what_is_no_code_has_no_page(client: Client, db: None, code: str) -> None:
    assert client.get(f"/docs/errors/{code}").status_code == 404


def test_a_code_that_a_plugin_made_up_leads_to_a_page_too(client: Client, db: None) -> None:
    made_up = problem(None, status=409, code="of-a-plugin", detail="")

    assert (made_up["code"], made_up["type"]) == ("of-a-plugin", "/docs/errors/error")


def test_every_page_of_the_portal_leads_to_the_list(client: Client, db: None) -> None:
    client.force_login(UserFactory())

    assert 'href="/docs/errors/"' in client.get("/").content.decode()
