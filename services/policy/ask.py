"""What would happen to a message at a moment: judged by the policy in force, with nothing reserved, counted or sent."""

from __future__ import annotations

from dataclasses import replace

from services.catalog.addresses import pseudonym
from services.catalog.holder import CatalogHolder
from services.catalog.rules import SceneRules
from services.chassis.clock import Clock
from services.chassis.errors import InvalidFieldsError, Violation

from .admin_requests import AskedMessage
from .counters import Counters
from .decision import Address, Decision, Item
from .dossiers import Dossiers, Recipient
from .evaluate import before_counters, conclude
from .hindsight import Counts
from .judge import rules_for
from .outlook import Look, Outlook
from .places import user_of

# No intent has this id: the message finds no place of its own in the counters.
_NO_INTENT = "00000000-0000-0000-0000-000000000000"


class Asker:
    """Answers what would happen.

    Args:
        catalog: the policy in force.
        dossiers: what is known of recipients.
        counters: the zones that are kept.
        outlook: caps and quotas.
        clock: the present moment.
    """

    def __init__(
        self, catalog: CatalogHolder, dossiers: Dossiers, counters: Counters, outlook: Outlook, clock: Clock
    ) -> None:
        self._catalog = catalog
        self._dossiers = dossiers
        self._counters = counters
        self._outlook = outlook
        self._clock = clock

    async def ask(self, tenant: str, asked: AskedMessage) -> Decision:
        """Judges a message that somebody thinks of.

        Suppressions and choices are taken as of the moment in question, the profile as it is now, the counters as of
        the moment for a past one; what is sent until a future one, nobody knows.

        Raises:
            InvalidFieldsError: there is no such template, or none of the scene's own, or no intent may name this scene.
            UnavailableError: the database or Redis cannot be reached.
        """
        catalog = self._catalog.current
        if not catalog.accepts_scene(asked.scene, tenant):
            raise InvalidFieldsError([Violation("scene", "is not declared, and undeclared ones are refused")])
        if asked.template and catalog.template(asked.template) is None:
            raise InvalidFieldsError([Violation("template", "is not the name of a template")])
        scene = catalog.scene(asked.scene, tenant)
        if not asked.template and catalog.template(scene.template) is None:
            known = "has" if scene.declared else "is not declared, and has"
            reason = f"{known} no template of its own: an intent that names none would be refused; name one"
            raise InvalidFieldsError([Violation("scene", reason)])
        now = self._clock.now() if asked.at is None else asked.at
        rules = rules_for(catalog, asked.scene, asked.template, tenant)
        item = Item(
            intent_id=_NO_INTENT,
            hop=0,
            tenant=tenant,
            user_id=asked.user_id or _pseudonym(asked.address),
            scene=asked.scene,
            address=asked.address,
            channels=asked.channels,
            expires_at=asked.expires_at or now + rules.scene.policy.task_ttl,
            template=asked.template,
            send_at=asked.send_at,
            send_at_local=asked.send_at_local,
            submitted_at=now,
        )
        addresses = () if item.address is None else (item.address,)
        (dossier,) = await self._dossiers.load([Recipient(user_of(item), addresses)], now)
        facts = replace(dossier.at(now), kept_zone=await self._counters.kept_zone(user_of(item), now))
        judged = before_counters(item, facts, rules, now)
        if isinstance(judged, Decision):
            return _told(judged, scene)
        (facts,) = await self._outlook.add_counts([Look(judged, facts, Counts())])
        return _told(conclude(judged, facts), scene)


def _told(decision: Decision, scene: SceneRules) -> Decision:
    """Returns a decision whose first gate tells what may be a slip: a scene that nobody declared."""
    if scene.declared or not decision.trace:
        return decision
    first, *others = decision.trace
    told = {"scene": f"not declared, judged as {scene.category} (strict_scenes would refuse it)"}
    return replace(decision, trace=(replace(first, inputs={**first.inputs, **told}), *others))


def _pseudonym(address: Address | None) -> str:
    return "" if address is None else pseudonym(address.channel, address.value)
