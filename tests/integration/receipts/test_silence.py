"""From the provider's receipt to the suppression that withholds the next message, through three real services."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.dispatching import Dispatching, alert
from tests.support.suite import SERVICE_KEY, Suite, eventually, running_suite
from tests.support.webhooks import receiving

from .support import Dsns, event, receipts


async def test_after_a_complaint_nothing_more_leaves_to_that_address(suite: Suite, migrated: Dsns) -> None:
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
        line, first, second = Dispatching(suite), alert(f"{receiver.url}/ann"), alert(f"{receiver.url}/ann")
        await line.accept(first)
        await eventually(lambda: _is_posted(receiver.posts))
        answer = await service.post(
            event(1, kind="complained", idempotency_key=receiver.posts[0].headers["idempotency-key"])
        )
        assert answer.status == 202

        async def suppressed() -> list[tuple[object, ...]]:
            return await service.rows("SELECT tenant, address, source, created_by FROM policy.suppressions")

        ((tenant, address, source, _),) = await eventually(suppressed)
        assert (tenant, address, source) == ("acme", f"{receiver.url}/ann", "complaint")
        await line.accept(second, alert(f"{receiver.url}/bob"))

        async def withheld() -> str:
            return (await line.task(second)).reason

        assert await eventually(withheld) == "address_complained"
        await eventually(lambda: _is_posted(receiver.at("/bob")))
        assert len(receiver.at("/ann")) == 1


async def _is_posted(posts: Sequence[object]) -> bool:
    return bool(posts)
