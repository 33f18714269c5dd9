"""Every tool has one function name that a chat upstream accepts, and a call finds it again."""

import re

from hypothesis import given
from hypothesis import strategies as st

from models.wire.tools import CallTarget
from tests.support.properties import examples
from worker.translation.tool_catalog import build_tool_catalog, function_names

USABLE = re.compile(r"[a-zA-Z0-9_-]{1,64}")

ALPHABETS = st.one_of(
    st.text(min_size=1, max_size=200),
    st.text("ab_-", min_size=1, max_size=6),
    st.text("x", min_size=60, max_size=70),
)
ITEMS = st.sampled_from(["function_call", "custom_tool_call", "mcp_call"])
TARGETS = st.one_of(
    st.builds(CallTarget, ITEMS, ALPHABETS, st.one_of(st.none(), ALPHABETS)),
    st.sampled_from(["shell_call", "local_shell_call", "apply_patch_call", "tool_search_call"]).map(
        CallTarget
    ),
)


@examples(40)
@given(
    st.lists(TARGETS, unique=True, max_size=30),
    st.lists(st.text("ab_", min_size=1, max_size=4), max_size=5),
)
def test_whatever_tools_are_called_their_names_are_usable_and_lead_back(
    targets: list[CallTarget], others: list[str]
) -> None:
    names = function_names(targets, others)
    assert set(names) == set(targets)
    assert all(USABLE.fullmatch(name) for name in names.values())
    back = {name: target for target, name in names.items()}
    assert len(back) == len(targets)
    assert not set(others) & set(back)
    assert all(back[names[target]] == target for target in targets)


@examples(40)
@given(st.lists(TARGETS, unique=True, max_size=30))
def test_a_tool_is_called_the_same_every_time(targets: list[CallTarget]) -> None:
    assert function_names(targets) == function_names(list(targets))


def test_names_that_are_usable_stay_as_they_are() -> None:
    targets = [
        CallTarget("function_call", "find", "crm"),
        CallTarget("function_call", "crm__find"),
        CallTarget("shell_call"),
        CallTarget("custom_tool_call", "a"),
    ]
    names = function_names(targets)
    assert list(names.values())[:2] == ["crm__find", "a"]
    assert names[CallTarget("shell_call")] == "shell"
    assert re.fullmatch(r"crm__find_[0-9a-f]{8}", names[targets[0]])


def test_a_call_of_a_removed_tool_still_has_a_name() -> None:
    assert build_tool_catalog({}).name_of(CallTarget("function_call", "find", "crm")) == "crm__find"
    assert build_tool_catalog({}).name_of(CallTarget("apply_patch_call")) == "apply_patch"
