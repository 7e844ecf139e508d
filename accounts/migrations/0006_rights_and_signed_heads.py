"""Rows of the audit trail go through a function of the owner's; the heads of the chains are signed."""

import hashlib
import hmac
import json

from django.conf import settings
from django.db import migrations, models

# Younger rows stay, also for the owner: the settings keep 36 days at least, and two clocks may differ by hours.
KEPT = """
CREATE FUNCTION muster_audit_kept() RETURNS interval LANGUAGE sql IMMUTABLE AS $$ SELECT interval '35 days' $$
"""
# Triggers can be left aside by a setting that anybody may make; not in here. No table of a session can stand for
# one of ours: temporary ones are looked at last.
PRUNE = """
CREATE FUNCTION muster_prune_audit(of_shard integer, up_to bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    gone bigint;
    ignored text := current_setting('pgtrigger.ignore', true);
BEGIN
    IF EXISTS (
        SELECT FROM accounts_auditevent
        WHERE shard = of_shard AND number <= up_to AND at > now() - muster_audit_kept()
    ) THEN
        RAISE EXCEPTION 'rows of the audit trail that are younger than % stay', muster_audit_kept();
    END IF;
    PERFORM set_config('pgtrigger.ignore', '{}', true);
    DELETE FROM accounts_auditevent WHERE shard = of_shard AND number <= up_to;
    GET DIAGNOSTICS gone = ROW_COUNT;
    PERFORM set_config('pgtrigger.ignore', coalesce(nullif(ignored, ''), '{}'), true);
    RETURN gone;
END
$$
"""


def sign_heads(apps, schema_editor):
    """As they are found: from now on nobody without the key makes another."""
    key = getattr(settings, "MUSTER_AUDIT_KEY", "") or settings.SECRET_KEY
    signer = hmac.new(key.encode(), b"muster audit chain, version 1", hashlib.sha256).digest()
    for chain in apps.get_model("accounts", "AuditChain").objects.all():
        contents = {"what": "head", "shard": chain.shard, "length": chain.length, "hash": chain.head}
        signature = hmac.new(signer, json.dumps(contents, sort_keys=True).encode(), hashlib.sha256).hexdigest()
        with schema_editor.connection.cursor() as cursor:
            # The trigger lets a chain only grow; this one only gets its signature.
            cursor.execute("SET LOCAL pgtrigger.ignore = '{pgtrigger_audit_chain_only_grows_9247e}'")
            cursor.execute(
                "UPDATE accounts_auditchain SET signature = %s WHERE shard = %s", [signature, chain.shard]
            )
            cursor.execute("SET LOCAL pgtrigger.ignore = '{}'")


class Migration(migrations.Migration):

    dependencies = [("accounts", "0005_names_in_admin")]

    operations = [
        migrations.RunSQL(KEPT, "DROP FUNCTION muster_audit_kept()"),
        migrations.RunSQL(PRUNE, "DROP FUNCTION muster_prune_audit(integer, bigint)"),
        migrations.RunSQL(
            "REVOKE ALL ON FUNCTION muster_prune_audit(integer, bigint) FROM PUBLIC", migrations.RunSQL.noop
        ),
        migrations.AddField(
            model_name="auditchain",
            name="signature",
            field=models.CharField(blank=True, default="", max_length=64),
        ),
        migrations.RunPython(sign_heads, migrations.RunPython.noop),
    ]
