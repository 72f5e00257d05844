"""The gRPC door: batches from our own side, and raw posts that another process received."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import grpc
import pytest

from agent_reach.v1 import receipt_pb2, timeline_pb2

from .support import OTHER_SECRET, Receipts, event, metadata, signed

DELIVERED = timeline_pb2.RECEIPT_KIND_DELIVERED
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT.value[0]


def receipt(number: int, **changes: Any) -> receipt_pb2.Receipt:
    fields = {"provider_event_id": f"e-{number}", "kind": DELIVERED, "idempotency_key": f"k-{number}", **changes}
    return receipt_pb2.Receipt(**fields)


async def ingest(service: Receipts, *requests: receipt_pb2.IngestRequest) -> list[receipt_pb2.IngestResponse]:
    call = service.stub.Ingest(iter(requests), metadata=metadata(), timeout=30)
    return [response async for response in call]


async def test_one_bad_receipt_is_refused_with_its_reason_and_the_others_are_stored(service: Receipts) -> None:
    receipts = [receipt(number) for number in range(500)]
    receipts[7] = receipt(7, kind=timeline_pb2.RECEIPT_KIND_UNSPECIFIED, provider_event_id="a\x00b")

    [response] = await ingest(service, receipt_pb2.IngestRequest(sequence=9, provider="mail", receipts=receipts))

    assert response.sequence == 9
    refused = [n for n, result in enumerate(response.results) if result.WhichOneof("result") == "error"]
    assert refused == [7]
    assert response.results[7].error.code == INVALID_ARGUMENT
    assert "kind" in response.results[7].error.message
    assert "provider_event_id" in response.results[7].error.message
    assert await service.rows("SELECT count(*), count(post_id) FROM receipts.events") == [(499, 0)]


async def test_a_batch_again_gets_the_same_ids(service: Receipts) -> None:
    request = receipt_pb2.IngestRequest(provider="mail", receipts=[receipt(2), receipt(1)])

    responses = await ingest(service, request, request)

    first, second = ([UUID(result.receipt_id) for result in response.results] for response in responses)
    assert first == second
    assert len(set(first)) == 2


@pytest.mark.parametrize(
    "request_",
    [
        receipt_pb2.IngestRequest(sequence=1, provider="Not A Name", receipts=[receipt(1)]),
        receipt_pb2.IngestRequest(sequence=1, provider="mail"),
        receipt_pb2.IngestRequest(sequence=1, provider="mail", receipts=[receipt(n) for n in range(501)]),
    ],
    ids=["provider", "empty", "too many"],
)
async def test_a_wrong_batch_is_refused_as_a_whole_and_the_stream_goes_on(
    service: Receipts, request_: receipt_pb2.IngestRequest
) -> None:
    good = receipt_pb2.IngestRequest(sequence=2, provider="mail", receipts=[receipt(1)])

    bad, stored = await ingest(service, request_, good)

    assert (bad.error.code, list(bad.results)) == (INVALID_ARGUMENT, [])
    assert (stored.sequence, len(stored.results)) == (2, 1)


async def test_a_moment_that_is_none_is_refused(service: Receipts) -> None:
    wrong = receipt(1)
    wrong.occurred_at.seconds = 10**15

    [response] = await ingest(service, receipt_pb2.IngestRequest(provider="mail", receipts=[wrong]))

    assert "occurred_at" in response.results[0].error.message


async def test_a_raw_post_takes_the_same_way_as_over_http(service: Receipts) -> None:
    body = b'[{"event_id": "e-1", "kind": "delivered", "idempotency_key": "k-1"}]'
    request = receipt_pb2.IngestRawRequest(provider="demo", headers=signed(body), body=body)

    first = await service.stub.IngestRaw(request, metadata=metadata(), timeout=30)
    over_http = await service.post(event(1))

    assert first.stored == 1
    assert over_http.status == 202
    assert await service.rows("SELECT count(*) FROM receipts.events") == [(1,)]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"headers": signed(b"{} ")}, grpc.StatusCode.UNAUTHENTICATED),
        ({"headers": signed(b"{}", OTHER_SECRET)}, grpc.StatusCode.UNAUTHENTICATED),
        ({"provider": "nobody"}, grpc.StatusCode.NOT_FOUND),
        ({}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"body": bytes(1024 * 1024 + 1)}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_raw_post_is_refused_for_the_same_reasons(
    service: Receipts, changes: dict[str, Any], code: grpc.StatusCode
) -> None:
    fields = {"provider": "demo", "headers": signed(b"{}"), "body": b"{}", **changes}

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.stub.IngestRaw(receipt_pb2.IngestRawRequest(**fields), metadata=metadata(), timeout=30)

    assert caught.value.code() is code
    assert await service.rows("SELECT FROM receipts.events") == []
