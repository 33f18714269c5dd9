"""Vector stores over HTTP, through the official client: what is added to one can be found in it."""

from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

from models.ids import VECTOR_STORE, parse_admin_id
from tests.support import keys
from tests.support.api import JSON, until
from tests.support.audit import audit_entries
from tests.support.embeddings import EMBEDDING_MODEL, REWRITE_MODEL
from tests.support.fake_upstream import FakeUpstream, hang, reply, status
from tests.support.files_to_read import xlsx
from tests.support.projects import limited_project
from tests.support.stack import Stack
from tests.support.worker_rows import run_purge, settings_for

TIDES = "The tides of the sea are made by the moon. Spring tides come twice a month. "
BREAD = "Bread is made of flour, water, salt and yeast. It rises for an hour. "


@pytest.fixture
def embedded(tool_stack: Stack) -> openai.AsyncOpenAI:
    """A client of a deployment with an embedding model."""
    return tool_stack.openai()


async def _upload(client: openai.AsyncOpenAI, text: str, name: str = "a.txt") -> str:
    file = await client.files.create(file=(name, text.encode()), purpose="assistants")
    return file.id


async def _store(client: openai.AsyncOpenAI, **texts: str) -> str:
    """A store with these files, all of them ingested."""
    ids = [await _upload(client, text, f"{name}.txt") for name, text in texts.items()]
    store = await client.vector_stores.create(name="texts", file_ids=ids)
    await _until_ingested(client, store.id)
    return store.id


async def _until_ingested(client: openai.AsyncOpenAI, store: str) -> None:
    async def is_ingested() -> bool:
        return not (await client.vector_stores.retrieve(store)).file_counts.in_progress

    await until(is_ingested, 30, every=0.05)


async def _found(client: openai.AsyncOpenAI, store: str, query: Any, **options: Any) -> list[str]:
    results = await client.vector_stores.search(store, query=query, **options)
    return [result.filename for result in results.data]


async def test_what_is_added_is_found_by_embeddings_and_words(
    embedded: openai.AsyncOpenAI, tool_stack: Stack
) -> None:
    store = await embedded.vector_stores.create(name="Handbook", metadata={"a": "b"})
    await embedded.vector_stores.files.create(
        store.id, file_id=await _upload(embedded, TIDES * 40, "tides.txt")
    )
    file = await embedded.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("bread.txt", (BREAD * 40).encode()), poll_interval_ms=50
    )
    assert (file.status, file.last_error) == ("completed", None)
    await _until_ingested(embedded, store.id)
    found = (await embedded.vector_stores.search(store.id, query="What makes bread rise?")).data
    assert found[0].filename == "bread.txt"
    assert found[0].content[0].text.startswith("Bread is made of flour")
    assert 0 < found[-1].score <= found[0].score <= 1
    assert {each.filename for each in found} == {"tides.txt", "bread.txt"}
    shown = await embedded.vector_stores.retrieve(store.id)
    assert (shown.status, shown.metadata, shown.name) == ("completed", {"a": "b"}, "Handbook")
    counts = shown.file_counts
    assert (counts.completed, counts.in_progress, counts.total) == (2, 0, 2)
    assert shown.usage_bytes > len(TIDES * 40)
    alone = await _found(embedded, store.id, ["yeast"], ranking_options={"ranker": "none"})
    assert alone[0] == "bread.txt"
    used = await tool_stack.value(
        "SELECT count(*) FROM usage_entries WHERE model = %s AND input_tokens > 0", EMBEDDING_MODEL
    )
    assert used >= 2


async def test_a_query_is_rewritten_by_the_configured_model_where_a_search_says_so(
    embedded: openai.AsyncOpenAI, tool_stack: Stack, fake: FakeUpstream
) -> None:
    store = await _store(embedded, tides=TIDES * 10, bread=BREAD * 10)
    question: JSON = {"query": "What comes twice?"}

    async def search(**options: Any) -> tuple[list[str], str]:
        path = f"/vector_stores/{store}/search"
        page = (await tool_stack.api().call("POST", path, question | options)).body
        return page["search_query"], page["data"][0]["filename"]

    fake.script(reply("yeast", "\nflour"), name=REWRITE_MODEL)
    assert await search() == (["What comes twice?"], "tides.txt")
    assert await search(rewrite_query=False) == (["What comes twice?"], "tides.txt")
    assert fake.requests_for(REWRITE_MODEL) == []
    assert await search(rewrite_query=True) == (["yeast flour"], "bread.txt")
    [sent] = fake.requests_for(REWRITE_MODEL)
    assert sent.texts == ["What comes twice?"]
    used = "SELECT sum(input_tokens + output_tokens)::int FROM usage_entries WHERE model = %s"

    async def is_counted() -> bool:
        return bool(await tool_stack.value(used, REWRITE_MODEL) == 18)

    await until(is_counted)
    # The query itself is searched where the model makes none in time.
    for script in ([status(500)], [hang()], reply(" ")):
        fake.script(script, name=REWRITE_MODEL)
        assert await search(rewrite_query=True) == (["What comes twice?"], "tides.txt")


