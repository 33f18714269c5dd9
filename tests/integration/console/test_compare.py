"""Two responses side by side."""

from tests.support.api import UNKNOWN_RESPONSE_ID, Api
from tests.support.audit import audit_entries
from tests.support.console import OPERATOR_TOKEN, READ_ONLY_TOKEN, console_user
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack

_EVIL = "<script>alert(1)</script>"


async def test_what_differs_is_marked_and_texts_of_clients_stay_texts(
    shared_stack: Stack, api: Api, fake: FakeUpstream
) -> None:
    first, second = fake.script(reply(f"All the same {_EVIL}")), fake.script(reply("All is new"))
    options = {"input": f"A secret {_EVIL}", "metadata": {_EVIL: _EVIL}}
    a = await api.create(first, instructions=f"Be short. {_EVIL}", **options)
    b = await api.create(second, instructions="Be long.", **options)
    path = f"/console/responses/compare?a={a['id']}&b={b['id']}"
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        hidden = await user.get(path)
        assert hidden.status == 200, hidden.text
        assert "Parameters differ in instructions" in hidden.text
        assert f"Model {first} {second}" in hidden.text
        for secret in ("secret", "Be short", "All the"):
            assert secret not in hidden.html
        shown = await user.reveal(path)
        assert _EVIL not in shown.html
        assert "All <del>the same &lt;script&gt;alert(1)&lt;/script&gt;</del>" in shown.html
        assert "All <ins>is new</ins>" in shown.html
        assert "Be long." in shown.text
        assert "Both have the same" in shown.text, "the input"
        for each in (a, b):
            assert await audit_entries(shared_stack, action="response.reveal", object=each["id"])
        selected = await user.get(
            f"/console/responses/compare?id={b['id']}&id={a['id']}", follows=False
        )
        assert selected.headers["location"] == path
        one = await user.get(f"/console/responses/compare?id={a['id']}")
        assert (one.status, "Select two responses" in one.text) == (400, True)
        gone = f"/console/responses/compare?a={a['id']}&b={UNKNOWN_RESPONSE_ID}"
        assert (await user.get(gone)).status == 404
    async with console_user(shared_stack, READ_ONLY_TOKEN) as reader:
        page = await reader.get(path)
        assert "hidden from your login" in page.text
        assert "secret" not in page.html
