"""Checks what agents send, one intent at a time, so that none can spoil its batch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from uuid6 import uuid7

from agent_reach.v1 import error_reason_pb2, reach_pb2
from services.catalog.addresses import AddressError, normalise, pseudonym
from services.catalog.catalog import Catalog
from services.catalog.rules import Channel, SceneRules
from services.catalog.templates import TemplateHead
from services.catalog.wire import channel_from_wire
from services.chassis.errors import InvalidFieldsError, Violation
from services.chassis.moments import moment
from services.chassis.principal import Principal
from services.chassis.validation import check_storable, check_text

from .draft import Draft
from .keys import content_hash, derived_key, given_key
from .send_time import SendTime, send_time

MAX_VARIABLES_BYTES = 65_536
MAX_KEY_LENGTH = 256
MAX_USER_LENGTH = 256
_MAX_LIFE = timedelta(days=366)
_DEFAULT_PRIORITY = 5
_SCENE = re.compile(r"[a-z0-9_.-]{1,64}")


def draft_of(
    spec: reach_pb2.IntentSpec,
    *,
    principal: Principal,
    catalog: Catalog,
    now: datetime,
    traceparent: str,
    path: str = "intent",
) -> Draft:
    """Returns a valid intent, ready to be stored.

    Args:
        path: where the intent stands in the request, for the names of fields.

    Raises:
        InvalidFieldsError: with every field at fault.
    """
    violations = _check_texts(spec, path)
    scene = _scene(spec, principal.tenant, catalog, path, violations)
    variables = _variables(spec, path, violations)
    wishes = _wishes(spec, path, violations)
    bare = _bare_address(spec, path, violations)
    send = send_time(spec, now, path, violations)
    expires_at = _expires_at(spec, scene, now, send, path, violations)
    expires_given = spec.HasField("expires_at")
    priority = spec.priority if spec.HasField("priority") else _DEFAULT_PRIORITY
    if not 0 <= priority <= 9:
        violations.append(Violation(f"{path}.priority", "is not between 0 and 9"))
    if scene.intent_key_window is None and not spec.intent_key:
        violations.append(
            Violation(f"{path}.intent_key", f"is required for scenes of category {scene.category.value}")
        )
    if violations:
        raise InvalidFieldsError(violations)
    head = _template(spec, scene, catalog, variables, path)
    user_id = spec.user_id or pseudonym(*bare)
    canonical = _ENCODER.encode(variables)
    content = content_hash(
        user_id=user_id,
        address=bare[1],
        scene=spec.scene,
        template=head.name,
        canonical_variables=canonical,
        channels=wishes,
        send_time=send.content,
    )
    window = scene.intent_key_window
    if spec.intent_key or window is None:
        key = given_key(spec.intent_key)
    else:
        key = derived_key(
            now, window, user_id=user_id, scene=spec.scene, template_version=head.version, content_hash=content
        )
    return Draft(
        id=uuid7(),
        tenant=principal.tenant,
        agent=principal.subject,
        user_id=user_id,
        bare_channel=bare[0],
        bare_address=bare[1],
        scene=spec.scene,
        category=scene.category,
        template=head.name,
        template_version=head.version,
        variables_json=canonical,
        wishes=wishes,
        priority=priority,
        expires_at=expires_at,
        intent_key=spec.intent_key,
        key_hash=key.hash,
        content_hash=content,
        created_at=now,
        traceparent=traceparent,
        send_at=send.at,
        send_at_local=send.local,
        lifetime_seconds=None if expires_given or send.local is None else scene.policy.task_ttl.total_seconds(),
        earlier_key_hash=key.earlier,
        window_seconds=key.window_seconds,
    )


def _check_texts(spec: reach_pb2.IntentSpec, path: str) -> list[Violation]:
    violations = [
        *check_text(f"{path}.user_id", spec.user_id, max_length=MAX_USER_LENGTH),
        *check_text(f"{path}.intent_key", spec.intent_key, max_length=MAX_KEY_LENGTH),
        *check_text(f"{path}.template", spec.template, max_length=64),
    ]
    if not _SCENE.fullmatch(spec.scene):
        violations.append(Violation(f"{path}.scene", "is not 1 to 64 characters of a-z, 0-9, '_', '.', '-'"))
    if bool(spec.user_id) == spec.HasField("address"):
        violations.append(Violation(f"{path}.user_id", "give either user_id or address"))
    return violations


def _scene(
    spec: reach_pb2.IntentSpec, tenant: str, catalog: Catalog, path: str, violations: list[Violation]
) -> SceneRules:
    if spec.scene and not catalog.accepts_scene(spec.scene, tenant):
        violations.append(Violation(f"{path}.scene", "is not declared, and this installation is strict about scenes"))
    return catalog.scene(spec.scene, tenant)


def _variables(spec: reach_pb2.IntentSpec, path: str, violations: list[Violation]) -> dict[str, Any]:
    field, text = f"{path}.variables_json", spec.variables_json
    if not text:
        return {}
    if len(text.encode(errors="surrogatepass")) > MAX_VARIABLES_BYTES:
        violations.append(Violation(field, f"is larger than {MAX_VARIABLES_BYTES} bytes"))
        return {}
    try:
        variables = _DECODER.decode(text)
    except (ValueError, RecursionError):
        violations.append(Violation(field, "is no valid JSON (NaN and infinite numbers are none)"))
        return {}
    if not isinstance(variables, dict):
        violations.append(Violation(field, "is not a JSON object"))
        return {}
    # Escapes such as \u0000 and \ud800 hide what the text itself does not show.
    found = [violation for value in _texts(variables) for violation in check_storable(field, value)]
    violations += found[:1]
    return variables


def _wishes(spec: reach_pb2.IntentSpec, path: str, violations: list[Violation]) -> tuple[Channel, ...]:
    wishes: dict[Channel, None] = {}
    for index, number in enumerate(spec.channels):
        channel = channel_from_wire(number)
        if channel is None or channel in wishes:
            violations.append(Violation(f"{path}.channels[{index}]", "is not a known channel, or comes twice"))
            break
        wishes[channel] = None
    return tuple(wishes)


def _bare_address(spec: reach_pb2.IntentSpec, path: str, violations: list[Violation]) -> tuple[Channel | None, str]:
    if not spec.HasField("address"):
        return None, ""
    channel = channel_from_wire(spec.address.channel)
    if channel is None:
        violations.append(Violation(f"{path}.address.channel", "is required"))
        return None, ""
    found = check_storable(f"{path}.address.value", spec.address.value)
    if found:
        violations += found
        return channel, ""
    try:
        return channel, normalise(channel, spec.address.value)
    except AddressError as error:
        violations.append(Violation(f"{path}.address.value", str(error)))
        return channel, ""


def _expires_at(
    spec: reach_pb2.IntentSpec,
    scene: SceneRules,
    now: datetime,
    send: SendTime,
    path: str,
    violations: list[Violation],
) -> datetime:
    default = send.latest + scene.policy.task_ttl
    if not spec.HasField("expires_at"):
        return default
    try:
        expires_at = moment(spec.expires_at)
    except (ValueError, OverflowError):
        expires_at = datetime.max.replace(tzinfo=UTC)
    if not now < expires_at <= send.latest + _MAX_LIFE:
        violations.append(Violation(f"{path}.expires_at", "is not in the future, or more than 366 days away"))
        return default
    if send.earliest is not None and expires_at <= send.earliest:
        violations.append(Violation(f"{path}.expires_at", "comes before the moment at which it may leave"))
    return expires_at


def _template(
    spec: reach_pb2.IntentSpec, scene: SceneRules, catalog: Catalog, variables: Mapping[str, Any], path: str
) -> TemplateHead:
    name = spec.template or scene.template
    head = catalog.template(name)
    if head is None:
        raise InvalidFieldsError(
            [Violation(f"{path}.template", f"no template {name!r} is loaded")],
            reason=error_reason_pb2.ERROR_REASON_TEMPLATE_UNKNOWN,
            metadata={"template": name},
        )
    missing = head.missing(variables)
    if missing:
        raise InvalidFieldsError(
            [
                Violation(f"{path}.variables_json", f"{variable} is required by template {name}")
                for variable in missing
            ],
            reason=error_reason_pb2.ERROR_REASON_VARIABLE_MISSING,
            metadata={"template": name, "missing": ", ".join(missing)},
        )
    return head


def _texts(value: object) -> list[str]:
    """Returns every text in a JSON value, keys included. Not recursive: depth is the sender's choice."""
    texts: list[str] = []
    open_values = [value]
    while open_values:
        current = open_values.pop()
        if isinstance(current, str):
            texts.append(current)
        elif isinstance(current, dict):
            texts += current
            open_values += current.values()
        elif isinstance(current, list):
            open_values += current
    return texts


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in {float("inf"), float("-inf")}:
        raise ValueError("the number is too large")
    return number


# Made once: to make one costs more than to read a small text with it.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
