"""Sealed secrets can be unsealed only for their own response, with a key that is configured."""

import base64
import re
import secrets

import pytest
from pydantic import ValidationError

from models.config.settings import Settings
from models.ids import new_uuid
from models.secrets import NoKey, Sealed, Sealer, Unreadable, parse_keys

TOKENS = {"files": {"authorization": "canary-token", "headers": {"X-Key": "canary-header"}}}


def test_a_sealed_secret_can_be_unsealed_and_is_not_readable() -> None:
    sealer, response = Sealer([secrets.token_bytes(32)]), new_uuid()
    sealed = sealer.seal(response, TOKENS)
    assert sealer.open(response, sealed) == TOKENS
    for plain in (b"canary", base64.b64encode(b"canary")[:7]):
        assert plain not in sealed.sealed
    assert sealer.seal(response, TOKENS).sealed != sealed.sealed, (
        "the same nonce twice would reveal the key stream"
    )


def test_a_secret_cannot_be_unsealed_for_another_response() -> None:
    sealer = Sealer([secrets.token_bytes(32)])
    sealed = sealer.seal(new_uuid(), TOKENS)
    with pytest.raises(Unreadable):
        sealer.open(new_uuid(), sealed)


def test_a_changed_byte_is_detected() -> None:
    sealer, response = Sealer([secrets.token_bytes(32)]), new_uuid()
    sealed = sealer.seal(response, TOKENS)
    for index in (0, 12, len(sealed.sealed) - 1):
        changed = bytearray(sealed.sealed)
        changed[index] ^= 1
        with pytest.raises(Unreadable):
            sealer.open(response, Sealed(sealed.key_id, bytes(changed)))
    with pytest.raises(Unreadable):
        sealer.open(response, Sealed(sealed.key_id, b"short"))


def test_the_first_key_seals_and_all_keys_unseal() -> None:
    old, new, response = secrets.token_bytes(32), secrets.token_bytes(32), new_uuid()
    sealed = Sealer([old]).seal(response, TOKENS)
    rotated = Sealer([new, old])
    assert rotated.open(response, sealed) == TOKENS
    assert rotated.seal(response, TOKENS).key_id != sealed.key_id
    with pytest.raises(Unreadable):
        Sealer([new]).open(response, sealed)


def test_without_a_key_nothing_is_sealed() -> None:
    with pytest.raises(NoKey):
        Sealer([]).seal(new_uuid(), TOKENS)
    with pytest.raises(NoKey):
        Sealer([]).fingerprint(TOKENS)
    with pytest.raises(NoKey):
        Sealer([]).seal_token("reasoning", new_uuid(), {})


def test_a_token_is_accepted_only_for_its_kind_and_project() -> None:
    sealer, project = Sealer([secrets.token_bytes(32)]), new_uuid()
    token = sealer.seal_token("compaction", project, {"summary": "canary"})
    assert sealer.open_token("compaction", project, token) == {"summary": "canary"}
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", token), (
        "it must need no escaping in JSON, URLs and shells"
    )
    assert base64.b64encode(b"canary")[:7].decode() not in token
    with pytest.raises(Unreadable):
        sealer.open_token("reasoning", project, token)
    with pytest.raises(Unreadable):
        sealer.open_token("compaction", new_uuid(), token)
    with pytest.raises(Unreadable):
        Sealer([secrets.token_bytes(32)]).open_token("compaction", project, token)
    with pytest.raises(Unreadable):
        Sealer([]).open_token("compaction", project, token)


def test_old_tokens_are_accepted_while_their_key_is_configured() -> None:
    old, new, project = secrets.token_bytes(32), secrets.token_bytes(32), new_uuid()
    token = Sealer([old]).seal_token("reasoning", project, ["thought"])
    assert Sealer([new, old]).open_token("reasoning", project, token) == ["thought"]
    assert Sealer([new, old]).seal_token("reasoning", project, ["thought"]) != token


def test_a_forged_token_is_refused() -> None:
    sealer, project = Sealer([secrets.token_bytes(32)]), new_uuid()
    token = sealer.seal_token("compaction", project, {"summary": "s"})
    head, _, body = token.rpartition(".")
    changed = body[:20] + ("A" if body[20] != "A" else "B") + body[21:]
    for other in (
        "",
        "gAAAAABlong",
        head,
        head + ".",
        f"{head}.{body[:-2]}",
        f"{head}.{changed}",
        f"{head}.{body}=",
        token + "\n",
        f"{head}.é",
    ):
        with pytest.raises(Unreadable):
            sealer.open_token("compaction", project, other)


def test_a_token_cannot_be_used_as_a_secret_of_a_response() -> None:
    sealer, project = Sealer([secrets.token_bytes(32)]), new_uuid()
    _, key_id, body = sealer.seal_token("compaction", project, {}).split(".")
    with pytest.raises(Unreadable):
        sealer.open(
            project, Sealed(key_id, base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        )


def test_a_fingerprint_needs_the_key() -> None:
    key = secrets.token_bytes(32)
    other = {"files": {"authorization": "another"}}
    assert (
        Sealer([key]).fingerprint(TOKENS)
        == Sealer([key]).fingerprint(TOKENS)
        != Sealer([key]).fingerprint(other)
    )
    assert Sealer([key]).fingerprint(TOKENS) != Sealer([secrets.token_bytes(32)]).fingerprint(
        TOKENS
    )


@pytest.mark.parametrize("padding", ["", "="])
def test_keys_are_read_with_and_without_padding(padding: str) -> None:
    keys = [secrets.token_bytes(32) for _ in range(2)]
    text = " , ".join(base64.urlsafe_b64encode(key).decode().rstrip("=") + padding for key in keys)
    assert parse_keys(text + ",") == keys


@pytest.mark.parametrize("text", ["canary!", "c2hvcnQ", "A" * 43 + "," + "canary-is-not-a-key"])
def test_a_bad_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        Settings(database_url="postgresql://x/y", redis_url="redis://x", secret_keys=text)
    errors = refusal.value.errors(include_url=False, include_input=False)
    assert "key" in errors[0]["msg"]
    assert "canary" not in errors[0]["msg"]
