"""The gRPC surface of the receipts service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import grpc

from agent_reach.v1 import receipt_pb2, receipt_pb2_grpc
from services.chassis.batch_stream import serve_batches
from services.chassis.errors import InvalidFieldsError, Violation, to_status

from .facts import MAX_BATCH
from .reception import Reception, Stored
from .wire import read_receipt


class ReceiptServicer(receipt_pb2_grpc.ReceiptServiceServicer):
    """Takes receipts from our own side."""

    def __init__(self, reception: Reception, stopping: asyncio.Event) -> None:
        self._reception = reception
        self._stopping = stopping

    async def Ingest(
        self, request_iterator: AsyncIterator[receipt_pb2.IngestRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Stores batches of receipts that were verified elsewhere."""
        await serve_batches(request_iterator, context, self._ingest_batch, receipt_pb2.IngestResponse, self._stopping)

    async def IngestRaw(
        self, request: receipt_pb2.IngestRawRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> receipt_pb2.IngestRawResponse:
        """Takes one raw HTTP post of a provider."""
        ids = await self._reception.take_post(request.provider, request.headers, request.body)
        return receipt_pb2.IngestRawResponse(stored=len(ids))

    async def _ingest_batch(self, request: receipt_pb2.IngestRequest) -> receipt_pb2.IngestResponse:
        if not 1 <= len(request.receipts) <= MAX_BATCH:
            raise InvalidFieldsError([Violation("receipts", f"must hold 1 to {MAX_BATCH} receipts")])
        stored = await self._reception.take_facts(
            request.provider, [read_receipt(receipt) for receipt in request.receipts]
        )
        return receipt_pb2.IngestResponse(results=[_to_result(one) for one in stored])


def _to_result(stored: Stored) -> receipt_pb2.IngestResult:
    if isinstance(stored, UUID):
        return receipt_pb2.IngestResult(receipt_id=str(stored))
    return receipt_pb2.IngestResult(error=to_status(InvalidFieldsError(stored)))
