"""Who may say what: the table is whole, and nobody has more rights than meant."""

from __future__ import annotations

from typing import get_args

import pytest

from p2prl.core import messages as m
from p2prl.core.rights import HELLO_ROLES, RIGHTS, Role, may, may_be

OWNERS_ORDERS = {
    m.StopAsk,
    m.Rename,
    m.NodesAsk,
    m.AdmitAsk,
    m.RemoveAsk,
    m.QuarantineAsk,
    m.CodeAsk,
    m.InviteAsk,
}
ROLES: tuple[Role, ...] = get_args(Role)


def test_every_message_to_the_broker_is_in_the_table() -> None:
    assert set(RIGHTS) == set(get_args(m.ToBroker))


def test_every_role_of_a_hello_is_in_the_table() -> None:
    assert set(HELLO_ROLES) == set(get_args(m.Role))


def test_each_role_may_say_what_it_is_there_for_and_no_more() -> None:
    everybody = {m.Hello, m.Goodbye}
    asking = {m.StatusAsk, m.WeightsAsk}
    allowed: dict[Role, set[type[m.Message]]] = {
        "owner": everybody | asking | OWNERS_ORDERS,
        "trainer": everybody | asking | {m.TrainerReport},
        "shard": everybody | {m.ShardReceipts, m.ShardReport},
        "member": everybody | asking | {m.Heartbeat, m.EvalResult, m.Fault},
    }
    assert {role: {kind for kind in RIGHTS if may(role, kind)} for role in ROLES} == allowed


@pytest.mark.parametrize("order", sorted(OWNERS_ORDERS, key=lambda kind: kind.__name__))
def test_only_the_owner_gives_orders(order: type[m.Message]) -> None:
    assert [role for role in ROLES if may(role, order)] == ["owner"]


def test_nobody_can_be_what_its_key_is_not() -> None:
    said = {role: {hello for hello in HELLO_ROLES if may_be(role, hello)} for role in ROLES}
    assert said == {
        "owner": {"owner", "client"},
        "trainer": {"trainer"},
        "shard": {"shard"},
        "member": {"member", "client"},
    }


def test_what_is_not_in_the_tables_is_nobodys_right() -> None:
    assert not any(may(role, m.Welcome) for role in ROLES)
    assert not any(may(role, m.EnrolBegin) for role in ROLES)
    assert not any(may_be(role, "king") for role in ROLES)  # type: ignore[arg-type]
