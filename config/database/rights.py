"""What the application's role may do with each table: the one list, which every migration applies.

The owner of the tables migrates; the application owns nothing. A table that is not listed gives it nothing, and a
test compares the list with the models. UPDATE is also what `SELECT ... FOR UPDATE` and `ON CONFLICT DO UPDATE` need.
What may only ever be added is written down as rows that nobody edits: the audit trail, the ledger, the history.
"""

from __future__ import annotations

from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper

READ: Final = frozenset({"SELECT"})
ADD: Final = READ | {"INSERT"}
EDIT: Final = ADD | {"UPDATE"}
DROP: Final = ADD | {"DELETE"}
ALL: Final = EDIT | {"DELETE"}

_INFRA: Final = {"infra_circuit": ALL}
_ACCOUNTS: Final = {
    "accounts_apitoken": EDIT,
    "accounts_auditchain": EDIT,  # the head of a chain moves; a trigger lets it only grow
    "accounts_auditcheck": DROP,  # the last thousand results stay
    "accounts_auditcheckpoint": ADD,
    "accounts_auditevent": ADD,
    "accounts_membership": ALL,
    "accounts_membershipevent": ADD,
    "accounts_organization": EDIT,
    "accounts_organizationevent": ADD,
    "accounts_project": EDIT,
    "accounts_projectevent": ADD,
    "accounts_secret": ALL,
    "accounts_signincount": ALL,
    "accounts_user": EDIT,
    "accounts_user_groups": READ,
    "accounts_user_user_permissions": READ,
    "accounts_userevent": ADD,
}
_QUOTAS: Final = {
    "quotas_alert": ALL,
    "quotas_budget": EDIT,
    "quotas_budgetevent": ADD,
    "quotas_budgetperiod": ALL,
    "quotas_driftfinding": ALL,
    "quotas_fairsharerules": ADD,  # the newest is in force, the others are the history
    "quotas_grant": EDIT,
    "quotas_grantevent": ADD,
    "quotas_ledgerentry": ADD,
    "quotas_ledgerrollup": ADD,
    "quotas_notice": ALL,
    "quotas_notice_alerts": DROP,
    "quotas_pricerow": EDIT,
    "quotas_providerallocation": ALL,
    "quotas_providerstate": ALL,
    "quotas_quota": ALL,
    "quotas_quotaevent": ADD,
    "quotas_refusedstart": ALL,
    "quotas_shareusage": ALL,
}
_SCHEDULER: Final = {
    "scheduler_allocation": EDIT,  # a view of tasks
    "scheduler_artifact": ALL,
    "scheduler_artifactupload": ALL,
    "scheduler_attempt": ALL,
    "scheduler_attemptusage": ALL,
    "scheduler_changedjob": DROP,
    "scheduler_checkpoint": ALL,
    "scheduler_cluster": EDIT,
    "scheduler_clusterevent": ADD,
    "scheduler_cycle": ALL,
    "scheduler_dataset": EDIT,
    "scheduler_device": EDIT,
    "scheduler_elementend": DROP,
    "scheduler_fairqueueturn": EDIT,
    "scheduler_folderupload": ALL,
    "scheduler_forecastoutcome": ALL,
    "scheduler_forecastrun": EDIT,
    "scheduler_idempotencykey": ALL,
    "scheduler_job": ALL,
    "scheduler_jobdependency": ALL,
    "scheduler_metriccount": EDIT,
    "scheduler_metriccursor": EDIT,
    "scheduler_jobelements": DROP,
    "scheduler_jobevent": DROP,
    "scheduler_unfinishedjob": DROP,
    "scheduler_jobmove": ALL,
    "scheduler_jobname": DROP,
    "scheduler_jobrequest": ALL,  # a trigger keeps what runs as it was submitted
    "scheduler_jointoken": EDIT,
    "scheduler_keptresult": ALL,
    "scheduler_lease": EDIT,
    "scheduler_logchunk": DROP,
    "scheduler_node": EDIT,
    "scheduler_node_partitions": DROP,
    "scheduler_nodeheartbeat": EDIT,
    "scheduler_nodenamecordoneddrainingdrainreasondrainedbylabeled01": ADD,  # the history of nodes
    "scheduler_nodeoutage": ALL,
    "scheduler_nodescore": ALL,
    "scheduler_partition": ALL,
    "scheduler_partitionevent": ADD,
    "scheduler_policychoice": ALL,
    "scheduler_policyfault": ALL,
    "scheduler_predictionaccuracy": EDIT,
    "scheduler_priorityclass": ALL,
    "scheduler_priorityclass_preempts": DROP,
    "scheduler_priorityclassevent": ADD,
    "scheduler_profileversion": ADD,  # a version never changes
    "scheduler_queue": ALL,
    "scheduler_queue_partitions": DROP,
    "scheduler_queueevent": ADD,
    "scheduler_reservation": ALL,
    "scheduler_reservation_held": READ,  # a view
    "scheduler_reservation_nodes": DROP,
    "scheduler_reservation_users": DROP,
    "scheduler_reservationevent": ADD,
    "scheduler_reservationpart": ALL,
    "scheduler_retentionrun": ALL,
    "scheduler_runtimeprediction": ALL,
    "scheduler_schedulerprofile": ALL,
    "scheduler_schedulerprofileevent": ADD,
    "scheduler_shadowcycle": ALL,
    "scheduler_shadowjob": ALL,
    "scheduler_shadowrun": ALL,
    "scheduler_startforecast": ALL,
    "scheduler_suspension": ALL,
    "scheduler_task": ALL,
    "scheduler_unknowntask": ALL,
}
_NOTIFICATIONS: Final = {
    "notifications_cursor": EDIT,
    "notifications_endpoint": ALL,
    "notifications_finding": DROP,
    "notifications_mail": ALL,
    "notifications_message": ALL,
    "notifications_notification": ALL,
    "notifications_preference": EDIT,
}
_OTHERS: Final = {
    "auth_group": READ,
    "auth_group_permissions": READ,
    "auth_permission": READ,
    "django_admin_log": ADD,
    "django_celery_beat_clockedschedule": READ,
    # Beat saves the interval of each entry of the timetable, whether it is there or not.
    "django_celery_beat_crontabschedule": EDIT,
    "django_celery_beat_intervalschedule": EDIT,
    "django_celery_beat_periodictask": ALL,
    "django_celery_beat_periodictasks": EDIT,
    "django_celery_beat_solarschedule": READ,
    "django_content_type": READ,
    "django_migrations": READ,
    "django_session": ALL,
    "pghistory_context": EDIT,
}
#: No code of this release uses them. The release before does, beside this one, while an upgrade rolls; a migration
#: of the next release drops them (docs/guides/upgrade.md).
RETIRED: Final = {"quotas_providercircuit": EDIT}
TABLES: Final = {**RETIRED, **_INFRA, **_ACCOUNTS, **_QUOTAS, **_SCHEDULER, **_NOTIFICATIONS, **_OTHERS}
#: What runs with the rights of the owner, and checks for itself what it was asked to do.
FUNCTIONS: Final = ("muster_prune_audit(integer, bigint)", "muster_roll_up_ledger(bigint[], bigint)")
#: Any fixed number: two that migrate at once would change the same rights.
_ONE_AT_A_TIME: Final = 0x6D757373


def apply(connection: BaseDatabaseWrapper, role: str) -> None:
    """Give this role what is listed and nothing else, as the owner of the tables; the same again changes nothing."""
    quote = connection.ops.quote_name
    there = set(connection.introspection.table_names(include_views=True))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_ONE_AT_A_TIME])
        cursor.execute(f"GRANT USAGE ON SCHEMA public TO {quote(role)}")
        cursor.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {quote(role)}")
        for rights in sorted(set(TABLES.values()), key=sorted):
            names = [quote(name) for name, has in TABLES.items() if has == rights and name in there]
            if names:
                words = f"GRANT {', '.join(sorted(rights))} ON {', '.join(names)} TO {quote(role)}"
                cursor.execute(words)
        cursor.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {quote(role)}")
        for function in FUNCTIONS:
            if _has(cursor, function):
                cursor.execute(f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC")
                cursor.execute(f"GRANT EXECUTE ON FUNCTION {function} TO {quote(role)}")


def _has(cursor: Any, function: str) -> bool:
    cursor.execute("SELECT to_regprocedure(%s) IS NOT NULL", [function])
    return bool(cursor.fetchone()[0])
