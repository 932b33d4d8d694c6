"""An organization's own presets: made, changed and removed one way for every surface, audited."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import URLValidator
from django.db import IntegrityError

from bonobot.ledger.changes import change
from bonobot.lib.problems import Conflict, Forbidden, Invalid
from bonobot.lib.sayings import say
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.models import Preset, Server
from mcp_servers.naming import check_name, slugify
from mcp_servers.presets.declaring import check_declared

PLAIN = ("name", "description", "category", "icon", "documentation_url")
# What a program's preset lets a person start, and what keeps them within it.
GOVERNED = ("transport_type", "endpoint_config", "auth_type", "auth_config", "parameters")


@dataclass(frozen=True, kw_only=True)
class PresetSpec:
    """What a person says about a preset; `${NAME}` in the configuration is a parameter."""

    name: str
    transport_type: str
    endpoint_config: Mapping[str, Any]
    auth_config: Mapping[str, Any] = field(default_factory=lambda: {"type": "none"})
    parameters: list[dict[str, Any]] = field(default_factory=list)
    description: str = ""
    category: str = "own"
    icon: str = ""
    documentation_url: str = ""

    def columns(self) -> dict[str, Any]:
        """Return what is written into a row."""
        auth = dict(self.auth_config)
        kind = auth.pop("type", "none")
        auth.pop("configured", None)
        return {
            **{name: getattr(self, name) for name in PLAIN},
            "transport_type": self.transport_type,
            "endpoint_config": dict(self.endpoint_config),
            "auth_type": kind,
            "auth_config": auth,
            "parameters": [dict(one) for one in self.parameters],
        }


def spec_of(preset: Preset) -> PresetSpec:
    """Return what a preset says, to be changed in part."""
    return PresetSpec(
        **{name: getattr(preset, name) for name in PLAIN},
        transport_type=preset.transport_type,
        endpoint_config=preset.endpoint_config,
        auth_config={"type": preset.auth_type, **preset.auth_config},
        parameters=preset.parameters,
    )


def add_preset(principal: Principal, spec: PresetSpec) -> Preset:
    """Make a preset of the principal's organization.

    Raises `Invalid` for what doesn't hold, `Conflict` (`name_taken`), and `Forbidden`
    (`platform_admin_only`) for one that starts a program.
    """
    principal.require(Action.MANAGE_SERVERS)
    preset = Preset(organization_id=principal.organization_id, proof={"kind": "own"})
    return _write(principal, preset, spec, "preset_added")


def alter_preset(principal: Principal, preset: Preset, spec: PresetSpec) -> Preset:
    """Change a preset; servers made from it keep what they have. Raises as `add_preset`."""
    _mine(principal, preset)
    return _write(principal, preset, spec, "preset_changed")


def alter_in_part(principal: Principal, preset: Preset, said: Mapping[str, Any]) -> Preset:
    """Change what is said of a preset, and leave the rest."""
    _mine(principal, preset)
    return alter_preset(principal, preset, replace(spec_of(preset), **said))


def remove_preset(principal: Principal, preset: Preset) -> None:
    """Delete a preset; servers made from it stay."""
    _mine(principal, preset)
    recorded(principal, preset, "preset_removed", preset.delete)


def _mine(principal: Principal, preset: Preset) -> None:
    principal.require(Action.MANAGE_SERVERS)
    if preset.organization_id is None:
        raise Forbidden(
            say(
                "`{preset_slug}` comes with Bonobot's catalogue, which follows the release.",
                preset_slug=preset.slug,
            ),
            code="platform_preset",
            rule="presets",
            remedy="Make a preset of the organization's own; under the same name it comes first.",
        )


def _write(principal: Principal, preset: Preset, spec: PresetSpec, action: str) -> Preset:
    wanted = spec.columns()
    changed = [name for name, value in wanted.items() if getattr(preset, name) != value]
    _may_start(principal, preset, wanted, changed)
    check_name(spec.name)
    _address(spec.documentation_url)
    check_declared(wanted)
    for name, value in wanted.items():
        setattr(preset, name, value.strip() if name == "name" else value)
    preset.slug = preset.slug or slugify(spec.name).replace("_", "-")
    beside = Preset.objects.filter(organization_id=principal.organization_id, slug=preset.slug)
    if beside.exclude(pk=preset.pk).exists():
        raise name_taken(spec.name)
    recorded(principal, preset, action, preset.save, changed=sorted(changed))
    return preset


def _may_start(
    principal: Principal, preset: Preset, wanted: Mapping[str, Any], changed: list[str]
) -> None:
    """Raise unless the principal may set what this preset lets others start."""
    stdio = Server.Transport.STDIO in (preset.transport_type, wanted["transport_type"])
    if stdio and not principal.platform_admin and set(changed) & set(GOVERNED):
        raise Forbidden(
            "Only a platform administrator may say what program a preset starts, and with what.",
            code="platform_admin_only",
            field="endpoint_config",
            rule="stdio",
            remedy="Ask a platform administrator; name, description and links you may change.",
        )


def _address(url: str) -> None:
    if not url:
        return
    try:
        URLValidator(schemes=["https", "http"])(url)
    except ValidationError:
        raise Invalid(
            "The documentation is no address.",
            field="documentation_url",
            remedy="Write it whole: https://docs.example.com/.",
        ) from None


def recorded(
    principal: Principal,
    preset: Preset,
    action: str,
    write: Callable[[], object],
    **details: Any,
) -> None:
    """Write a preset, and that it was; raises `Conflict` (`name_taken`)."""
    with change(
        organization_id=principal.organization_id,
        actor=principal.actor,
        action=action,
        resource_type="mcp_preset",
        resource_id=str(preset.pk),
        resource_name=preset.name,
        details=details,
        governed=False,
    ):
        try:
            write()
        except IntegrityError:
            # Someone saved the same name between the look and the write.
            raise name_taken(preset.name) from None


def name_taken(name: str) -> Conflict:
    """Return the refusal of a name that another preset has."""
    return Conflict(
        say("There is a preset named like {name!r} already.", name=name),
        code="name_taken",
        field="name",
        remedy="Choose another name.",
    )
