"""An operator finds responses by words, by what clients have set, and by saved filters."""

import asyncio
import secrets
from dataclasses import dataclass
from urllib.parse import urlencode

import pytest

from models.keys import KEY_PREFIX_LENGTH
from models.projects.policy import ProjectPolicy
from tests.integration.operator.test_operations import DONE, REFUSED, backburner, command_facts
from tests.support import keys
from tests.support.api import JSON, Api, until
from tests.support.audit import audit_entries
from tests.support.console import OPERATOR_TOKEN, READ_ONLY_TOKEN, ConsoleUser, console_user
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack


@dataclass(frozen=True, slots=True)
class Team:
    """A project, a key of it, and two responses about the same."""

    name: str
    word: str
    """that only its responses have"""
    api: Api
    asked: JSON
    answered: JSON


async def _search(visitor: ConsoleUser, /, **parameters: str) -> str:
    page = await visitor.get(f"/console/responses?{urlencode(parameters)}")
    assert page.status == 200, page.text
    return page.html


async def _found(visitor: ConsoleUser, response: JSON, /, **parameters: str) -> None:
    """Waits until it is in the list."""
    await until(lambda: _lists(visitor, response, **parameters))


async def _lists(visitor: ConsoleUser, response: JSON, /, **parameters: str) -> bool:
    return str(response["id"]) in await _search(visitor, **parameters)


@pytest.fixture(scope="module")
async def team(shared_stack: Stack, fake: FakeUpstream) -> Team:
    name, word = f"search-{secrets.token_hex(3)}", f"w{secrets.token_hex(4)}"
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, name)
    api = shared_stack.api(key=key)
    model = fake.script(reply(f"The invoice {word}-4712 is paid."))
    asked = await api.create(
        fake.script(reply("Yes."), name=f"house-{word}"),
        input=f"Is invoice {word}-4711 paid?",
        user=f"user-{word}",
        safety_identifier=f"safe-{word}",
        prompt_cache_key=f"cache-{word}",
        metadata={f"key-{word}": "a=b"},
    )
    return Team(name, word, api, asked, await api.create(model, input="Which one?"))


async def test_words_of_input_and_output_find_a_response(shared_stack: Stack, team: Team) -> None:
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        await _found(user, team.asked, text=f"INVOICE {team.word} 4711")
        await _found(user, team.answered, text=f'"{team.word}-4712 is"')
        for text, shows_asked, shows_answered in (
            (team.word, True, True),
            (f"{team.word} -4711", False, True),
            (f'"{team.word} is"', False, False),
            (f"{team.word} 4713", False, False),
        ):
            html = await _search(user, text=text, since="1h")
            shown = team.asked["id"] in html, team.answered["id"] in html
            assert shown == (shows_asked, shows_answered), text
        assert await _lists(user, team.asked, text=team.word, project=team.name)
        assert await _lists(user, team.asked, text=team.word, project="search-*")
        assert not await _lists(user, team.asked, text=team.word, project="default")
        assert not await _lists(user, team.asked, text=team.word, status="failed")
    searches = await audit_entries(shared_stack, action="response.search", project=team.name)
    assert [entry["details"] for entry in searches] == [{"text": team.word}]


async def test_what_a_client_has_set_finds_a_response(shared_stack: Stack, team: Team) -> None:
    word, key = team.word, team.api.key[:KEY_PREFIX_LENGTH]
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        for name, value in (
            ("user", f"user-{word}"),
            ("safety_identifier", f"safe-{word}"),
            ("prompt_cache_key", f"cache-{word}"),
            ("metadata", f"key-{word}=a=b"),
        ):
            html = await _search(user, **{name: value})
            assert (team.asked["id"] in html, team.answered["id"] in html) == (True, False), name
            assert not await _lists(user, team.asked, **{name: f"{value}x"}), name
        html = await _search(user, key=key, model=f"{team.asked['model'][:-1]}*")
        assert team.asked["id"] in html
        assert f'<option value="key-{word}=">' in html, "known keys are offered"
        assert f'<option value="{team.name}">' in html


async def test_only_an_operator_searches_for_words(shared_stack: Stack, team: Team) -> None:
    async with console_user(shared_stack, READ_ONLY_TOKEN) as user:
        page = await user.get(f"/console/responses?text={team.word}")
        assert (page.status, team.asked["id"] in page.html) == (403, False)
        html = await _search(user, project=team.name)
        assert 'name="text"' not in html
        assert team.asked["id"] in html


async def test_a_name_that_nothing_has_is_explained(shared_stack: Stack, team: Team) -> None:
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        for query, words in (
            (f"project={team.name}x", f"Did you mean {team.name}"),
            ("key=sk-nobody", "There is no key"),
            ("text=%3F", "no word"),
        ):
            page = await user.get(f"/console/responses?{query}")
            assert (page.status, words in page.text) == (400, True), page.text
        model = team.asked["model"][:-1]
        page = await user.get(f"/console/responses?model={model}")
        assert f"Did you mean {model}*" in page.text


