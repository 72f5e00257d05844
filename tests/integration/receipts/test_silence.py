"""From the provider's receipt to the suppression that withholds the next message, through three real services."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.dispatching import Dispatching, alert
from tests.support.suite import SERVICE_KEY, Suite, eventually, running_suite
from tests.support.webhooks import receiving

from .support import Dsns, event, receipts


async def test_after_a_complaint_the_address_gets_nothing_more_and_the_user_nothing_of_the_kind(
    suite: Suite, migrated: Dsns
) -> None:
    async with (
        receiving() as receiver,
        running_suite(suite, "policy", "dispatcher"),
        receipts(
            migrated,
            suite.ports["dispatcher"],
            policy_target=f"127.0.0.1:{suite.ports['policy']}",
            service_key=SERVICE_KEY,
        ) as service,
    ):
        line = Dispatching(suite)
        first = alert(f"{receiver.url}/ann", user_id="ann")
        # The next ones: the same user, somebody else at that address, the same user at another one.
        again = alert(f"{receiver.url}/ann", user_id="ann")
        shared = alert(f"{receiver.url}/ann", user_id="eve")
        moved = alert(f"{receiver.url}/new", user_id="ann")
        await line.accept(first)
        await eventually(lambda: _is_posted(receiver.posts))
        answer = await service.post(
            event(1, kind="complained", idempotency_key=receiver.posts[0].headers["idempotency-key"])
        )
        assert answer.status == 202

        async def suppressed() -> list[tuple[object, ...]]:
            rows = await service.rows(
                "SELECT tenant, user_id, address, channel, category, source FROM policy.suppressions"
            )
            return sorted(rows)

        assert await eventually(suppressed) == [
            ("acme", "", f"{receiver.url}/ann", "", "", "complaint"),
            ("acme", "ann", "", "webhook", "alert", "complaint"),
        ]
        others = [
            alert(f"{receiver.url}/bob", user_id="bob"),
            # Of another category she may hear at her new address.
            alert(f"{receiver.url}/order", user_id="ann", scene="order_shipped"),
        ]
        await line.accept(again, shared, moved, *others)
        reasons = [(await line.reaches(item, "SUPPRESSED")).reason for item in (again, shared, moved)]
        assert reasons == ["user_complained", "address_complained", "user_complained"]
        for item in others:
            await line.reaches(item, "SENT")
        assert (len(receiver.at("/ann")), len(receiver.at("/new"))) == (1, 0)


async def _is_posted(posts: Sequence[object]) -> bool:
    return bool(posts)
