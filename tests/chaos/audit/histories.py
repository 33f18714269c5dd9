"""Rules about what a response continues.

I5 (one response of a conversation at a time), I6 (a summary is made once), I7 (history, items of a
conversation), I11 (projects).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from tests.chaos.audit.case import TERMINAL, Case, Violation
from tests.chaos.audit.fold import texts_of
from tests.chaos.audit.record import JSON, ConversationTrace, UpstreamCall

_JOINS = frozenset({"completed", "incomplete"})
"""With one of these statuses a response becomes part of its conversation."""


def check_history(case: Case, by_marker: dict[str, Case]) -> Iterator[Violation]:
    """All rules about the history of one response. `by_marker`: the cases of the whole run."""
    yield from _check_previous(case, by_marker)
    yield from _check_compaction(case)
    yield from _check_compacting(case)
    yield from _check_after_compaction(case, by_marker)


def _check_previous(case: Case, by_marker: dict[str, Case]) -> Iterator[Violation]:
    """I7: a continuation is sent with the output of the response before it."""
    if case.trace.previous is None:
        return
    previous = by_marker[case.trace.previous.marker]
    if previous.final is None or previous.final["status"] != "completed":
        return
    text = _quoted(previous.final["output_text"])
    for call in case.calls:
        if text not in call.request_messages and not _holds_summary(case, call):
            yield case.violation(
                "I7",
                "the upstream did not get the output of the response before",
                call.request_messages,
            )


def _quoted(text: str) -> str:
    """The text as it is inside a JSON string."""
    return json.dumps(text)[1:-1]


def _answer(call: UpstreamCall) -> str:
    return "".join(text for _, text in call.sent_text)


# --- compaction ---


def _check_compaction(case: Case) -> Iterator[Violation]:
    """I7: the answer of a compaction is messages of users, then one compaction."""
    create = case.trace.create
    if case.trace.kind != "compaction" or create.status != 200:
        return
    types = [item["type"] for item in create.body["output"]]
    if types[-1:] != ["compaction"] or set(types[:-1]) - {"message"}:
        yield case.violation("I7", f"a compaction returned {types}", create.body)
    if not any(call.is_complete_turn for call in case.calls):
        yield case.violation("I7", "a compaction was answered, and no model wrote it", create.body)


def _check_after_compaction(case: Case, by_marker: dict[str, Case]) -> Iterator[Violation]:
    """I7: a response that gets a compaction as input sends its summary to the upstream."""
    if case.trace.compacted is None:
        return
    compaction = by_marker[case.trace.compacted.marker]
    if case.trace.create.status == 400:
        yield case.violation("I7", "a compaction was refused as input", case.trace.create.body)
    summaries = [_quoted(_answer(call)) for call in compaction.calls if call.is_complete_turn]
    for call in case.calls:
        if not any(summary in call.request_messages for summary in summaries):
            yield case.violation(
                "I7", "the upstream did not get the summary", call.request_messages
            )


def _check_compacting(case: Case) -> Iterator[Violation]:
    """I6, I7: a response compacts its history once, then sends the summary in each request."""
    if case.trace.kind != "compacting":
        return
    with_summary = [_holds_summary(case, call) for call in case.calls]
    if with_summary != sorted(with_summary):
        yield case.violation(
            "I6", "a summary that was used was made again", [call.started for call in case.calls]
        )
    if case.final is None or case.final["status"] != "completed":
        return
    types = [item["type"] for item in case.final["output"]]
    if types.count("compaction") != 1 or types[0] != "compaction":
        yield case.violation("I7", f"its output is {types}, without one compaction first")
    elif not any(with_summary):
        yield case.violation("I7", "it was compacted, and the upstream never got the summary")


def _holds_summary(case: Case, call: UpstreamCall) -> bool:
    """Whether the request has the complete answer to an earlier request of the same response."""
    return case.trace.kind == "compacting" and any(
        _quoted(_answer(earlier)) in call.request_messages
        for earlier in case.calls
        if earlier.started < call.started and earlier.is_complete_turn and earlier.sent_text
    )


# --- conversations ---


@dataclass(slots=True)
class _Group:
    """The items that one response has added to its conversation."""

    text: str
    """The text of its input."""
    output: list[JSON] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        """The texts that an upstream gets of it, in order."""
        outputs = (
            "".join(part.get("text", "") for part in item["content"])
            for item in self.output
            if item["type"] == "message"
        )
        return [self.text, *(text for text in outputs if text)]


def check_conversation(
    conversation: ConversationTrace, cases: Sequence[Case]
) -> Iterator[Violation]:
    """All rules about a conversation; `cases`: the creates in it."""
    yield from _check_one_at_a_time(conversation, cases)
    yield from _check_locked(conversation, cases)
    other = conversation.other_project
    if other is not None and other.status not in (404, 503, None):
        yield _violation(
            conversation, "I11", f"another project was answered {other.status}", other.body
        )
    if conversation.items is None:
        yield _violation(conversation, "I1", "its items could not be read at the end")
        return
    groups = list(_groups(conversation.items))
    first = [group.text for group in groups[: len(conversation.texts)]]
    if first != conversation.texts:
        yield _violation(conversation, "I7", "it does not begin with its first items", first)
        return
    own = groups[len(conversation.texts) :]
    yield from _check_groups(conversation, own, cases)
    yield from _check_requests(conversation, own, cases)


def _violation(
    conversation: ConversationTrace, invariant: str, sentence: str, evidence: object = ""
) -> Violation:
    return Violation(invariant, conversation.id, sentence, str(evidence))


def _groups(items: Sequence[JSON]) -> Iterator[_Group]:
    """Each message of a user, with the items that follow it."""
    group: _Group | None = None
    for item in items:
        if item.get("role") == "user":
            if group is not None:
                yield group
            group = _Group("".join(part.get("text", "") for part in item["content"]))
        elif group is None:
            group = _Group("", [item])
        else:
            group.output.append(item)
    if group is not None:
        yield group


def _check_groups(
    conversation: ConversationTrace, groups: Sequence[_Group], cases: Sequence[Case]
) -> Iterator[Violation]:
    """I7: its items are exactly those of its completed responses, in order, once each."""
    by_text = {case.trace.input_text: case for case in cases}
    texts = [group.text for group in groups]
    for text in {text for text in texts if texts.count(text) > 1}:
        yield _violation(conversation, "I7", f"the input {text!r} is in it twice", texts)
    for text in set(texts) - set(by_text):
        yield _violation(conversation, "I7", f"{text!r} is in it and was never sent", texts)
    for case in cases:
        if case.final is not None and (case.final["status"] in _JOINS) != (
            case.trace.input_text in texts
        ):
            presence = "is" if case.trace.input_text in texts else "is not"
            yield case.violation(
                "I7", f"it ended as {case.final['status']}, and {presence} in its conversation"
            )
    known = [by_text[group.text] for group in groups if group.text in by_text]
    for group in groups:
        member = by_text.get(group.text)
        if member is not None:
            yield from _check_group(member, group)
    for before, after in combinations(known, 2):
        if (after.seen_ended_at or float("inf")) < before.trace.create.sent:
            yield after.violation(
                "I7", "in its conversation it follows a response that was created after its end"
            )


def _check_group(case: Case, group: _Group) -> Iterator[Violation]:
    """I7: the conversation has the output that GET shows. I9: and nothing of a refused create."""
    if case.trace.create.status == 400:
        yield case.violation("I9", "its create was refused, and its items are in the conversation")
    if case.final is None:
        return
    output = [(item["id"], item.get("status"), texts_of(item)) for item in case.final["output"]]
    listed = [(item["id"], item.get("status"), texts_of(item)) for item in group.output]
    if output != listed:
        yield case.violation("I7", "its conversation does not have its output", (output, listed))


def _check_requests(
    conversation: ConversationTrace, groups: Sequence[_Group], cases: Sequence[Case]
) -> Iterator[Violation]:
    """I7: each request to the upstream has all earlier items, then the own input."""
    prefixes = [list(conversation.texts)]
    for group in groups:
        prefixes.append([*prefixes[-1], *group.texts])
    index_of = {group.text: index for index, group in enumerate(groups)}
    for case in cases:
        index = index_of.get(case.trace.input_text)
        possible = prefixes if index is None else [prefixes[index]]
        for call in case.calls:
            own = call.request_texts
            if not any(
                own[: len(prefix) + 1] == [*prefix, case.trace.input_text] for prefix in possible
            ):
                yield case.violation(
                    "I7", "the upstream did not get its conversation", (own, possible[-1])
                )


def _check_one_at_a_time(
    conversation: ConversationTrace, cases: Sequence[Case]
) -> Iterator[Violation]:
    """I5: the responses of a conversation run one after the other."""
    running = sorted((case for case in cases if case.calls), key=lambda case: case.calls[0].started)
    for first, second in combinations(running, 2):
        began = second.calls[0].started
        seen_running = any(
            get.sent > began and get.body["status"] not in TERMINAL for get in first.successful_gets
        )
        if first.calls[-1].started > began or seen_running:
            yield _violation(
                conversation,
                "I5",
                f"{first.trace.id} and {second.trace.id} ran at the same time",
                (first.calls[-1].started, began),
            )


def _check_locked(conversation: ConversationTrace, cases: Sequence[Case]) -> Iterator[Violation]:
    """I2: a create is refused as locked only while another response may be open."""
    for case in cases:
        create = case.trace.create
        error = create.body.get("error", create.body)
        if create.status != 400 or create.answered is None:
            continue
        if error.get("code") != "conversation_locked":
            yield case.violation("I7", "a create in a conversation was refused", create.body)
            continue
        if not any(
            other is not case
            and other.trace.create.status != 400
            and other.trace.create.sent < create.answered
            and (other.seen_ended_at or float("inf")) > create.sent
            for other in cases
        ):
            yield _violation(
                conversation, "I2", "it is locked, and none of its responses is open", create.sent
            )