async def test_a_deleted_response_is_found_no_more(
    shared_stack: Stack, team: Team, fake: FakeUpstream
) -> None:
    word = f"w{secrets.token_hex(4)}"
    made = await team.api.create(fake.script(reply("Done.")), input=f"Forget {word}")
    documents = "SELECT count(*) FROM search_documents WHERE document @@ plainto_tsquery(%s)"
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        await _found(user, made, text=word)
        assert await shared_stack.value(documents, word) == 1
        await team.api.call("DELETE", f"/responses/{made['id']}")
        assert not await _lists(user, made, text=word)
    assert await shared_stack.value(documents, word) == 0


async def test_what_is_not_stored_or_not_permitted_has_no_words(
    shared_stack: Stack, fake: FakeUpstream, team: Team
) -> None:
    """Neither in the list nor in the table; and they are deleted when a policy changes."""
    word, name = f"w{secrets.token_hex(4)}", f"private-{secrets.token_hex(3)}"
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, name)
    api, model = shared_stack.api(key=key), fake.script(reply(f"Answer {word}"))
    change = "UPDATE projects SET policy = %s::jsonb WHERE name = %s RETURNING 1"
    documents = "SELECT count(*) FROM search_documents WHERE document @@ plainto_tsquery(%s)"

    async def set_policy(policy: ProjectPolicy) -> None:
        stored = policy.model_dump_json(exclude_defaults=True)
        await shared_stack.value(change, stored, name)

    stored = await api.create(model, input=word)
    unstored = await api.create(model, input=word, store=False)
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        await _found(user, stored, text=word)
        assert not await _lists(user, unstored, text=word)
        await set_policy(ProjectPolicy(text_search=False))
        assert not await _lists(user, stored, text=word)

        async def words_are_deleted() -> bool:
            return bool(await shared_stack.value(documents, word) == 0)

        await until(words_are_deleted, within=30)
        await set_policy(ProjectPolicy(zero_retention=True, text_search=True))
        hidden = await api.create(model, input=word)
        # What ended later has its document.
        later = await team.api.create(model, input=f"{word} later")
        await _found(user, later, text=word)
        assert not await _lists(user, hidden, text=word)
    assert await shared_stack.value(documents, word) == 1


async def test_previews_are_shown_after_a_reveal(shared_stack: Stack, team: Team) -> None:
    path = f"/console/responses?{urlencode({'project': team.name})}"
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        assert f"invoice {team.word}" not in (await user.get(path)).text
        shown = await user.reveal(path)
        assert f"Is invoice {team.word}-4711 paid?" in shown.text
        assert f"The invoice {team.word}-4712 is paid." in shown.text


async def test_a_filter_is_saved_and_forgotten(shared_stack: Stack, team: Team) -> None:
    query = urlencode({"model": "house-*", "project": team.name})
    name = f"<b>{team.word}"
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        page = await user.get(f"/console/responses?{query}")
        token, here = ("form_token", page.form_token), f"/console/responses?{query}"
        fields = [token, ("query", query), ("name", name), ("next", here)]
        saved = await user.post("/console/responses/filters", fields)
        assert f"Forget the filter {name}" in saved.text
        assert "<b>w" not in saved.html
        assert f"?{query}".replace("&", "&amp;") in saved.html
        async with console_user(shared_stack, READ_ONLY_TOKEN) as other:
            assert name not in (await other.get("/console/responses")).text
        gone = await user.post("/console/responses/filters/delete", fields)
        assert name not in gone.text
        empty = await user.post("/console/responses/filters", [token, ("name", name)])
        assert (empty.status, "Set a filter first" in empty.text) == (400, True)


async def test_the_command_has_the_same_filters(shared_stack: Stack, team: Team) -> None:
    listing = ("responses", "list")
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        await _found(user, team.asked, text=team.word)
    for options in (
        ("--text", f"{team.word} 4711"),
        ("--user", f"user-{team.word}"),
        ("--safety-identifier", f"safe-{team.word}"),
        ("--prompt-cache-key", f"cache-{team.word}"),
        ("--metadata", f"key-{team.word}=a=b", "--model", f"{team.asked['model'][:-1]}*"),
    ):
        facts = await command_facts(shared_stack, *listing, *options)
        ids = [each["id"] for each in facts["responses"]]
        assert (team.asked["id"] in ids, team.answered["id"] in ids) == (True, False), options
    of_key = await command_facts(shared_stack, *listing, "--key", team.api.key[:KEY_PREFIX_LENGTH])
    assert len(of_key["responses"]) >= 2
    typo = await backburner(shared_stack, *listing, "--project", f"{team.name}x")
    assert typo.code == REFUSED
    assert f"Did you mean {team.name}" in typo.err
    shown = await backburner(shared_stack, *listing, "--project", team.name)
    assert (shown.code, team.name in shown.out) == (DONE, True)