async def test_without_an_embedding_model_words_alone_are_searched(
    client: openai.AsyncOpenAI,
) -> None:
    store = await _store(client, tides=TIDES, bread=BREAD)
    asked = "When do spring tides come?"
    found = (await client.vector_stores.search(store, query=asked, rewrite_query=True)).data
    assert [each.filename for each in found] == ["tides.txt"]
    assert 0 < found[0].score <= 1
    assert await _found(client, store, ["the flour's", "moon"]) == ["tides.txt", "bread.txt"]
    assert await _found(client, store, "what is it & | ! <-> '") == []
    threshold: Any = {"score_threshold": 0.99}
    assert await _found(client, store, "tides", ranking_options=threshold) == []


async def test_files_of_other_programs_are_found(client: openai.AsyncOpenAI) -> None:
    text = "Straße und Hausnummer;Größe\nMüllergäßchen 5;fünf Meter\n"
    rows = '<row><c t="inlineStr"><is><t>Müllergäßchen</t></is></c></row>'
    contents = {
        "western.csv": text.encode("cp1252"),
        "western.txt": text.encode("cp1252"),
        "marked.txt": text.encode("utf-16"),
        "unmarked.md": text.encode("utf-16-le"),
        "styled.xlsx": xlsx(rows, parts={"xl/styles.xml": "<styleSheet><fills><fill/></fills>"}),
    }
    store = (await client.vector_stores.create()).id
    for each in contents.items():
        file = await client.vector_stores.files.upload_and_poll(
            vector_store_id=store, file=each, poll_interval_ms=50
        )
        assert (file.status, file.last_error) == ("completed", None), each
    assert set(await _found(client, store, "Müllergäßchen")) == set(contents)


async def test_a_search_is_filtered_by_attributes(client: openai.AsyncOpenAI) -> None:
    store = (await client.vector_stores.create()).id
    given: dict[str, dict[str, str | float | bool]] = {
        "old": {"year": 1999, "topic": 'a "quoted" \\ text', "draft": False},
        "new": {"year": 2026.5, "topic": "b", "draft": True},
        "none": {},
    }
    for name, attributes in given.items():
        await client.vector_stores.files.create(
            store, file_id=await _upload(client, TIDES, name), attributes=attributes
        )
    await _until_ingested(client, store)

    def one(kind: str, key: str, value: Any) -> dict[str, Any]:
        return {"type": kind, "key": key, "value": value}

    for filters, expected in (
        (one("eq", "year", 1999), {"old"}),
        (one("eq", "year", "1999"), set()),
        (one("ne", "year", 1999), {"new", "none"}),
        (one("gt", "year", -5), {"old", "new"}),
        (one("lte", "year", 1999), {"old"}),
        (one("eq", "draft", True), {"new"}),
        (one("in", "topic", ["b", 'a "quoted" \\ text']), {"old", "new"}),
        (one("nin", "topic", ["b"]), {"old", "none"}),
        (one("gte", "topic", "b"), {"new"}),
        (
            {"type": "or", "filters": [one("eq", "year", 1999), one("eq", "draft", True)]},
            {"old", "new"},
        ),
        ({"type": "and", "filters": [one("gt", "year", 0), one("lt", "year", 2000)]}, {"old"}),
        (one("eq", '") || (1 == 1) || ($."', "b"), set()),
    ):
        assert set(await _found(client, store, "tides", filters=filters)) == expected, filters
    file = (await client.vector_stores.files.list(store, order="asc")).data[0]
    changed = await client.vector_stores.files.update(
        file.id, vector_store_id=store, attributes={"year": 5}
    )
    assert changed.attributes == {"year": 5}
    assert await _found(client, store, "tides", filters=one("eq", "year", 5)) == ["old"]
    deep: dict[str, Any] = one("eq", "a", 1)
    for _ in range(9):
        deep = {"type": "and", "filters": [deep]}
    for bad in (deep, one("like", "a", 1), one("in", "a", 1), one("eq", "a", {}), {"type": "and"}):
        with pytest.raises(openai.BadRequestError):
            await _found(client, store, "tides", filters=bad)


