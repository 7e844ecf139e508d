"""Lines of the ledger are rolled up through a function of the owner's: the application only ever adds lines."""

from django.db import migrations

# The trigger compares exactly these lines with the roll-up's digest, and every sum before and after. Triggers can be
# left aside by a setting that anybody may make; not in here.
ROLL_UP = """
CREATE FUNCTION muster_roll_up_ledger(lines bigint[], roll_up bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    gone bigint;
    ignored text := current_setting('pgtrigger.ignore', true);
BEGIN
    PERFORM set_config('pgtrigger.ignore', '{}', true);
    PERFORM set_config('muster.ledger_roll_up', roll_up::text, true);
    DELETE FROM quotas_ledgerentry WHERE id = ANY(lines);
    GET DIAGNOSTICS gone = ROW_COUNT;
    PERFORM set_config('muster.ledger_roll_up', '', true);
    PERFORM set_config('pgtrigger.ignore', coalesce(nullif(ignored, ''), '{}'), true);
    RETURN gone;
END
$$
"""


class Migration(migrations.Migration):

    dependencies = [("quotas", "0008_grants_of_budgets")]

    operations = [
        migrations.RunSQL(ROLL_UP, "DROP FUNCTION muster_roll_up_ledger(bigint[], bigint)"),
        migrations.RunSQL(
            "REVOKE ALL ON FUNCTION muster_roll_up_ledger(bigint[], bigint) FROM PUBLIC", migrations.RunSQL.noop
        ),
    ]
