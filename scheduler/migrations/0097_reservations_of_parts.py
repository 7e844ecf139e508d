"""Reservations of parts of nodes, requests for them, and jobs that name one.

Locks: nullable columns, columns with a default and triggers take their tables for milliseconds; no row of jobs is read.
The next migration builds the index.
"""

import django.contrib.postgres.fields
import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.conf import settings
from django.db import migrations, models


#: Refuses a reservation that holds what another approved one holds at the same time, or more than a node has.
_FITS = """
CREATE VIEW scheduler_reservation_held AS
    SELECT reservation.id AS reservation_id, reservation.starts_at, reservation.ends_at, held.node_id,
        true AS whole, 0::bigint AS cpu_millis, 0::bigint AS memory_mib, ARRAY[]::bigint[] AS device_ids
    FROM scheduler_reservation reservation
        JOIN scheduler_reservation_nodes held ON held.reservation_id = reservation.id
    WHERE reservation.status = 'approved' AND reservation.cancelled_at IS NULL
    UNION ALL SELECT reservation.id, reservation.starts_at, reservation.ends_at, held.node_id,
        false, held.cpu_millis, held.memory_mib, held.device_ids
    FROM scheduler_reservation reservation
        JOIN scheduler_reservationpart held ON held.reservation_id = reservation.id
    WHERE reservation.status = 'approved' AND reservation.cancelled_at IS NULL;

CREATE FUNCTION scheduler_reservation_fits(wanted bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    clash text;
BEGIN
    -- Two reservations of one node are checked one after the other.
    PERFORM 1 FROM scheduler_node WHERE id IN (
        SELECT node_id FROM scheduler_reservation_held WHERE reservation_id = wanted)
    ORDER BY id FOR NO KEY UPDATE;
    SELECT node.name INTO clash
    FROM scheduler_reservation_held mine
        JOIN scheduler_reservation_held other ON other.node_id = mine.node_id
            AND other.reservation_id <> mine.reservation_id
            AND other.starts_at < mine.ends_at AND other.ends_at > mine.starts_at
            AND (mine.whole OR other.whole OR mine.device_ids && other.device_ids)
        JOIN scheduler_node node ON node.id = mine.node_id
    WHERE mine.reservation_id = wanted LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'node % is reserved twice at one time', clash
            USING ERRCODE = 'check_violation', CONSTRAINT = 'reservation_held_once';
    END IF;
    -- Most is held at the start of one of them.
    SELECT node.name INTO clash
    FROM scheduler_reservation_held mine
        JOIN scheduler_reservation_held begins ON begins.node_id = mine.node_id
            AND begins.starts_at < mine.ends_at AND begins.ends_at > mine.starts_at
        JOIN scheduler_reservation_held held ON held.node_id = mine.node_id
            AND held.starts_at <= greatest(begins.starts_at, mine.starts_at)
            AND held.ends_at > greatest(begins.starts_at, mine.starts_at)
        JOIN scheduler_node node ON node.id = mine.node_id
    WHERE mine.reservation_id = wanted AND NOT mine.whole
    GROUP BY node.id, node.name, begins.reservation_id
    HAVING sum(held.cpu_millis) > max(node.cpu_millis_capacity)
        OR sum(held.memory_mib) > max(node.memory_mib_capacity) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'more of node % is reserved than it has', clash
            USING ERRCODE = 'check_violation', CONSTRAINT = 'reservation_within_node';
    END IF;
END $$;

CREATE FUNCTION scheduler_reservation_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM scheduler_reservation_fits(reservation_id) FROM (SELECT DISTINCT reservation_id FROM added) which;
    RETURN NULL;
END $$;
CREATE TRIGGER reservation_nodes_fit AFTER INSERT ON scheduler_reservation_nodes
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION scheduler_reservation_added();
CREATE TRIGGER reservation_parts_fit AFTER INSERT ON scheduler_reservationpart
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION scheduler_reservation_added();
CREATE TRIGGER reservation_parts_still_fit AFTER UPDATE ON scheduler_reservationpart
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION scheduler_reservation_added();

CREATE FUNCTION scheduler_reservation_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM scheduler_reservation_fits(NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER reservation_still_fits AFTER UPDATE OF starts_at, ends_at, status, cancelled_at
    ON scheduler_reservation FOR EACH ROW
    WHEN (NEW.status = 'approved' AND NEW.cancelled_at IS NULL) EXECUTE FUNCTION scheduler_reservation_moved();
"""
_FITS_NO_MORE = """
DROP TRIGGER reservation_still_fits ON scheduler_reservation;
DROP TRIGGER reservation_parts_still_fit ON scheduler_reservationpart;
DROP TRIGGER reservation_parts_fit ON scheduler_reservationpart;
DROP TRIGGER reservation_nodes_fit ON scheduler_reservation_nodes;
DROP FUNCTION scheduler_reservation_moved();
DROP FUNCTION scheduler_reservation_added();
DROP FUNCTION scheduler_reservation_fits(bigint);
DROP VIEW scheduler_reservation_held;
"""