async def test_a_batch_of_files_is_listed_in_pages_and_cancelled(
    embedded: openai.AsyncOpenAI, tool_stack: Stack
) -> None:
    store = (await embedded.vector_stores.create()).id
    batches = embedded.vector_stores.file_batches
    names = [f"{number}.md" for number in range(5)]
    done = await batches.upload_and_poll(
        store, files=[(name, TIDES.encode()) for name in names], poll_interval_ms=50
    )
    assert (done.status, done.file_counts.completed, done.file_counts.total) == ("completed", 5, 5)
    ids = [each.id async for each in batches.list_files(done.id, vector_store_id=store, limit=2)]
    files = embedded.vector_stores.files
    assert ids == [each.id async for each in files.list(store, limit=3)]
    before = (await files.list(store, before=ids[3], limit=2)).data
    assert [each.id for each in before] == ids[1:3]
    between = await files.list(store, after=ids[0], before=ids[3], order="desc")
    assert [each.id for each in between.data] == ids[1:3]
    assert [each.id async for each in files.list(store, order="asc")] == ids[::-1]
    assert (await files.list(store, filter="failed")).data == []
    static: Any = {
        "type": "static",
        "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 50},
    }
    given: Any = [
        {"file_id": ids[0], "attributes": {"a": 1}, "chunking_strategy": static},
        {"file_id": await _upload(embedded, "unread " * 30)},
    ]
    cancelled = await batches.create(store, files=given)
    cancelled = await batches.cancel(cancelled.id, vector_store_id=store)
    assert cancelled.file_counts.total == 2
    assert cancelled.file_counts.in_progress == 0
    entries = await audit_entries(tool_stack, object=store)
    expected = ("vector_store.batch.cancel", {"batch": cancelled.id})
    assert [(entry["action"], entry["details"]) for entry in entries] == (
        [expected] if cancelled.file_counts.cancelled else []
    )
    shown = await files.retrieve(ids[0], vector_store_id=store)
    assert (shown.status, shown.attributes) == ("completed", {"a": 1})
    again = await files.create_and_poll(
        given[1]["file_id"],
        vector_store_id=store,
        chunking_strategy=static,
        poll_interval_ms=50,
    )
    assert again.status == "completed"
    content = (await files.content(again.id, vector_store_id=store)).data
    assert content[0].text is not None
    assert content[0].text.startswith("unread")


async def test_pages_are_bounded_in_bytes(embedded: openai.AsyncOpenAI, tool_stack: Stack) -> None:
    older, store = [(await embedded.vector_stores.create()).id for _ in range(2)]
    ids = [await _upload(embedded, "few words") for _ in range(3)]
    for each in ids:
        await embedded.vector_stores.files.create(store, file_id=each)
    await tool_stack.value(
        "UPDATE vector_store_files SET attributes = jsonb_build_object('a', repeat('x', 600000)) "
        "WHERE store_id = %s RETURNING 1",
        parse_admin_id(VECTOR_STORE, store),
    )
    files = embedded.vector_stores.files
    page = await files.list(store, limit=3)
    assert ([each.id for each in page.data], page.has_more) == (ids[:0:-1], True)
    assert [each.id async for each in page] == ids[::-1]
    before = await files.list(store, before=ids[0], limit=3)
    assert [each.id for each in before.data] == ids[:0:-1]
    assert not before.has_more
    await tool_stack.value(
        "UPDATE vector_stores SET metadata = json_build_object('a', repeat('x', 1200000)) "
        "WHERE id = %s RETURNING 1",
        parse_admin_id(VECTOR_STORE, store),
    )
    newest = await embedded.vector_stores.list(limit=100)
    assert ([each.id for each in newest.data], newest.has_more) == ([store], True)
    for each in (older, store):
        await embedded.vector_stores.delete(each)


