"""The access rules of a run: which user may do what.

Data in: a resolved run file. Data out: rules for `topics.kafka.acls`, in the order of the roles.
Failure: `SettingsError` for a role that does not exist or a user file that cannot be read; errors of the broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from ops.run_file import RunFile
from ops.wiring import access_of
from pipeline.credentials import client_config, user_of
from schemas.errors import SettingsError
from topics.access import ADMIN, ROLES
from topics.kafka.acls import AccessRules, Rule


def rules_of(run_file: RunFile, *, roles: Sequence[str] = ()) -> list[Rule]:
    """The rules of a run, for some roles or all.

    Raises:
        SettingsError: there is no such role, or its user cannot be read.
    """
    unknown = [role for role in roles if role not in ROLES]
    if unknown:
        raise SettingsError(f"there is no role {unknown[0]!r}", hint=f"the roles are: {', '.join(ROLES)}")
    return [
        (f"User:{user_of(run_file.kafka, role=role)}", grant)
        for role in (roles or ROLES)
        for grant in access_of(run_file, role)
    ]


def apply_rules(run_file: RunFile, rules: Sequence[Rule]) -> int:
    """Set the rules as the administrator; returns how many were not there.

    Raises:
        SettingsError: the administrator's credentials cannot be read.
        AccessDenied: the administrator may not set rules.
        LogError: the broker keeps no rules, or does not answer.
    """
    config = client_config(run_file.kafka, role=ADMIN)
    return AccessRules(run_file.kafka.bootstrap, config=config).apply(rules)
