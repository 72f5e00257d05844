"""Rules that every contract keeps, read from the descriptors themselves."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor, MethodDescriptor
from google.rpc import status_pb2

from agent_reach import v1
from agent_reach.v1 import access_pb2
from services.chassis.interceptors import allowed_roles

FILES: list[FileDescriptor] = [
    importlib.import_module(f"agent_reach.v1.{module.name}").DESCRIPTOR
    for module in pkgutil.iter_modules(v1.__path__)
    if module.name.endswith("_pb2")
]


def methods() -> Iterator[MethodDescriptor]:
    for file in FILES:
        for service in file.services_by_name.values():
            yield from service.methods


METHODS = list(methods())
IDS = [method.full_name for method in METHODS]


def test_all_contracts_are_here() -> None:
    services = {method.containing_service.name for method in METHODS}
    assert services >= {
        "ReachService",
        "PolicyService",
        "ProfileService",
        "SuppressionService",
        "DispatcherService",
        "ReceiptService",
        "SandboxService",
    }


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_every_rpc_declares_who_may_call_it(method: MethodDescriptor) -> None:
    roles = allowed_roles(f"/{method.containing_service.full_name}/{method.name}")
    assert roles
    assert access_pb2.ROLE_UNSPECIFIED not in roles


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_every_rpc_has_a_request_and_a_response_of_its_own(method: MethodDescriptor) -> None:
    assert method.input_type.name == f"{method.name}Request"
    assert method.output_type.name == f"{method.name}Response"


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_a_stream_in_both_directions_carries_numbered_batches(method: MethodDescriptor) -> None:
    if not (method.client_streaming and method.server_streaming):
        return
    for message in (method.input_type, method.output_type):
        assert message.fields_by_name["sequence"].type == FieldDescriptor.TYPE_UINT64
    error = method.output_type.fields_by_name.get("error")
    assert error is None or error.message_type is status_pb2.Status.DESCRIPTOR


def test_every_enum_starts_unspecified_and_every_value_has_its_prefix() -> None:
    for file in FILES:
        for enum in file.enum_types_by_name.values():
            prefix = "".join(f"_{letter}" if letter.isupper() else letter for letter in enum.name).upper().lstrip("_")
            assert enum.values_by_number[0].name == f"{prefix}_UNSPECIFIED"
            assert all(value.name.startswith(f"{prefix}_") for value in enum.values)


def test_the_contracts_and_their_imports_stand_in_one_pool() -> None:
    pool = descriptor_pool.Default()
    assert all(pool.FindFileByName(file.name) is file for file in FILES)