async def test_a_file_that_cannot_be_ingested_says_why(
    embedded: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    store = (await embedded.vector_stores.create()).id
    ids = [
        (await embedded.files.create(file=file, purpose="assistants")).id
        for file in (("a.png", b"\x89PNG\r\n\x1a\n" + bytes(64)), ("a.pdf", b"%PDF-1.7 no"))
    ]
    await embedded.vector_stores.file_batches.create(store, file_ids=ids)
    await _until_ingested(embedded, store)
    files = embedded.vector_stores.files
    ended = [await files.retrieve(each, vector_store_id=store) for each in ids]
    assert [each.status for each in ended] == ["failed", "failed"]
    codes = [each.last_error and each.last_error.code for each in ended]
    assert codes == ["unsupported_file", "invalid_file"]
    assert (await embedded.vector_stores.retrieve(store)).file_counts.failed == 2


async def test_what_is_deleted_is_found_no_more_and_its_rows_are_purged(
    embedded: openai.AsyncOpenAI, tool_stack: Stack
) -> None:
    store = await _store(embedded, tides=TIDES, bread=BREAD)
    listed = {each.id async for each in embedded.vector_stores.files.list(store)}
    found = (await embedded.vector_stores.search(store, query="bread")).data[0]
    await embedded.files.delete(found.file_id)
    assert "bread.txt" not in await _found(embedded, store, "bread")
    [left] = listed - {found.file_id}
    assert (await embedded.vector_stores.retrieve(store)).file_counts.total == 1
    removed = await embedded.vector_stores.files.delete(left, vector_store_id=store)
    assert removed.deleted
    [entry] = await audit_entries(tool_stack, object=store)
    assert (entry["actor"], entry["action"]) == ("key", "vector_store.file.delete")
    assert entry["details"] == {"file": left}
    assert await _found(embedded, store, "tides") == []
    await embedded.files.retrieve(left)
    await embedded.vector_stores.files.create_and_poll(
        left, vector_store_id=store, poll_interval_ms=50
    )
    assert await _found(embedded, store, "tides") == ["tides.txt"]
    assert (await embedded.vector_stores.delete(store)).deleted
    for use in (embedded.vector_stores.retrieve, embedded.vector_stores.delete):
        with pytest.raises(openai.NotFoundError):
            await use(store)

    async def is_purged() -> bool:
        # A round ends as soon as another worker purges.
        await run_purge(settings_for(tool_stack.dsn))
        stored = await tool_stack.value(
            "SELECT (SELECT count(*) FROM vector_stores WHERE id = %s)"
            " + (SELECT count(*) FROM vector_store_files WHERE store_id = %s)"
            " + (SELECT count(*) FROM vector_store_chunks WHERE store_id = %s)",
            *([store.removeprefix("vs_")] * 3),
        )
        return bool(stored == 0)

    await until(is_purged)


async def test_a_store_expires_after_its_last_use(
    client: openai.AsyncOpenAI, shared_stack: Stack
) -> None:
    expiry: Any = {"anchor": "last_active_at", "days": 1}
    store = await client.vector_stores.create(expires_after=expiry)
    assert store.expires_at is not None
    assert store.expires_at - store.created_at in (86_400, 86_401)
    changed = await client.vector_stores.update(store.id, expires_after=None, name="Other")
    assert (changed.expires_at, changed.name) == (None, "Other")
    await client.vector_stores.update(store.id, expires_after=expiry, metadata=None)
    await shared_stack.value(
        "UPDATE vector_stores SET expires_at = now() WHERE id = %s RETURNING 1",
        store.id.removeprefix("vs_"),
    )
    assert (await client.vector_stores.retrieve(store.id)).status == "expired"
    file = await _upload(client, TIDES)
    uses: list[Callable[[], Awaitable[object]]] = [
        lambda: client.vector_stores.update(store.id, name="x"),
        lambda: client.vector_stores.files.create(store.id, file_id=file),
        lambda: _found(client, store.id, "x"),
    ]
    for use in uses:
        with pytest.raises(openai.BadRequestError) as refused:
            await use()
        assert refused.value.code == "vector_store_expired"


async def test_another_project_sees_nothing_of_a_store(
    client: openai.AsyncOpenAI, shared_stack: Stack
) -> None:
    store = await _store(client, tides=TIDES)
    [file] = (await client.vector_stores.files.list(store)).data
    other = shared_stack.api(key=keys.create(shared_stack.dsn, "other stores"))
    own = (await other.call("POST", "/vector_stores", {})).body["id"]
    unknown = f"vs_{'0' * 32}"
    for method, suffix, body in (
        ("GET", "", None),
        ("POST", "", {"name": "x"}),
        ("DELETE", "", None),
        ("POST", "/search", {"query": "tides"}),
        ("GET", "/files", None),
        ("POST", "/files", {"file_id": file.id}),
        ("GET", f"/files/{file.id}", None),
        ("POST", f"/files/{file.id}", {"attributes": {}}),
        ("DELETE", f"/files/{file.id}", None),
        ("GET", f"/files/{file.id}/content", None),
        ("POST", "/file_batches", {"file_ids": [file.id]}),
    ):
        answers = [
            await other.call(method, f"/vector_stores/{one}{suffix}", body)
            for one in (store, unknown)
        ]
        assert [answer.status for answer in answers] == [404, 404], (method, suffix)
        assert answers[0].raw.replace(store.encode(), b"") == answers[1].raw.replace(
            unknown.encode(), b""
        )
    taken = await other.call("POST", f"/vector_stores/{own}/files", {"file_id": file.id})
    assert taken.status == 404
    listed = (await other.call("GET", "/vector_stores")).body["data"]
    assert [each["id"] for each in listed] == [own]


async def test_a_project_has_no_more_stores_and_bytes_than_its_quota(shared_stack: Stack) -> None:
    project = await limited_project(shared_stack, vector_stores=1, vector_bytes=10)
    client = shared_stack.openai(key=project.key)
    store = await _store(client, tides=TIDES)
    with pytest.raises(openai.RateLimitError, match="1 vector stores"):
        await client.vector_stores.create()
    file = await _upload(client, TIDES)
    with pytest.raises(openai.RateLimitError, match="10 bytes"):
        await client.vector_stores.files.create(store, file_id=file)