#: A request names a reservation that is there, and a reservation that a request names stays.
NAMED = """
CREATE FUNCTION scheduler_reservation_named() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM scheduler_reservation WHERE id = NEW.reservation_id FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_jobrequest_reservation_id',
            MESSAGE = 'there is no reservation ' || NEW.reservation_id;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER request_names_reservation AFTER INSERT OR UPDATE OF reservation_id ON scheduler_jobrequest
    FOR EACH ROW WHEN (NEW.reservation_id IS NOT NULL) EXECUTE FUNCTION scheduler_reservation_named();
CREATE FUNCTION scheduler_reservation_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM scheduler_jobrequest WHERE reservation_id = OLD.id) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_jobrequest_reservation_id',
            MESSAGE = 'jobs name reservation ' || OLD.id;
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER reservation_is_named BEFORE DELETE ON scheduler_reservation
    FOR EACH ROW EXECUTE FUNCTION scheduler_reservation_stays();
"""
NOT_NAMED = """
DROP TRIGGER reservation_is_named ON scheduler_reservation;
DROP FUNCTION scheduler_reservation_stays();
DROP TRIGGER request_names_reservation ON scheduler_jobrequest;
DROP FUNCTION scheduler_reservation_named();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0010_turns_of_people'),
        ('scheduler', '0096_shadow_runs'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='ReservationPart',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('cpu_millis', models.BigIntegerField(default=0)),
                ('memory_mib', models.BigIntegerField(default=0)),
                ('device_ids', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), default=list, size=None)),
            ],
            options={
                'ordering': ['reservation_id', 'node_id'],
            },
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='reservation',
            name='insert_insert',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='reservation',
            name='update_update',
        ),
        migrations.AddField(
            model_name='jobrequest',
            name='reservation',
            field=models.ForeignKey(blank=True, db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='requests', to='scheduler.reservation'),
        ),
        migrations.AddField(
            model_name='reservation',
            name='decided_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='reservation',
            name='decided_by',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='reservation',
            name='decision_reason',
            field=models.CharField(blank=True, db_default='', max_length=200),
        ),
        migrations.AddField(
            model_name='reservation',
            name='magnetic',
            field=models.BooleanField(db_default=True, default=True),
        ),
        migrations.AddField(
            model_name='reservation',
            name='status',
            field=models.CharField(choices=[('requested', 'requested'), ('approved', 'approved'), ('declined', 'declined')], db_default='approved', default='approved', max_length=9),
        ),
        migrations.AddField(
            model_name='reservation',
            name='users',
            field=models.ManyToManyField(blank=True, related_name='reservations', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='reservation',
            name='wanted',
            field=models.JSONField(blank=True, db_default={}, default=dict),
        ),
        migrations.AddField(
            model_name='reservationevent',
            name='decided_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='reservationevent',
            name='decided_by',
            field=models.ForeignKey(blank=True, db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', related_query_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='reservationevent',
            name='decision_reason',
            field=models.CharField(blank=True, db_default='', max_length=200),
        ),
        migrations.AddField(
            model_name='reservationevent',
            name='magnetic',
            field=models.BooleanField(db_default=True, default=True),
        ),
        migrations.AddField(
            model_name='reservationevent',
            name='status',
            field=models.CharField(choices=[('requested', 'requested'), ('approved', 'approved'), ('declined', 'declined')], db_default='approved', default='approved', max_length=9),
        ),
        migrations.AddField(
            model_name='reservationevent',
            name='wanted',
            field=models.JSONField(blank=True, db_default={}, default=dict),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='reservation',
            trigger=pgtrigger.compiler.Trigger(name='insert_insert', sql=pgtrigger.compiler.UpsertTriggerSql(func='INSERT INTO "scheduler_reservationevent" ("cancelled_at", "cluster_id", "created_at", "created_by_id", "decided_at", "decided_by_id", "decision_reason", "ends_at", "id", "job_id", "magnetic", "name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "reason", "starts_at", "status", "uuid", "wanted") VALUES (NEW."cancelled_at", NEW."cluster_id", NEW."created_at", NEW."created_by_id", NEW."decided_at", NEW."decided_by_id", NEW."decision_reason", NEW."ends_at", NEW."id", NEW."job_id", NEW."magnetic", NEW."name", _pgh_attach_context(), NOW(), \'insert\', NEW."id", NEW."project_id", NEW."reason", NEW."starts_at", NEW."status", NEW."uuid", NEW."wanted"); RETURN NULL;', hash='c3b449d1b4394d693387b4d6f304d9200fdfac9c', operation='INSERT', pgid='pgtrigger_insert_insert_8eba1', table='scheduler_reservation', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='reservation',
            trigger=pgtrigger.compiler.Trigger(name='update_update', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.* IS DISTINCT FROM NEW.*)', func='INSERT INTO "scheduler_reservationevent" ("cancelled_at", "cluster_id", "created_at", "created_by_id", "decided_at", "decided_by_id", "decision_reason", "ends_at", "id", "job_id", "magnetic", "name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "reason", "starts_at", "status", "uuid", "wanted") VALUES (NEW."cancelled_at", NEW."cluster_id", NEW."created_at", NEW."created_by_id", NEW."decided_at", NEW."decided_by_id", NEW."decision_reason", NEW."ends_at", NEW."id", NEW."job_id", NEW."magnetic", NEW."name", _pgh_attach_context(), NOW(), \'update\', NEW."id", NEW."project_id", NEW."reason", NEW."starts_at", NEW."status", NEW."uuid", NEW."wanted"); RETURN NULL;', hash='e19d58adb51ccc6be5d09a1fe4eef26187c0cb78', operation='UPDATE', pgid='pgtrigger_update_update_c19db', table='scheduler_reservation', when='AFTER')),
        ),
        migrations.AddConstraint(
            model_name='reservation',
            constraint=models.CheckConstraint(condition=models.Q(('status__in', ['requested', 'approved', 'declined'])), name='reservation_status_known'),
        ),
        migrations.AddConstraint(
            model_name='reservation',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('status', 'declined'), _negated=True), models.Q(('decision_reason', ''), _negated=True), _connector='OR'), name='reservation_declined_with_reason'),
        ),
        migrations.AddField(
            model_name='reservationpart',
            name='node',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='reserved_parts', to='scheduler.node'),
        ),
        migrations.AddField(
            model_name='reservationpart',
            name='reservation',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='parts', to='scheduler.reservation'),
        ),
        migrations.AddConstraint(
            model_name='reservationpart',
            constraint=models.UniqueConstraint(fields=('reservation', 'node'), name='reservation_part_once'),
        ),
        migrations.AddConstraint(
            model_name='reservationpart',
            constraint=models.CheckConstraint(condition=models.Q(('cpu_millis__gte', 0), ('memory_mib__gte', 0)), name='reservation_part_not_negative'),
        ),
        migrations.RunSQL(_FITS, _FITS_NO_MORE),
        migrations.RunSQL(NAMED, NOT_NAMED),
    ]
