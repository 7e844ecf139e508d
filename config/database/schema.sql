-- The tables, functions and triggers that all migrations make of an empty database. Written by `make schema`.
-- Loaded in place of these migrations where a database is empty; config/database/schema.py says when.
-- postgresql 18
-- migration contenttypes.0001_initial 35ed8489a147e0b4
-- migration contenttypes.0002_remove_content_type_name 7d36494075750f0e
-- migration auth.0001_initial 845cff319606332f
-- migration auth.0002_alter_permission_name_max_length feaf97e0e8f7d148
-- migration auth.0003_alter_user_email_max_length 9d5657b4db9872dc
-- migration auth.0004_alter_user_username_opts 9538db342c9a9bec
-- migration auth.0005_alter_user_last_login_null 79f60a35dc000fdd
-- migration auth.0006_require_contenttypes_0002 00cb16e3405f14b6
-- migration auth.0007_alter_validators_add_error_messages 115db87dc327530f
-- migration auth.0008_alter_user_username_max_length 02857f65f7d64814
-- migration auth.0009_alter_user_last_name_max_length 19a89500e7f108a7
-- migration auth.0010_alter_group_name_max_length 0963ed6498ac0b3a
-- migration auth.0011_update_proxy_permissions 85a5dde708dc4b61
-- migration auth.0012_alter_user_first_name_max_length 6cefbc9f80903763
-- migration pghistory.0001_initial 962e93fac9c07ea8
-- migration pghistory.0002_aggregateevent 87d6dab2224912fe
-- migration pghistory.0003_auto_20201023_1636 e504b9fff19d5726
-- migration pghistory.0004_auto_20220906_1625 e56c9b8241ad6b33
-- migration pghistory.0005_events_middlewareevents fbd7e3d4898c8d3e
-- migration pghistory.0006_delete_aggregateevent 071f1fdacb5d72fc
-- migration pghistory.0007_auto_20250421_0444 f949446b99175374
-- migration accounts.0001_initial f4790d7ba04413fd
-- migration accounts.0002_shares f8149c636b106b67
-- migration accounts.0003_share_indexes 23c37ace571dc025
-- migration accounts.0004_audit_checkpoints f2c712c9e27c02b1
-- migration accounts.0005_names_in_admin 6c6df42af9b6b315
-- migration accounts.0006_rights_and_signed_heads 23ff85a9f042acf7
-- migration accounts.0007_sign_in_counts 5943fe15b3edce6b
-- migration accounts.0008_words_of_choices acd98d3a0cefcadf
-- migration accounts.0009_secrets aaf5dbd3fdd710e6
-- migration accounts.0010_turns_of_people 2b3b7254952b1aab
-- migration admin.0001_initial f4716989d9815b62
-- migration admin.0002_logentry_remove_auto_add 2c127e659a2236ed
-- migration admin.0003_logentry_add_action_flag_choices 02700a827190720e
-- migration django_celery_beat.0001_initial 6bf1c79ac9f72411
-- migration django_celery_beat.0002_auto_20161118_0346 154389d3ccb333f7
-- migration django_celery_beat.0003_auto_20161209_0049 32067fe2ba680cdc
-- migration django_celery_beat.0004_auto_20170221_0000 2b4837d8d3378c9d
-- migration django_celery_beat.0005_add_solarschedule_events_choices dc5500d12d7a22a5
-- migration django_celery_beat.0006_auto_20180322_0932 3a832dc94d46e6fa
-- migration django_celery_beat.0007_auto_20180521_0826 47d34e3e0065f630
-- migration django_celery_beat.0008_auto_20180914_1922 ed4cfd1370ac4c68
-- migration django_celery_beat.0006_auto_20180210_1226 f73a88c5f2d0f44d
-- migration django_celery_beat.0006_periodictask_priority 0fb42c2b58e0a7fe
-- migration django_celery_beat.0009_periodictask_headers f7654b6a68f416eb
-- migration django_celery_beat.0010_auto_20190429_0326 e37c3d8caabfc28c
-- migration django_celery_beat.0011_auto_20190508_0153 3e4d086475428317
-- migration django_celery_beat.0012_periodictask_expire_seconds c1695524a50c7da8
-- migration django_celery_beat.0013_auto_20200609_0727 60b4333308aeff38
-- migration django_celery_beat.0014_remove_clockedschedule_enabled 7c99113b18570f8d
-- migration django_celery_beat.0015_edit_solarschedule_events_choices e44f7595f2a0dff4
-- migration django_celery_beat.0016_alter_crontabschedule_timezone dd8460a90fd07f43
-- migration django_celery_beat.0017_alter_crontabschedule_month_of_year 4c3b35ff38856598
-- migration django_celery_beat.0018_improve_crontab_helptext cef998b28b992aa5
-- migration django_celery_beat.0019_alter_periodictasks_options 1b1a8ca535cb348c
-- migration infra.0001_circuits af21268908b6221f
-- migration infra.0002_inventory_circuit 5c408f91f2c936f9
-- migration notifications.0001_initial dbdc26fa4ca5bdc0
-- migration notifications.0002_outside_systems 7c4fe95c25d14fef
-- migration notifications.0003_deadlines 70eb4e4b21b42a7d
-- migration quotas.0001_initial 576e6e98e28871d5
-- migration quotas.0002_ledger_and_budgets e40e0801e0eb7215
-- migration quotas.0003_tree_of_limits 4627353395b62c16
-- migration quotas.0004_share_usage a86c958852d4f92d
-- migration quotas.0005_quotas_kept_outside 3dba8da3544c39a3
-- migration quotas.0006_grants faadf57696311e43
-- migration quotas.0007_ledger_roll_ups 6a845b952477a26a
-- migration quotas.0008_grants_of_budgets 9c10d45e9a112dcc
-- migration quotas.0009_roll_up_by_function 4c5f8fa22aaa0f0b
-- migration quotas.0010_words_of_choices 6aabd876cd5c0725
-- migration quotas.0011_remove_notice_mailed_at abc9f0df26f7e63b
-- migration quotas.0012_references_of_the_ledger e5232ecfc7e2dcc7
-- migration quotas.0013_circuits_of_infra 8729dc0b496e171c
-- migration quotas.0014_longer_gpu_models d0bc0d743e88d72c
-- migration quotas.0015_unused_time_of_runs 002a9f54ee03ad72
-- migration quotas.0016_unused_time_checked 1a0c588a8b6d1bcb
-- migration quotas.0019_fair_share_rules b21d75980238c643
-- migration quotas.0020_quota_providers_that_decide f013d3082b81f7e2
-- migration scheduler.0001_initial 6920967e34588d96
-- migration scheduler.0002_waits_and_gangs 1800ec0e1228e08a
-- migration scheduler.0003_job_affinity_reason c4b72328beb4b7b3
-- migration scheduler.0004_budget_reasons 832928c21d961537
-- migration scheduler.0005_start_forecasts 85685a9a2c74b0aa
-- migration scheduler.0006_evicted_stop_reason b4aee7aaffab648a
-- migration scheduler.0007_jobs_in_line 4aee6de56436e315
-- migration scheduler.0008_retention_runs 3fa888d9a364a9fb
-- migration scheduler.0009_reason_of_refused_quota a3a01e82932a5a04
-- migration scheduler.0010_interrupted_attempts d407f346bd3ed8a1
-- migration scheduler.0011_limits_of_jobs fc9cf708991ec725
-- migration scheduler.0012_overcommit_of_nodes 93e9068c67b997cb
-- migration scheduler.0013_resized_attempts 093851b646f10741
-- migration scheduler.0014_suspension_and_boosts acbaaf1ae2cb496c
-- migration scheduler.0015_slices_of_gpus 9b7dc4048aa2ff16
-- migration scheduler.0016_gpu_health_and_use 00acffca680af179
-- migration scheduler.0017_numa_domains ee398a667938baa8
-- migration scheduler.0018_lists_of_a_million_jobs e5f7e68602a34cbb
-- migration scheduler.0019_names_in_admin 07df829a4e5a7645
-- migration scheduler.0020_states_that_there_are 72c6a4c6c2517859
-- migration scheduler.0021_rights_of_kept_answers e6aea9f7c94c079e
-- migration scheduler.0022_at_most_once 87a51fd226429e71
-- migration scheduler.0023_words_of_choices aec412ac5ba77291
-- migration scheduler.0024_elements f57956e3d8b1050a
-- migration scheduler.0025_heartbeats ec508f7812faf252
-- migration scheduler.0026_job_requests bb550f01c80a838a
-- migration scheduler.0027_fewer_indexes a13be97ca8c43412
-- migration scheduler.0028_changed_jobs 1cabaffc92bde127
-- migration scheduler.0029_recordings_on_a_base 262aa3f39741afe3
-- migration scheduler.0030_jobs_over 3502cb392a6ff57c
-- migration scheduler.0031_failure_classes 9743a6a5b3d943ed
-- migration scheduler.0032_policy_faults 64e39a729bc82456
-- migration scheduler.0033_mail_types 874ced5c21bac7db
-- migration scheduler.0034_node_isolation 58e853df2705f86e
-- migration scheduler.0035_kept_results 6b9eb2451c50db8e
-- migration scheduler.0036_cycles_of_attempts_are_numbers ae72fc9892dc7a72
-- migration scheduler.0037_live_attempts 2e4251f7a595ced5
-- migration scheduler.0038_live_tasks 375411744aae1030
-- migration scheduler.0039_elements_alone_are_indexed 9ad35162242993b6
-- migration scheduler.0040_fewer_entries_of_ends b62a1092afe0b209
-- migration scheduler.0041_jobs_that_gather 84bfcd06d551bdd2
-- migration scheduler.0042_references_of_events b296bab8fadd8ed0
-- migration scheduler.0043_references_of_runs 991648bc570a3f00
-- migration scheduler.0044_references_of_jobs a3bebacabb0a2842
-- migration scheduler.0045_events_of_a_job_share_an_entry f509bd09f6f858da
-- migration scheduler.0046_checkpoints 2d4e110c06684f43
-- migration scheduler.0048_artifacts 01a9cb834156eea7
-- migration scheduler.0049_output_files 47fa197e0c46d0b7
-- migration scheduler.0050_usage_of_attempts 968eb3c39423c764
-- migration scheduler.0051_probes d1f31241fb174756
-- migration scheduler.0052_queue_isolation 6c0146fbd087dc67
-- migration scheduler.0053_scratch_limits d20dad182d06b458
-- migration scheduler.0054_secrets_of_jobs 82878dd61e4607b3
-- migration scheduler.0055_moves_and_deadlines a7efc84bb92b574f
-- migration scheduler.0056_agent_protocol 38731abf92c8143a
-- migration scheduler.0057_unknown_tasks 1daa64ca7f8ea4b1
-- migration scheduler.0058_names_of_jobs 272cdac996aa5dc3
-- migration scheduler.0059_requests_by_whole_name 3209415b2beb6367
-- migration scheduler.0060_tasks_have_what_they_hold 724d6bc62fc84d03
-- migration scheduler.0061_jobs_changed_by_moves aac3971f8528ed5f
-- migration scheduler.0062_plain_labels 921b6113777c12b1
-- migration scheduler.0063_uploads 25e9eebcbabb276a
-- migration scheduler.0064_requests_by_upload 10d60f1163d1557e
-- migration scheduler.0065_one_index_of_whose 58ea9cc03ea107fb
-- migration scheduler.0066_events_by_job a0c1cd96a80d4b15
-- migration scheduler.0070_predicted_run_times f46eb21396c28ae9
-- migration scheduler.0072_fair_queue_turns 6cb4c93484cbd4bb
-- migration scheduler.0075_named_classes_stay 342f43f999ddb196
-- migration scheduler.0076_reasons_of_nodes 034fa69bf8fff5fc
-- migration scheduler.0077_deadlines_and_waits 43227dc7c3470243
-- migration scheduler.0078_look_at_deadlines a620e2e115591bf0
-- migration scheduler.0079_unfinished_jobs 85700e64a7128892
-- migration scheduler.0080_ends_of_attempts 7f724367fbd4b519
-- migration scheduler.0081_adaptive_rules 26492acf9e11abee
-- migration scheduler.0083_node_scores ac9d97e29c2421fc
-- migration scheduler.0084_placement_by_quality d09f57feaf4b7105
-- migration scheduler.0085_calibrated_ranges dedd71c5b698a627
-- migration scheduler.0087_requests_that_change a54481c39351b712
-- migration scheduler.0088_arrays_by_number afdc1de3bac16fa2
-- migration scheduler.0091_metric_counts 175b8142e1976c6d
-- migration scheduler.0092_keys_checked_after_updates daeab3169dfa2196
-- migration scheduler.0093_relaxed_constraints 9ac24ea7c9541f18
-- migration scheduler.0094_reason_of_quota_providers 2f3fbbd261ec6fb0
-- migration scheduler.0095_profile_versions aaef808bc460d9b1
-- migration scheduler.0096_shadow_runs fb070dc602bb4805
-- migration scheduler.0097_reservations_of_parts c68c589f01045866
-- migration scheduler.0098_jobs_of_reservations 0b0a33713de530af
-- migration scheduler.0100_limits_of_running_jobs e7d72878cc855d2b
-- migration scheduler.0101_docker_hosts ec84b782d1704b56
-- migration sessions.0001_initial 2aa438e2393ee513
CREATE EXTENSION IF NOT EXISTS pg_trgm WITH SCHEMA public;

CREATE FUNCTION public._pgh_attach_context() RETURNS uuid
    LANGUAGE plpgsql
    AS $$
                    DECLARE
                        _pgh_context_id UUID;
                        _pgh_context_metadata JSONB;
                    BEGIN
                        BEGIN
                            SELECT INTO _pgh_context_id
                                CURRENT_SETTING('pghistory.context_id');
                            SELECT INTO _pgh_context_metadata
                                CURRENT_SETTING('pghistory.context_metadata');
                            EXCEPTION WHEN OTHERS THEN
                        END;
                        IF _pgh_context_id IS NOT NULL AND _pgh_context_metadata IS NOT NULL THEN
                            INSERT INTO pghistory_context (id, metadata, created_at, updated_at)
                                VALUES (_pgh_context_id, _pgh_context_metadata, NOW(), NOW())
                                ON CONFLICT (id) DO UPDATE
                                    SET metadata = EXCLUDED.metadata,
                                        updated_at = EXCLUDED.updated_at
                                    WHERE pghistory_context.metadata != EXCLUDED.metadata;
                            RETURN _pgh_context_id;
                        ELSE
                            RETURN NULL;
                        END IF;
                    END;
                $$;

CREATE FUNCTION public._pgtrigger_should_ignore(trigger_name name) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
                DECLARE
                    _pgtrigger_ignore TEXT[];
                    _result BOOLEAN;
                BEGIN
                    BEGIN
                        SELECT INTO _pgtrigger_ignore
                            CURRENT_SETTING('pgtrigger.ignore');
                        EXCEPTION WHEN OTHERS THEN
                    END;
                    IF _pgtrigger_ignore IS NOT NULL THEN
                        SELECT trigger_name = ANY(_pgtrigger_ignore)
                        INTO _result;
                        RETURN _result;
                    ELSE
                        RETURN FALSE;
                    END IF;
                END;
            $$;

CREATE FUNCTION public.muster_audit_kept() RETURNS interval
    LANGUAGE sql IMMUTABLE
    AS $$ SELECT interval '35 days' $$;

CREATE FUNCTION public.muster_job_changed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO scheduler_changedjob (job_number, queue_id, xid)
    VALUES (OLD.number, OLD.queue_id, pg_current_xact_id()::text::bigint);
    IF TG_OP = 'UPDATE' AND NEW.queue_id <> OLD.queue_id THEN  -- it may be another cluster's
        INSERT INTO scheduler_changedjob (job_number, queue_id, xid)
        VALUES (NEW.number, NEW.queue_id, pg_current_xact_id()::text::bigint);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.muster_job_unfinished() RETURNS trigger
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
BEGIN
    IF OLD.outcome IS NULL THEN
        DELETE FROM scheduler_unfinishedjob WHERE queue_id = OLD.queue_id AND number = OLD.number;
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.outcome IS NULL THEN
        INSERT INTO scheduler_unfinishedjob (queue_id, number) VALUES (NEW.queue_id, NEW.number) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.muster_job_unsuccessful() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    NEW.unsuccessful := CASE WHEN NEW.state IN ('cancelled', 'failed') THEN NEW.state END;
    RETURN NEW;
END $$;

CREATE FUNCTION public.muster_jobs_added() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO scheduler_changedjob (job_number, queue_id, xid)
    SELECT number, queue_id, pg_current_xact_id()::text::bigint FROM added WHERE state IN ('queued', 'reserved');
    INSERT INTO scheduler_unfinishedjob (queue_id, number) SELECT queue_id, number FROM added WHERE outcome IS NULL;
    RETURN NULL;
END $$;

CREATE FUNCTION public.muster_prune_audit(of_shard integer, up_to bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
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
$$;

CREATE FUNCTION public.muster_roll_up_ledger(lines bigint[], roll_up bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'public', 'pg_temp'
    AS $$
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
$$;

CREATE FUNCTION public.pgtrigger_audit_chain_keeps_its_heads_c8244() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    RAISE EXCEPTION 'pgtrigger: Cannot delete rows from % table', TG_TABLE_NAME;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_audit_chain_only_grows_9247e() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    RAISE EXCEPTION 'an audit chain only grows';
                END;
            $$;

CREATE FUNCTION public.pgtrigger_audit_checkpoints_never_change_49f6b() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    RAISE EXCEPTION 'pgtrigger: Cannot update or delete rows from % table', TG_TABLE_NAME;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_audit_never_truncated_b5d10() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    RAISE EXCEPTION 'the audit trail is never truncated';
                END;
            $$;

CREATE FUNCTION public.pgtrigger_audit_rows_go_by_checkpoint_97bc4() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    
                IF EXISTS (
                    SELECT FROM (
                        SELECT shard, min(number) AS first, max(number) AS last, count(*) AS rows
                        FROM gone GROUP BY shard
                    ) piece WHERE NOT EXISTS (
                        SELECT FROM accounts_auditcheckpoint checkpoint
                            JOIN gone ON gone.shard = checkpoint.shard AND gone.number = checkpoint.number
                        WHERE checkpoint.shard = piece.shard AND checkpoint.number = piece.last
                            AND checkpoint.rows = piece.rows AND checkpoint.hash = gone.hash
                            AND piece.first = piece.last - piece.rows + 1
                    )
                ) THEN
                    RAISE EXCEPTION 'rows of the audit trail go only where a checkpoint stands for them';
                END IF;
                RETURN NULL;
                
                END;
            $$;

CREATE FUNCTION public.pgtrigger_audit_rows_never_change_f62a4() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    RAISE EXCEPTION 'pgtrigger: Cannot update rows from % table', TG_TABLE_NAME;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_budget_never_passed_4b7ee() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    RAISE check_violation USING MESSAGE = 'budget passed: ' || NEW.budget_id, CONSTRAINT = 'budget_never_passed';
                END;
            $$;

CREATE FUNCTION public.pgtrigger_insert_insert_15fd0() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "scheduler_queueevent" ("cluster_id", "created_at", "default_assembly_seconds", "default_wait_seconds", "default_wall_seconds", "id", "is_default", "isolation", "max_concurrent_jobs", "max_pending_jobs", "max_wall_seconds", "name", "paused", "paused_at", "paused_by", "paused_reason", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "preference_wait_seconds", "priority", "profile_id", "project_id", "results_days", "results_job_mib", "results_until_fetched", "scratch_mib", "slug") VALUES (NEW."cluster_id", NEW."created_at", NEW."default_assembly_seconds", NEW."default_wait_seconds", NEW."default_wall_seconds", NEW."id", NEW."is_default", NEW."isolation", NEW."max_concurrent_jobs", NEW."max_pending_jobs", NEW."max_wall_seconds", NEW."name", NEW."paused", NEW."paused_at", NEW."paused_by", NEW."paused_reason", _pgh_attach_context(), NOW(), 'insert', NEW."id", NEW."preference_wait_seconds", NEW."priority", NEW."profile_id", NEW."project_id", NEW."results_days", NEW."results_job_mib", NEW."results_until_fetched", NEW."scratch_mib", NEW."slug"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_insert_insert_3867c() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "accounts_userevent" ("access_version", "date_joined", "default_project_id", "email", "first_name", "id", "is_active", "is_demo", "is_staff", "is_superuser", "last_name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "priority_ceiling", "share_weight", "site_role", "theme", "time_zone", "username") VALUES (NEW."access_version", NEW."date_joined", NEW."default_project_id", NEW."email", NEW."first_name", NEW."id", NEW."is_active", NEW."is_demo", NEW."is_staff", NEW."is_superuser", NEW."last_name", _pgh_attach_context(), NOW(), 'insert', NEW."id", NEW."priority_ceiling", NEW."share_weight", NEW."site_role", NEW."theme", NEW."time_zone", NEW."username"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_insert_insert_4e91c() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "quotas_budgetevent" ("amount", "created_at", "ends_at", "generation", "id", "name", "on_spent", "organization_id", "period", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "resource", "starts_at") VALUES (NEW."amount", NEW."created_at", NEW."ends_at", NEW."generation", NEW."id", NEW."name", NEW."on_spent", NEW."organization_id", NEW."period", _pgh_attach_context(), NOW(), 'insert', NEW."id", NEW."project_id", NEW."resource", NEW."starts_at"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_insert_insert_53de9() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "scheduler_nodenamecordoneddrainingdrainreasondrainedbylabeled01" ("cordoned", "cpu_millis", "drain_reason", "drained_by", "draining", "labels", "memory_mib", "name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "storage_mib", "taints") VALUES (NEW."cordoned", NEW."cpu_millis", NEW."drain_reason", NEW."drained_by", NEW."draining", NEW."labels", NEW."memory_mib", NEW."name", _pgh_attach_context(), NOW(), 'insert', NEW."id", NEW."storage_mib", NEW."taints"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_insert_insert_6d17a() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "accounts_organizationevent" ("created_at", "id", "name", "parent_id", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "share_hard_percent", "share_soft_percent", "share_weight", "slug") VALUES (NEW."created_at", NEW."id", NEW."name", NEW."parent_id", _pgh_attach_context(), NOW(), 'insert', NEW."id", NEW."share_hard_percent", NEW."share_soft_percent", NEW."share_weight", NEW."slug"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_insert_insert_72f72() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "scheduler_priorityclassevent" ("aliases", "boost_per_hour", "description", "id", "name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "value") VALUES (NEW."aliases", NEW."boost_per_hour", NEW."description", NEW."id", NEW."name", _pgh_attach_context(), NOW(), 'insert', NEW."id", NEW."value"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_insert_insert_85146() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "quotas_quotaevent" ("borrowing_limit", "converge_after_seconds", "enforce", "generation", "gpu_model", "hard", "id", "job_type", "lending_limit", "nominal", "organization_id", "over_since", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "provider", "resource", "soft", "synced_at", "user_id") VALUES (NEW."borrowing_limit", NEW."converge_after_seconds", NEW."enforce", NEW."generation", NEW."gpu_model", NEW."hard", NEW."id", NEW."job_type", NEW."lending_limit", NEW."nominal", NEW."organization_id", NEW."over_since", _pgh_attach_context(), NOW(), 'insert', NEW."id", NEW."project_id", NEW."provider", NEW."resource", NEW."soft", NEW."synced_at", NEW."user_id"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_insert_insert_86abc() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "scheduler_schedulerprofileevent" ("backfill", "id", "name", "options", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "placement", "plugins", "policy", "preemption", "preemption_enabled", "rule_hold_seconds", "rule_time_zone", "rules", "score_weights", "strict_order", "tie_breakers", "updated_at", "version") VALUES (NEW."backfill", NEW."id", NEW."name", NEW."options", _pgh_attach_context(), NOW(), 'insert', NEW."id", NEW."placement", NEW."plugins", NEW."policy", NEW."preemption", NEW."preemption_enabled", NEW."rule_hold_seconds", NEW."rule_time_zone", NEW."rules", NEW."score_weights", NEW."strict_order", NEW."tie_breakers", NEW."updated_at", NEW."version"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_insert_insert_8eba1() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "scheduler_reservationevent" ("cancelled_at", "cluster_id", "created_at", "created_by_id", "decided_at", "decided_by_id", "decision_reason", "ends_at", "id", "job_id", "magnetic", "name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "reason", "starts_at", "status", "uuid", "wanted") VALUES (NEW."cancelled_at", NEW."cluster_id", NEW."created_at", NEW."created_by_id", NEW."decided_at", NEW."decided_by_id", NEW."decision_reason", NEW."ends_at", NEW."id", NEW."job_id", NEW."magnetic", NEW."name", _pgh_attach_context(), NOW(), 'insert', NEW."id", NEW."project_id", NEW."reason", NEW."starts_at", NEW."status", NEW."uuid", NEW."wanted"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_insert_insert_be6c9() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "scheduler_clusterevent" ("backend", "backend_settings", "cpu_overcommit_percent", "created_at", "generation", "id", "memory_overcommit_percent", "name", "paused", "paused_at", "paused_by", "paused_reason", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "profile_id", "slug") VALUES (NEW."backend", NEW."backend_settings", NEW."cpu_overcommit_percent", NEW."created_at", NEW."generation", NEW."id", NEW."memory_overcommit_percent", NEW."name", NEW."paused", NEW."paused_at", NEW."paused_by", NEW."paused_reason", _pgh_attach_context(), NOW(), 'insert', NEW."id", NEW."profile_id", NEW."slug"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_insert_insert_c28f2() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "accounts_projectevent" ("active", "created_at", "description", "generation", "id", "name", "organization_id", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "share_hard_percent", "share_soft_percent", "share_weight", "slug") VALUES (NEW."active", NEW."created_at", NEW."description", NEW."generation", NEW."id", NEW."name", NEW."organization_id", _pgh_attach_context(), NOW(), 'insert', NEW."id", NEW."share_hard_percent", NEW."share_soft_percent", NEW."share_weight", NEW."slug"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_insert_insert_cccdc() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "scheduler_partitionevent" ("cluster_id", "cpu_overcommit_percent", "created_at", "id", "max_wall_seconds", "memory_overcommit_percent", "name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id") VALUES (NEW."cluster_id", NEW."cpu_overcommit_percent", NEW."created_at", NEW."id", NEW."max_wall_seconds", NEW."memory_overcommit_percent", NEW."name", _pgh_attach_context(), NOW(), 'insert', NEW."id"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_insert_insert_efc44() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "quotas_grantevent" ("amount", "asked_at", "asked_by_id", "begun_at", "budget_id", "decided_at", "decided_by_id", "decision", "ended_at", "ends_at", "evidence", "generation", "gpu_model", "granted", "id", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "raised_hard", "raised_nominal", "reason", "renews_id", "resource", "seconded_at", "seconded_by_id", "starts_at", "state") VALUES (NEW."amount", NEW."asked_at", NEW."asked_by_id", NEW."begun_at", NEW."budget_id", NEW."decided_at", NEW."decided_by_id", NEW."decision", NEW."ended_at", NEW."ends_at", NEW."evidence", NEW."generation", NEW."gpu_model", NEW."granted", NEW."id", _pgh_attach_context(), NOW(), 'insert', NEW."id", NEW."project_id", NEW."raised_hard", NEW."raised_nominal", NEW."reason", NEW."renews_id", NEW."resource", NEW."seconded_at", NEW."seconded_by_id", NEW."starts_at", NEW."state"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_insert_insert_fc05a() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "accounts_membershipevent" ("created_at", "expires_at", "id", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "role", "share_weight", "user_id") VALUES (NEW."created_at", NEW."expires_at", NEW."id", _pgh_attach_context(), NOW(), 'insert', NEW."id", NEW."project_id", NEW."role", NEW."share_weight", NEW."user_id"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_ledger_never_truncated_5fead() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    RAISE EXCEPTION 'the ledger is never truncated';
                END;
            $$;

CREATE FUNCTION public.pgtrigger_ledger_only_rolled_up_f4b5c() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                DECLARE made bigint;
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    
                made := nullif(current_setting('muster.ledger_roll_up', true), '')::bigint;
                IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;
                IF made IS NULL OR NOT EXISTS (
                    SELECT FROM quotas_ledgerrollup roll_up WHERE roll_up.id = made
                    AND roll_up.lines = (SELECT count(*) FROM gone)
                    AND roll_up.digest = (SELECT encode(sha256(convert_to(string_agg(line::text, E'\n' ORDER BY line.id), 'UTF8')), 'hex') FROM gone AS line)
                ) THEN
                    RAISE EXCEPTION 'lines of the ledger go only by a roll-up of exactly these lines';
                END IF;
                IF EXISTS (WITH gone_sums AS (SELECT date_trunc('day', starts_at, 'UTC') AS day, kind, project_id, user_id, gpu_model,
    sum(cpu_millis * held_seconds) AS cpu_held, sum(cpu_millis * charged_seconds) AS cpu_charged,
    sum(memory_mib * held_seconds) AS memory_held, sum(memory_mib * charged_seconds) AS memory_charged,
    sum(gpu_millis * held_seconds) AS gpu_held, sum(gpu_millis * charged_seconds) AS gpu_charged,
    sum(storage_mib * held_seconds) AS storage_held, sum(storage_mib * charged_seconds) AS storage_charged,
    sum(held_micros) AS held_micros, sum(charged_micros) AS charged_micros,
    coalesce(sum(cpu_millis * unused_seconds), 0) AS cpu_unused,
    coalesce(sum(memory_mib * unused_seconds), 0) AS memory_unused,
    coalesce(sum(gpu_millis * unused_seconds), 0) AS gpu_unused,
    coalesce(sum(storage_mib * unused_seconds), 0) AS storage_unused FROM gone GROUP BY 1, 2, 3, 4, 5), kept_sums AS (
    SELECT date_trunc('day', starts_at, 'UTC') AS day, kind, project_id, user_id, gpu_model,
    sum(cpu_millis * held_seconds) AS cpu_held, sum(cpu_millis * charged_seconds) AS cpu_charged,
    sum(memory_mib * held_seconds) AS memory_held, sum(memory_mib * charged_seconds) AS memory_charged,
    sum(gpu_millis * held_seconds) AS gpu_held, sum(gpu_millis * charged_seconds) AS gpu_charged,
    sum(storage_mib * held_seconds) AS storage_held, sum(storage_mib * charged_seconds) AS storage_charged,
    sum(held_micros) AS held_micros, sum(charged_micros) AS charged_micros,
    coalesce(sum(cpu_millis * unused_seconds), 0) AS cpu_unused,
    coalesce(sum(memory_mib * unused_seconds), 0) AS memory_unused,
    coalesce(sum(gpu_millis * unused_seconds), 0) AS gpu_unused,
    coalesce(sum(storage_mib * unused_seconds), 0) AS storage_unused FROM quotas_ledgerentry WHERE roll_up_id = made GROUP BY 1, 2, 3, 4, 5)
                    (SELECT * FROM gone_sums WHERE cpu_held <> 0 OR cpu_charged <> 0 OR memory_held <> 0 OR memory_charged <> 0
    OR gpu_held <> 0 OR gpu_charged <> 0 OR storage_held <> 0 OR storage_charged <> 0
    OR held_micros <> 0 OR charged_micros <> 0
    OR cpu_unused <> 0 OR memory_unused <> 0 OR gpu_unused <> 0 OR storage_unused <> 0 EXCEPT SELECT * FROM kept_sums WHERE cpu_held <> 0 OR cpu_charged <> 0 OR memory_held <> 0 OR memory_charged <> 0
    OR gpu_held <> 0 OR gpu_charged <> 0 OR storage_held <> 0 OR storage_charged <> 0
    OR held_micros <> 0 OR charged_micros <> 0
    OR cpu_unused <> 0 OR memory_unused <> 0 OR gpu_unused <> 0 OR storage_unused <> 0) UNION ALL
                    (SELECT * FROM kept_sums WHERE cpu_held <> 0 OR cpu_charged <> 0 OR memory_held <> 0 OR memory_charged <> 0
    OR gpu_held <> 0 OR gpu_charged <> 0 OR storage_held <> 0 OR storage_charged <> 0
    OR held_micros <> 0 OR charged_micros <> 0
    OR cpu_unused <> 0 OR memory_unused <> 0 OR gpu_unused <> 0 OR storage_unused <> 0 EXCEPT SELECT * FROM gone_sums WHERE cpu_held <> 0 OR cpu_charged <> 0 OR memory_held <> 0 OR memory_charged <> 0
    OR gpu_held <> 0 OR gpu_charged <> 0 OR storage_held <> 0 OR storage_charged <> 0
    OR held_micros <> 0 OR charged_micros <> 0
    OR cpu_unused <> 0 OR memory_unused <> 0 OR gpu_unused <> 0 OR storage_unused <> 0)
                ) THEN
                    RAISE EXCEPTION 'a roll-up leaves every sum of the ledger as it was';
                END IF;
                RETURN NULL;
                
                END;
            $$;

CREATE FUNCTION public.pgtrigger_ledger_rows_never_change_a2925() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    RAISE EXCEPTION 'pgtrigger: Cannot update rows from % table', TG_TABLE_NAME;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_provider_allocation_moves_0a134() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                DECLARE _is_valid_transition BOOLEAN;
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    SELECT CONCAT(OLD."state", ':', NEW."state") = ANY('{asked:held,asked:refused,asked:released,held:released}'::text[]) INTO _is_valid_transition; IF (_is_valid_transition IS FALSE AND OLD."state" IS DISTINCT FROM NEW."state") THEN RAISE EXCEPTION 'pgtrigger: Invalid transition of field "state" from "%" to "%" on table %', OLD."state", NEW."state", TG_TABLE_NAME; ELSE RETURN NEW; END IF;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_quota_never_passed_d8b21() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    RAISE check_violation USING MESSAGE = concat('quota passed: ', NEW.resource, ' ' || nullif(NEW.gpu_model, ''), ' ' || nullif(NEW.job_type, ''), ' of organization ' || NEW.organization_id, ' of project ' || NEW.project_id, ' of user ' || NEW.user_id), CONSTRAINT = 'quota_never_passed';
                END;
            $$;

CREATE FUNCTION public.pgtrigger_roll_ups_never_change_de91a() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    RAISE EXCEPTION 'pgtrigger: Cannot update or delete rows from % table', TG_TABLE_NAME;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_update_update_005ff() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "scheduler_schedulerprofileevent" ("backfill", "id", "name", "options", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "placement", "plugins", "policy", "preemption", "preemption_enabled", "rule_hold_seconds", "rule_time_zone", "rules", "score_weights", "strict_order", "tie_breakers", "updated_at", "version") VALUES (NEW."backfill", NEW."id", NEW."name", NEW."options", _pgh_attach_context(), NOW(), 'update', NEW."id", NEW."placement", NEW."plugins", NEW."policy", NEW."preemption", NEW."preemption_enabled", NEW."rule_hold_seconds", NEW."rule_time_zone", NEW."rules", NEW."score_weights", NEW."strict_order", NEW."tie_breakers", NEW."updated_at", NEW."version"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_update_update_0e890() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "accounts_userevent" ("access_version", "date_joined", "default_project_id", "email", "first_name", "id", "is_active", "is_demo", "is_staff", "is_superuser", "last_name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "priority_ceiling", "share_weight", "site_role", "theme", "time_zone", "username") VALUES (NEW."access_version", NEW."date_joined", NEW."default_project_id", NEW."email", NEW."first_name", NEW."id", NEW."is_active", NEW."is_demo", NEW."is_staff", NEW."is_superuser", NEW."last_name", _pgh_attach_context(), NOW(), 'update', NEW."id", NEW."priority_ceiling", NEW."share_weight", NEW."site_role", NEW."theme", NEW."time_zone", NEW."username"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_update_update_20ab5() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "accounts_membershipevent" ("created_at", "expires_at", "id", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "role", "share_weight", "user_id") VALUES (NEW."created_at", NEW."expires_at", NEW."id", _pgh_attach_context(), NOW(), 'update', NEW."id", NEW."project_id", NEW."role", NEW."share_weight", NEW."user_id"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_update_update_528f0() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "accounts_projectevent" ("active", "created_at", "description", "generation", "id", "name", "organization_id", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "share_hard_percent", "share_soft_percent", "share_weight", "slug") VALUES (NEW."active", NEW."created_at", NEW."description", NEW."generation", NEW."id", NEW."name", NEW."organization_id", _pgh_attach_context(), NOW(), 'update', NEW."id", NEW."share_hard_percent", NEW."share_soft_percent", NEW."share_weight", NEW."slug"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_update_update_59b97() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "scheduler_queueevent" ("cluster_id", "created_at", "default_assembly_seconds", "default_wait_seconds", "default_wall_seconds", "id", "is_default", "isolation", "max_concurrent_jobs", "max_pending_jobs", "max_wall_seconds", "name", "paused", "paused_at", "paused_by", "paused_reason", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "preference_wait_seconds", "priority", "profile_id", "project_id", "results_days", "results_job_mib", "results_until_fetched", "scratch_mib", "slug") VALUES (NEW."cluster_id", NEW."created_at", NEW."default_assembly_seconds", NEW."default_wait_seconds", NEW."default_wall_seconds", NEW."id", NEW."is_default", NEW."isolation", NEW."max_concurrent_jobs", NEW."max_pending_jobs", NEW."max_wall_seconds", NEW."name", NEW."paused", NEW."paused_at", NEW."paused_by", NEW."paused_reason", _pgh_attach_context(), NOW(), 'update', NEW."id", NEW."preference_wait_seconds", NEW."priority", NEW."profile_id", NEW."project_id", NEW."results_days", NEW."results_job_mib", NEW."results_until_fetched", NEW."scratch_mib", NEW."slug"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_update_update_8561c() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "quotas_budgetevent" ("amount", "created_at", "ends_at", "generation", "id", "name", "on_spent", "organization_id", "period", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "resource", "starts_at") VALUES (NEW."amount", NEW."created_at", NEW."ends_at", NEW."generation", NEW."id", NEW."name", NEW."on_spent", NEW."organization_id", NEW."period", _pgh_attach_context(), NOW(), 'update', NEW."id", NEW."project_id", NEW."resource", NEW."starts_at"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_update_update_aa609() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "scheduler_clusterevent" ("backend", "backend_settings", "cpu_overcommit_percent", "created_at", "generation", "id", "memory_overcommit_percent", "name", "paused", "paused_at", "paused_by", "paused_reason", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "profile_id", "slug") VALUES (NEW."backend", NEW."backend_settings", NEW."cpu_overcommit_percent", NEW."created_at", NEW."generation", NEW."id", NEW."memory_overcommit_percent", NEW."name", NEW."paused", NEW."paused_at", NEW."paused_by", NEW."paused_reason", _pgh_attach_context(), NOW(), 'update', NEW."id", NEW."profile_id", NEW."slug"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_update_update_ad91d() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "quotas_quotaevent" ("borrowing_limit", "converge_after_seconds", "enforce", "generation", "gpu_model", "hard", "id", "job_type", "lending_limit", "nominal", "organization_id", "over_since", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "provider", "resource", "soft", "synced_at", "user_id") VALUES (NEW."borrowing_limit", NEW."converge_after_seconds", NEW."enforce", NEW."generation", NEW."gpu_model", NEW."hard", NEW."id", NEW."job_type", NEW."lending_limit", NEW."nominal", NEW."organization_id", NEW."over_since", _pgh_attach_context(), NOW(), 'update', NEW."id", NEW."project_id", NEW."provider", NEW."resource", NEW."soft", NEW."synced_at", NEW."user_id"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_update_update_c19db() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "scheduler_reservationevent" ("cancelled_at", "cluster_id", "created_at", "created_by_id", "decided_at", "decided_by_id", "decision_reason", "ends_at", "id", "job_id", "magnetic", "name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "reason", "starts_at", "status", "uuid", "wanted") VALUES (NEW."cancelled_at", NEW."cluster_id", NEW."created_at", NEW."created_by_id", NEW."decided_at", NEW."decided_by_id", NEW."decision_reason", NEW."ends_at", NEW."id", NEW."job_id", NEW."magnetic", NEW."name", _pgh_attach_context(), NOW(), 'update', NEW."id", NEW."project_id", NEW."reason", NEW."starts_at", NEW."status", NEW."uuid", NEW."wanted"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_update_update_c68db() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "scheduler_priorityclassevent" ("aliases", "boost_per_hour", "description", "id", "name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "value") VALUES (NEW."aliases", NEW."boost_per_hour", NEW."description", NEW."id", NEW."name", _pgh_attach_context(), NOW(), 'update', NEW."id", NEW."value"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_update_update_df7c2() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "accounts_organizationevent" ("created_at", "id", "name", "parent_id", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "share_hard_percent", "share_soft_percent", "share_weight", "slug") VALUES (NEW."created_at", NEW."id", NEW."name", NEW."parent_id", _pgh_attach_context(), NOW(), 'update', NEW."id", NEW."share_hard_percent", NEW."share_soft_percent", NEW."share_weight", NEW."slug"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_update_update_e1ab7() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "scheduler_nodenamecordoneddrainingdrainreasondrainedbylabeled01" ("cordoned", "cpu_millis", "drain_reason", "drained_by", "draining", "labels", "memory_mib", "name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "storage_mib", "taints") VALUES (NEW."cordoned", NEW."cpu_millis", NEW."drain_reason", NEW."drained_by", NEW."draining", NEW."labels", NEW."memory_mib", NEW."name", _pgh_attach_context(), NOW(), 'update', NEW."id", NEW."storage_mib", NEW."taints"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_update_update_e405d() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "quotas_grantevent" ("amount", "asked_at", "asked_by_id", "begun_at", "budget_id", "decided_at", "decided_by_id", "decision", "ended_at", "ends_at", "evidence", "generation", "gpu_model", "granted", "id", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "project_id", "raised_hard", "raised_nominal", "reason", "renews_id", "resource", "seconded_at", "seconded_by_id", "starts_at", "state") VALUES (NEW."amount", NEW."asked_at", NEW."asked_by_id", NEW."begun_at", NEW."budget_id", NEW."decided_at", NEW."decided_by_id", NEW."decision", NEW."ended_at", NEW."ends_at", NEW."evidence", NEW."generation", NEW."gpu_model", NEW."granted", NEW."id", _pgh_attach_context(), NOW(), 'update', NEW."id", NEW."project_id", NEW."raised_hard", NEW."raised_nominal", NEW."reason", NEW."renews_id", NEW."resource", NEW."seconded_at", NEW."seconded_by_id", NEW."starts_at", NEW."state"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.pgtrigger_update_update_f3318() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
                
                BEGIN
                    IF ("public"._pgtrigger_should_ignore(TG_NAME) IS TRUE) THEN
                        IF (TG_OP = 'DELETE') THEN
                            RETURN OLD;
                        ELSE
                            RETURN NEW;
                        END IF;
                    END IF;
                    INSERT INTO "scheduler_partitionevent" ("cluster_id", "cpu_overcommit_percent", "created_at", "id", "max_wall_seconds", "memory_overcommit_percent", "name", "pgh_context_id", "pgh_created_at", "pgh_label", "pgh_obj_id") VALUES (NEW."cluster_id", NEW."cpu_overcommit_percent", NEW."created_at", NEW."id", NEW."max_wall_seconds", NEW."memory_overcommit_percent", NEW."name", _pgh_attach_context(), NOW(), 'update', NEW."id"); RETURN NULL;
                END;
            $$;

CREATE FUNCTION public.quotas_ledgerentry_added() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF (SELECT count(*) FROM accounts_project WHERE id = ANY(ARRAY(SELECT project_id FROM added))) = (SELECT count(DISTINCT project_id) FROM added)
        AND (SELECT count(*) FROM accounts_user WHERE id = ANY(ARRAY(SELECT user_id FROM added))) = (SELECT count(DISTINCT user_id) FROM added)
        AND (SELECT count(*) FROM quotas_ledgerrollup WHERE id = ANY(ARRAY(SELECT roll_up_id FROM added))) = (SELECT count(DISTINCT roll_up_id) FROM added)
    THEN RETURN NULL; END IF;
    IF EXISTS (SELECT FROM added WHERE project_id IS NOT NULL AND NOT EXISTS (SELECT FROM accounts_project WHERE id = added.project_id)) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'quotas_ledgerentry_project_id', TABLE = 'quotas_ledgerentry',
            MESSAGE = 'there is no row of accounts_project for project_id: ' || (SELECT string_agg(DISTINCT project_id::text, ', ') FROM added WHERE project_id IS NOT NULL AND NOT EXISTS (SELECT FROM accounts_project WHERE id = added.project_id));
    END IF;
    IF EXISTS (SELECT FROM added WHERE user_id IS NOT NULL AND NOT EXISTS (SELECT FROM accounts_user WHERE id = added.user_id)) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'quotas_ledgerentry_user_id', TABLE = 'quotas_ledgerentry',
            MESSAGE = 'there is no row of accounts_user for user_id: ' || (SELECT string_agg(DISTINCT user_id::text, ', ') FROM added WHERE user_id IS NOT NULL AND NOT EXISTS (SELECT FROM accounts_user WHERE id = added.user_id));
    END IF;
    IF EXISTS (SELECT FROM added WHERE roll_up_id IS NOT NULL AND NOT EXISTS (SELECT FROM quotas_ledgerrollup WHERE id = added.roll_up_id)) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'quotas_ledgerentry_roll_up_id', TABLE = 'quotas_ledgerentry',
            MESSAGE = 'there is no row of quotas_ledgerrollup for roll_up_id: ' || (SELECT string_agg(DISTINCT roll_up_id::text, ', ') FROM added WHERE roll_up_id IS NOT NULL AND NOT EXISTS (SELECT FROM quotas_ledgerrollup WHERE id = added.roll_up_id));
    END IF;

    RETURN NULL;
END $$;

CREATE FUNCTION public.quotas_ledgerentry_project_id_gone() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;
    PERFORM pg_advisory_xact_lock(hashtext('muster.references'));
    IF EXISTS (SELECT FROM quotas_ledgerentry WHERE project_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'quotas_ledgerentry_project_id', TABLE = 'quotas_ledgerentry',
            MESSAGE = 'rows of quotas_ledgerentry refer to accounts_project: ' || (SELECT string_agg(DISTINCT key::text, ', ') FROM (SELECT project_id AS key FROM quotas_ledgerentry WHERE project_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) shown);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.quotas_ledgerentry_project_id_moved() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF NOT EXISTS (SELECT FROM accounts_project WHERE id = NEW.project_id) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'quotas_ledgerentry_project_id', TABLE = 'quotas_ledgerentry',
            MESSAGE = 'there is no row of accounts_project for project_id: ' || (NEW.project_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.quotas_ledgerentry_project_id_rekeyed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE foreign_key_violation USING CONSTRAINT = 'quotas_ledgerentry_project_id', TABLE = 'quotas_ledgerentry',
            MESSAGE = 'quotas_ledgerentry may refer to this row of accounts_project, which keeps its id: ' || (OLD.id);
END $$;

CREATE FUNCTION public.quotas_ledgerentry_roll_up_id_gone() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;
    PERFORM pg_advisory_xact_lock(hashtext('muster.references'));
    IF EXISTS (SELECT FROM quotas_ledgerentry WHERE roll_up_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'quotas_ledgerentry_roll_up_id', TABLE = 'quotas_ledgerentry',
            MESSAGE = 'rows of quotas_ledgerentry refer to quotas_ledgerrollup: ' || (SELECT string_agg(DISTINCT key::text, ', ') FROM (SELECT roll_up_id AS key FROM quotas_ledgerentry WHERE roll_up_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) shown);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.quotas_ledgerentry_roll_up_id_moved() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF NOT EXISTS (SELECT FROM quotas_ledgerrollup WHERE id = NEW.roll_up_id) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'quotas_ledgerentry_roll_up_id', TABLE = 'quotas_ledgerentry',
            MESSAGE = 'there is no row of quotas_ledgerrollup for roll_up_id: ' || (NEW.roll_up_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.quotas_ledgerentry_roll_up_id_rekeyed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE foreign_key_violation USING CONSTRAINT = 'quotas_ledgerentry_roll_up_id', TABLE = 'quotas_ledgerentry',
            MESSAGE = 'quotas_ledgerentry may refer to this row of quotas_ledgerrollup, which keeps its id: ' || (OLD.id);
END $$;

CREATE FUNCTION public.quotas_ledgerentry_user_id_gone() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;
    PERFORM pg_advisory_xact_lock(hashtext('muster.references'));
    IF EXISTS (SELECT FROM quotas_ledgerentry WHERE user_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'quotas_ledgerentry_user_id', TABLE = 'quotas_ledgerentry',
            MESSAGE = 'rows of quotas_ledgerentry refer to accounts_user: ' || (SELECT string_agg(DISTINCT key::text, ', ') FROM (SELECT user_id AS key FROM quotas_ledgerentry WHERE user_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) shown);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.quotas_ledgerentry_user_id_moved() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF NOT EXISTS (SELECT FROM accounts_user WHERE id = NEW.user_id) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'quotas_ledgerentry_user_id', TABLE = 'quotas_ledgerentry',
            MESSAGE = 'there is no row of accounts_user for user_id: ' || (NEW.user_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.quotas_ledgerentry_user_id_rekeyed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE foreign_key_violation USING CONSTRAINT = 'quotas_ledgerentry_user_id', TABLE = 'quotas_ledgerentry',
            MESSAGE = 'quotas_ledgerentry may refer to this row of accounts_user, which keeps its id: ' || (OLD.id);
END $$;

CREATE FUNCTION public.scheduler_allocation_added() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE scheduler_task SET cpu_millis = NEW.cpu_millis, suspended_cpu_millis = NEW.suspended_cpu_millis, memory_mib = NEW.memory_mib, storage_mib = NEW.storage_mib, gpu_millis = NEW.gpu_millis, device_ids = NEW.device_ids, numa_domain = NEW.numa_domain, extras = NEW.extras, held_at = NEW.held_at, released_at = NEW.released_at
    WHERE attempt_id = NEW.attempt_id AND rank = NEW.rank AND node_id = NEW.node_id RETURNING id INTO NEW.id;
    IF NOT FOUND THEN
        RAISE foreign_key_violation USING TABLE = 'scheduler_allocation', MESSAGE = format(
            'there is no task of rank %s of attempt %s on node %s', NEW.rank, NEW.attempt_id, NEW.node_id);
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION public.scheduler_attempt_added() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF (SELECT count(*) FROM scheduler_job WHERE number = ANY(ARRAY(SELECT job_id FROM added))) = (SELECT count(DISTINCT job_id) FROM added)
    THEN RETURN NULL; END IF;
    IF EXISTS (SELECT FROM added WHERE job_id IS NOT NULL AND NOT EXISTS (SELECT FROM scheduler_job WHERE number = added.job_id)) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_attempt_job_id', TABLE = 'scheduler_attempt',
            MESSAGE = 'there is no row of scheduler_job for job_id: ' || (SELECT string_agg(DISTINCT job_id::text, ', ') FROM added WHERE job_id IS NOT NULL AND NOT EXISTS (SELECT FROM scheduler_job WHERE number = added.job_id));
    END IF;

    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_attempt_job_id_gone() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;
    PERFORM pg_advisory_xact_lock(hashtext('muster.references'));
    IF EXISTS (SELECT FROM scheduler_attempt WHERE job_id = ANY(ARRAY(SELECT number FROM gone)) LIMIT 5) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_attempt_job_id', TABLE = 'scheduler_attempt',
            MESSAGE = 'rows of scheduler_attempt refer to scheduler_job: ' || (SELECT string_agg(DISTINCT key::text, ', ') FROM (SELECT job_id AS key FROM scheduler_attempt WHERE job_id = ANY(ARRAY(SELECT number FROM gone)) LIMIT 5) shown);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_attempt_job_id_moved() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF NOT EXISTS (SELECT FROM scheduler_job WHERE number = NEW.job_id) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_attempt_job_id', TABLE = 'scheduler_attempt',
            MESSAGE = 'there is no row of scheduler_job for job_id: ' || (NEW.job_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_attempt_job_id_rekeyed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_attempt_job_id', TABLE = 'scheduler_attempt',
            MESSAGE = 'scheduler_attempt may refer to this row of scheduler_job, which keeps its number: ' || (OLD.number);
END $$;

CREATE FUNCTION public.scheduler_attempt_one_live() RETURNS trigger
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM added WHERE is_live) THEN RETURN NULL; END IF;
    -- Two transactions that add attempts of one job do not see each other's. The later of two epochs that follow each
    -- other is added only once the other is seen, and no two are the same; where the epochs have a gap, or come in
    -- another order, everybody else who adds attempts is waited for.
    IF EXISTS (
        SELECT FROM added WHERE is_live AND epoch <> 1 + coalesce((
            SELECT max(other.epoch) FROM scheduler_attempt other WHERE other.job_id = added.job_id AND other.id <> added.id
        ), 0)
    ) THEN LOCK TABLE scheduler_attempt IN SHARE ROW EXCLUSIVE MODE; END IF;
    IF (SELECT count(*) FROM scheduler_attempt WHERE job_id = ANY(ARRAY(SELECT job_id FROM added WHERE is_live)) AND is_live)
        > (SELECT count(DISTINCT job_id) FROM added WHERE is_live)
    THEN
        RAISE unique_violation USING CONSTRAINT = 'attempt_one_live', TABLE = 'scheduler_attempt',
            MESSAGE = 'a job has two live attempts (attempt_one_live): ' || (
                SELECT string_agg(job_id::text, ', ') FROM (
                    SELECT job_id FROM scheduler_attempt WHERE job_id = ANY(ARRAY(SELECT job_id FROM added)) AND is_live
                    GROUP BY job_id HAVING count(*) > 1) twice);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_attempt_stays_over() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE unique_violation USING CONSTRAINT = 'attempt_one_live', TABLE = 'scheduler_attempt',
        MESSAGE = format('attempt %s has ended and cannot live again, nor become another job''s (attempt_one_live)', OLD.id);
END $$;

CREATE FUNCTION public.scheduler_job_added() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF (SELECT count(*) FROM scheduler_jobrequest WHERE number = ANY(ARRAY(SELECT number FROM added))) = (SELECT count(DISTINCT number) FROM added)
        AND (SELECT count(*) FROM accounts_user WHERE id = ANY(ARRAY(SELECT user_id FROM added))) = (SELECT count(DISTINCT user_id) FROM added)
        AND (SELECT count(*) FROM accounts_project WHERE id = ANY(ARRAY(SELECT project_id FROM added))) = (SELECT count(DISTINCT project_id) FROM added)
        AND (SELECT count(*) FROM scheduler_queue WHERE id = ANY(ARRAY(SELECT queue_id FROM added))) = (SELECT count(DISTINCT queue_id) FROM added)
    THEN RETURN NULL; END IF;
    IF EXISTS (SELECT FROM added WHERE number IS NOT NULL AND NOT EXISTS (SELECT FROM scheduler_jobrequest WHERE number = added.number)) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_number', TABLE = 'scheduler_job',
            MESSAGE = 'there is no row of scheduler_jobrequest for number: ' || (SELECT string_agg(DISTINCT number::text, ', ') FROM added WHERE number IS NOT NULL AND NOT EXISTS (SELECT FROM scheduler_jobrequest WHERE number = added.number));
    END IF;
    IF EXISTS (SELECT FROM added WHERE user_id IS NOT NULL AND NOT EXISTS (SELECT FROM accounts_user WHERE id = added.user_id)) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_user_id', TABLE = 'scheduler_job',
            MESSAGE = 'there is no row of accounts_user for user_id: ' || (SELECT string_agg(DISTINCT user_id::text, ', ') FROM added WHERE user_id IS NOT NULL AND NOT EXISTS (SELECT FROM accounts_user WHERE id = added.user_id));
    END IF;
    IF EXISTS (SELECT FROM added WHERE project_id IS NOT NULL AND NOT EXISTS (SELECT FROM accounts_project WHERE id = added.project_id)) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_project_id', TABLE = 'scheduler_job',
            MESSAGE = 'there is no row of accounts_project for project_id: ' || (SELECT string_agg(DISTINCT project_id::text, ', ') FROM added WHERE project_id IS NOT NULL AND NOT EXISTS (SELECT FROM accounts_project WHERE id = added.project_id));
    END IF;
    IF EXISTS (SELECT FROM added WHERE queue_id IS NOT NULL AND NOT EXISTS (SELECT FROM scheduler_queue WHERE id = added.queue_id)) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_queue_id', TABLE = 'scheduler_job',
            MESSAGE = 'there is no row of scheduler_queue for queue_id: ' || (SELECT string_agg(DISTINCT queue_id::text, ', ') FROM added WHERE queue_id IS NOT NULL AND NOT EXISTS (SELECT FROM scheduler_queue WHERE id = added.queue_id));
    END IF;

    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_job_number_gone() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;
    PERFORM pg_advisory_xact_lock(hashtext('muster.references'));
    IF EXISTS (SELECT FROM scheduler_job WHERE number = ANY(ARRAY(SELECT number FROM gone)) LIMIT 5) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_number', TABLE = 'scheduler_job',
            MESSAGE = 'rows of scheduler_job refer to scheduler_jobrequest: ' || (SELECT string_agg(DISTINCT key::text, ', ') FROM (SELECT number AS key FROM scheduler_job WHERE number = ANY(ARRAY(SELECT number FROM gone)) LIMIT 5) shown);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_job_number_moved() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF NOT EXISTS (SELECT FROM scheduler_jobrequest WHERE number = NEW.number) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_number', TABLE = 'scheduler_job',
            MESSAGE = 'there is no row of scheduler_jobrequest for number: ' || (NEW.number);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_job_number_rekeyed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_number', TABLE = 'scheduler_job',
            MESSAGE = 'scheduler_job may refer to this row of scheduler_jobrequest, which keeps its number: ' || (OLD.number);
END $$;

CREATE FUNCTION public.scheduler_job_project_id_gone() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;
    PERFORM pg_advisory_xact_lock(hashtext('muster.references'));
    IF EXISTS (SELECT FROM scheduler_job WHERE project_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_project_id', TABLE = 'scheduler_job',
            MESSAGE = 'rows of scheduler_job refer to accounts_project: ' || (SELECT string_agg(DISTINCT key::text, ', ') FROM (SELECT project_id AS key FROM scheduler_job WHERE project_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) shown);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_job_project_id_moved() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF NOT EXISTS (SELECT FROM accounts_project WHERE id = NEW.project_id) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_project_id', TABLE = 'scheduler_job',
            MESSAGE = 'there is no row of accounts_project for project_id: ' || (NEW.project_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_job_project_id_rekeyed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_project_id', TABLE = 'scheduler_job',
            MESSAGE = 'scheduler_job may refer to this row of accounts_project, which keeps its id: ' || (OLD.id);
END $$;

CREATE FUNCTION public.scheduler_job_queue_id_gone() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;
    PERFORM pg_advisory_xact_lock(hashtext('muster.references'));
    IF EXISTS (SELECT FROM scheduler_job WHERE queue_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_queue_id', TABLE = 'scheduler_job',
            MESSAGE = 'rows of scheduler_job refer to scheduler_queue: ' || (SELECT string_agg(DISTINCT key::text, ', ') FROM (SELECT queue_id AS key FROM scheduler_job WHERE queue_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) shown);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_job_queue_id_moved() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF NOT EXISTS (SELECT FROM scheduler_queue WHERE id = NEW.queue_id) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_queue_id', TABLE = 'scheduler_job',
            MESSAGE = 'there is no row of scheduler_queue for queue_id: ' || (NEW.queue_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_job_queue_id_rekeyed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_queue_id', TABLE = 'scheduler_job',
            MESSAGE = 'scheduler_job may refer to this row of scheduler_queue, which keeps its id: ' || (OLD.id);
END $$;

CREATE FUNCTION public.scheduler_job_user_id_gone() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;
    PERFORM pg_advisory_xact_lock(hashtext('muster.references'));
    IF EXISTS (SELECT FROM scheduler_job WHERE user_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_user_id', TABLE = 'scheduler_job',
            MESSAGE = 'rows of scheduler_job refer to accounts_user: ' || (SELECT string_agg(DISTINCT key::text, ', ') FROM (SELECT user_id AS key FROM scheduler_job WHERE user_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) shown);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_job_user_id_moved() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF NOT EXISTS (SELECT FROM accounts_user WHERE id = NEW.user_id) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_user_id', TABLE = 'scheduler_job',
            MESSAGE = 'there is no row of accounts_user for user_id: ' || (NEW.user_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_job_user_id_rekeyed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_job_user_id', TABLE = 'scheduler_job',
            MESSAGE = 'scheduler_job may refer to this row of accounts_user, which keeps its id: ' || (OLD.id);
END $$;

CREATE FUNCTION public.scheduler_jobevent_actor_id_gone() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;
    PERFORM pg_advisory_xact_lock(hashtext('muster.references'));
    IF EXISTS (SELECT FROM scheduler_jobevent WHERE actor_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_jobevent_actor_id', TABLE = 'scheduler_jobevent',
            MESSAGE = 'rows of scheduler_jobevent refer to accounts_user: ' || (SELECT string_agg(DISTINCT key::text, ', ') FROM (SELECT actor_id AS key FROM scheduler_jobevent WHERE actor_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) shown);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_jobevent_actor_id_moved() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF NOT EXISTS (SELECT FROM accounts_user WHERE id = NEW.actor_id) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_jobevent_actor_id', TABLE = 'scheduler_jobevent',
            MESSAGE = 'there is no row of accounts_user for actor_id: ' || (NEW.actor_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_jobevent_actor_id_rekeyed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_jobevent_actor_id', TABLE = 'scheduler_jobevent',
            MESSAGE = 'scheduler_jobevent may refer to this row of accounts_user, which keeps its id: ' || (OLD.id);
END $$;

CREATE FUNCTION public.scheduler_jobevent_added() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF (SELECT count(*) FROM scheduler_job WHERE number = ANY(ARRAY(SELECT job_id FROM added))) = (SELECT count(DISTINCT job_id) FROM added)
        AND (SELECT count(*) FROM accounts_user WHERE id = ANY(ARRAY(SELECT actor_id FROM added))) = (SELECT count(DISTINCT actor_id) FROM added)
    THEN RETURN NULL; END IF;
    IF EXISTS (SELECT FROM added WHERE job_id IS NOT NULL AND NOT EXISTS (SELECT FROM scheduler_job WHERE number = added.job_id)) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_jobevent_job_id', TABLE = 'scheduler_jobevent',
            MESSAGE = 'there is no row of scheduler_job for job_id: ' || (SELECT string_agg(DISTINCT job_id::text, ', ') FROM added WHERE job_id IS NOT NULL AND NOT EXISTS (SELECT FROM scheduler_job WHERE number = added.job_id));
    END IF;
    IF EXISTS (SELECT FROM added WHERE actor_id IS NOT NULL AND NOT EXISTS (SELECT FROM accounts_user WHERE id = added.actor_id)) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_jobevent_actor_id', TABLE = 'scheduler_jobevent',
            MESSAGE = 'there is no row of accounts_user for actor_id: ' || (SELECT string_agg(DISTINCT actor_id::text, ', ') FROM added WHERE actor_id IS NOT NULL AND NOT EXISTS (SELECT FROM accounts_user WHERE id = added.actor_id));
    END IF;

    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_jobevent_job_id_gone() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;
    PERFORM pg_advisory_xact_lock(hashtext('muster.references'));
    IF EXISTS (SELECT FROM scheduler_jobevent WHERE job_id = ANY(ARRAY(SELECT number FROM gone)) LIMIT 5) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_jobevent_job_id', TABLE = 'scheduler_jobevent',
            MESSAGE = 'rows of scheduler_jobevent refer to scheduler_job: ' || (SELECT string_agg(DISTINCT key::text, ', ') FROM (SELECT job_id AS key FROM scheduler_jobevent WHERE job_id = ANY(ARRAY(SELECT number FROM gone)) LIMIT 5) shown);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_jobevent_job_id_moved() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF NOT EXISTS (SELECT FROM scheduler_job WHERE number = NEW.job_id) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_jobevent_job_id', TABLE = 'scheduler_jobevent',
            MESSAGE = 'there is no row of scheduler_job for job_id: ' || (NEW.job_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_jobevent_job_id_rekeyed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_jobevent_job_id', TABLE = 'scheduler_jobevent',
            MESSAGE = 'scheduler_jobevent may refer to this row of scheduler_job, which keeps its number: ' || (OLD.number);
END $$;

CREATE FUNCTION public.scheduler_jobrequest_in_array() RETURNS trigger
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    AS $$
BEGIN
    NEW.array_number := coalesce((SELECT number FROM scheduler_jobrequest
        WHERE array_id = NEW.array_id ORDER BY array_index LIMIT 1), NEW.number);
    RETURN NEW;
END $$;

CREATE FUNCTION public.scheduler_jobrequest_named() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO scheduler_jobname (name)
    SELECT DISTINCT added.name FROM added
    WHERE NOT EXISTS (SELECT FROM scheduler_jobname known WHERE known.name = added.name) ORDER BY 1
    ON CONFLICT (name) DO NOTHING;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_jobrequest_renamed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO scheduler_jobname (name) VALUES (NEW.name) ON CONFLICT (name) DO NOTHING;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_jobrequest_stays() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'job %: what was submitted to run does not change', OLD.number USING ERRCODE = 'check_violation';
END $$;

CREATE FUNCTION public.scheduler_priorityclass_named() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    named text;
BEGIN
    SELECT string_agg(profile.name, ', ' ORDER BY profile.name) INTO named FROM scheduler_schedulerprofile profile
    WHERE upper(profile.options->>'backfill_max_class') = upper(OLD.name);
    IF named IS NOT NULL AND (TG_OP = 'DELETE' OR upper(NEW.name) <> upper(OLD.name)) THEN
        RAISE EXCEPTION 'priority class % is named in backfill_max_class of profile %', OLD.name, named
            USING ERRCODE = 'foreign_key_violation';
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION public.scheduler_reservation_added() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM scheduler_reservation_fits(reservation_id) FROM (SELECT DISTINCT reservation_id FROM added) which;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_reservation_fits(wanted bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION public.scheduler_reservation_moved() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM scheduler_reservation_fits(NEW.id);
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_reservation_named() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM FROM scheduler_reservation WHERE id = NEW.reservation_id FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_jobrequest_reservation_id',
            MESSAGE = 'there is no reservation ' || NEW.reservation_id;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_reservation_stays() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM scheduler_jobrequest WHERE reservation_id = OLD.id) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_jobrequest_reservation_id',
            MESSAGE = 'jobs name reservation ' || OLD.id;
    END IF;
    RETURN OLD;
END $$;

CREATE FUNCTION public.scheduler_task_added() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF (SELECT count(*) FROM scheduler_attempt WHERE id = ANY(ARRAY(SELECT attempt_id FROM added))) = (SELECT count(DISTINCT attempt_id) FROM added)
        AND (SELECT count(*) FROM scheduler_node WHERE id = ANY(ARRAY(SELECT node_id FROM added))) = (SELECT count(DISTINCT node_id) FROM added)
    THEN RETURN NULL; END IF;
    IF EXISTS (SELECT FROM added WHERE attempt_id IS NOT NULL AND NOT EXISTS (SELECT FROM scheduler_attempt WHERE id = added.attempt_id)) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_task_attempt_id', TABLE = 'scheduler_task',
            MESSAGE = 'there is no row of scheduler_attempt for attempt_id: ' || (SELECT string_agg(DISTINCT attempt_id::text, ', ') FROM added WHERE attempt_id IS NOT NULL AND NOT EXISTS (SELECT FROM scheduler_attempt WHERE id = added.attempt_id));
    END IF;
    IF EXISTS (SELECT FROM added WHERE node_id IS NOT NULL AND NOT EXISTS (SELECT FROM scheduler_node WHERE id = added.node_id)) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_task_node_id', TABLE = 'scheduler_task',
            MESSAGE = 'there is no row of scheduler_node for node_id: ' || (SELECT string_agg(DISTINCT node_id::text, ', ') FROM added WHERE node_id IS NOT NULL AND NOT EXISTS (SELECT FROM scheduler_node WHERE id = added.node_id));
    END IF;

    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_task_attempt_id_gone() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;
    PERFORM pg_advisory_xact_lock(hashtext('muster.references'));
    IF EXISTS (SELECT FROM scheduler_task WHERE attempt_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_task_attempt_id', TABLE = 'scheduler_task',
            MESSAGE = 'rows of scheduler_task refer to scheduler_attempt: ' || (SELECT string_agg(DISTINCT key::text, ', ') FROM (SELECT attempt_id AS key FROM scheduler_task WHERE attempt_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) shown);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_task_attempt_id_moved() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF NOT EXISTS (SELECT FROM scheduler_attempt WHERE id = NEW.attempt_id) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_task_attempt_id', TABLE = 'scheduler_task',
            MESSAGE = 'there is no row of scheduler_attempt for attempt_id: ' || (NEW.attempt_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_task_attempt_id_rekeyed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_task_attempt_id', TABLE = 'scheduler_task',
            MESSAGE = 'scheduler_task may refer to this row of scheduler_attempt, which keeps its id: ' || (OLD.id);
END $$;

CREATE FUNCTION public.scheduler_task_node_id_gone() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM gone) THEN RETURN NULL; END IF;
    PERFORM pg_advisory_xact_lock(hashtext('muster.references'));
    IF EXISTS (SELECT FROM scheduler_task WHERE node_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_task_node_id', TABLE = 'scheduler_task',
            MESSAGE = 'rows of scheduler_task refer to scheduler_node: ' || (SELECT string_agg(DISTINCT key::text, ', ') FROM (SELECT node_id AS key FROM scheduler_task WHERE node_id = ANY(ARRAY(SELECT id FROM gone)) LIMIT 5) shown);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_task_node_id_moved() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtext('muster.references'));
    IF NOT EXISTS (SELECT FROM scheduler_node WHERE id = NEW.node_id) THEN
        RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_task_node_id', TABLE = 'scheduler_task',
            MESSAGE = 'there is no row of scheduler_node for node_id: ' || (NEW.node_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION public.scheduler_task_node_id_rekeyed() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE foreign_key_violation USING CONSTRAINT = 'scheduler_task_node_id', TABLE = 'scheduler_task',
            MESSAGE = 'scheduler_task may refer to this row of scheduler_node, which keeps its id: ' || (OLD.id);
END $$;

CREATE TABLE public.accounts_apitoken (
    id bigint NOT NULL,
    user_id bigint NOT NULL,
    name character varying(120) NOT NULL,
    prefix character varying(16) NOT NULL,
    digest character varying(64) NOT NULL,
    scopes character varying(32)[] NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    last_used_at timestamp with time zone,
    last_used_address inet,
    revoked_at timestamp with time zone,
    project_id bigint,
    CONSTRAINT token_has_scopes CHECK ((
CASE
    WHEN (scopes IS NULL) THEN NULL::integer
    ELSE COALESCE(array_length(scopes, 1), 0)
END > 0))
);

ALTER TABLE public.accounts_apitoken ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.accounts_apitoken_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.accounts_auditchain (
    shard smallint NOT NULL,
    length bigint NOT NULL,
    head character varying(64) NOT NULL,
    signature character varying(64) NOT NULL,
    CONSTRAINT accounts_auditchain_shard_check CHECK ((shard >= 0))
);

CREATE TABLE public.accounts_auditcheck (
    id bigint NOT NULL,
    checked_at timestamp with time zone NOT NULL,
    ok boolean NOT NULL,
    rows bigint NOT NULL,
    problem character varying(300) NOT NULL
);

ALTER TABLE public.accounts_auditcheck ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.accounts_auditcheck_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.accounts_auditcheckpoint (
    id bigint NOT NULL,
    shard smallint NOT NULL,
    number bigint NOT NULL,
    hash character varying(64) NOT NULL,
    rows bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    previous character varying(64) NOT NULL,
    signature character varying(64) NOT NULL,
    CONSTRAINT accounts_auditcheckpoint_shard_check CHECK ((shard >= 0))
);

ALTER TABLE public.accounts_auditcheckpoint ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.accounts_auditcheckpoint_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.accounts_auditevent (
    id bigint NOT NULL,
    shard smallint NOT NULL,
    number bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    actor_id bigint,
    actor_name character varying(150) NOT NULL,
    on_behalf_of character varying(150) NOT NULL,
    token_prefix character varying(16) NOT NULL,
    address character varying(64) NOT NULL,
    request_id character varying(64) NOT NULL,
    action character varying(64) NOT NULL,
    outcome character varying(8) NOT NULL,
    object_type character varying(64) NOT NULL,
    object_id character varying(64) NOT NULL,
    object_label character varying(200) NOT NULL,
    before jsonb,
    after jsonb,
    reason text NOT NULL,
    previous_hash character varying(64) NOT NULL,
    hash character varying(64) NOT NULL,
    project_id bigint,
    CONSTRAINT accounts_auditevent_shard_check CHECK ((shard >= 0))
);

ALTER TABLE public.accounts_auditevent ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.accounts_auditevent_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.accounts_membership (
    id bigint NOT NULL,
    user_id bigint NOT NULL,
    project_id bigint NOT NULL,
    role character varying(8) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    share_weight integer NOT NULL,
    CONSTRAINT accounts_membership_share_weight_check CHECK ((share_weight >= 0)),
    CONSTRAINT membership_role_known CHECK (((role)::text = ANY ((ARRAY['viewer'::character varying, 'member'::character varying, 'lead'::character varying])::text[]))),
    CONSTRAINT membership_share_range CHECK (((share_weight >= 1) AND (share_weight <= 1000000)))
);

ALTER TABLE public.accounts_membership ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.accounts_membership_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.accounts_membershipevent (
    pgh_id integer NOT NULL,
    pgh_created_at timestamp with time zone NOT NULL,
    pgh_label text NOT NULL,
    pgh_obj_id bigint NOT NULL,
    pgh_context_id uuid,
    id bigint NOT NULL,
    user_id bigint NOT NULL,
    project_id bigint NOT NULL,
    role character varying(8) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    share_weight integer NOT NULL,
    CONSTRAINT accounts_membershipevent_share_weight_check CHECK ((share_weight >= 0))
);

ALTER TABLE public.accounts_membershipevent ALTER COLUMN pgh_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.accounts_membershipevent_pgh_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.accounts_organization (
    id bigint NOT NULL,
    name character varying(120) NOT NULL,
    slug character varying(80) NOT NULL,
    parent_id bigint,
    created_at timestamp with time zone NOT NULL,
    share_hard_percent smallint,
    share_soft_percent smallint,
    share_weight integer NOT NULL,
    CONSTRAINT accounts_organization_share_hard_percent_check CHECK ((share_hard_percent >= 0)),
    CONSTRAINT accounts_organization_share_soft_percent_check CHECK ((share_soft_percent >= 0)),
    CONSTRAINT accounts_organization_share_weight_check CHECK ((share_weight >= 0)),
    CONSTRAINT organization_not_own_parent CHECK ((NOT ((parent_id = id) AND (parent_id IS NOT NULL)))),
    CONSTRAINT organization_share_range CHECK ((((share_weight >= 1) AND (share_weight <= 1000000)) AND ((share_soft_percent IS NULL) OR ((share_soft_percent >= 1) AND (share_soft_percent <= 100))) AND ((share_hard_percent IS NULL) OR ((share_hard_percent >= 1) AND (share_hard_percent <= 100)))))
);

ALTER TABLE public.accounts_organization ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.accounts_organization_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.accounts_organizationevent (
    pgh_id integer NOT NULL,
    pgh_created_at timestamp with time zone NOT NULL,
    pgh_label text NOT NULL,
    pgh_obj_id bigint NOT NULL,
    pgh_context_id uuid,
    id bigint NOT NULL,
    name character varying(120) NOT NULL,
    slug character varying(80) NOT NULL,
    parent_id bigint,
    created_at timestamp with time zone NOT NULL,
    share_hard_percent smallint,
    share_soft_percent smallint,
    share_weight integer NOT NULL,
    CONSTRAINT accounts_organizationevent_share_hard_percent_check CHECK ((share_hard_percent >= 0)),
    CONSTRAINT accounts_organizationevent_share_soft_percent_check CHECK ((share_soft_percent >= 0)),
    CONSTRAINT accounts_organizationevent_share_weight_check CHECK ((share_weight >= 0))
);

ALTER TABLE public.accounts_organizationevent ALTER COLUMN pgh_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.accounts_organizationevent_pgh_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.accounts_project (
    id bigint NOT NULL,
    organization_id bigint NOT NULL,
    name character varying(120) NOT NULL,
    slug character varying(80) NOT NULL,
    description text NOT NULL,
    active boolean NOT NULL,
    created_at timestamp with time zone NOT NULL,
    generation integer NOT NULL,
    share_hard_percent smallint,
    share_soft_percent smallint,
    share_weight integer NOT NULL,
    CONSTRAINT accounts_project_generation_check CHECK ((generation >= 0)),
    CONSTRAINT accounts_project_share_hard_percent_check CHECK ((share_hard_percent >= 0)),
    CONSTRAINT accounts_project_share_soft_percent_check CHECK ((share_soft_percent >= 0)),
    CONSTRAINT accounts_project_share_weight_check CHECK ((share_weight >= 0)),
    CONSTRAINT project_share_range CHECK ((((share_weight >= 1) AND (share_weight <= 1000000)) AND ((share_soft_percent IS NULL) OR ((share_soft_percent >= 1) AND (share_soft_percent <= 100))) AND ((share_hard_percent IS NULL) OR ((share_hard_percent >= 1) AND (share_hard_percent <= 100)))))
);

ALTER TABLE public.accounts_project ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.accounts_project_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.accounts_projectevent (
    pgh_id integer NOT NULL,
    pgh_created_at timestamp with time zone NOT NULL,
    pgh_label text NOT NULL,
    pgh_obj_id bigint NOT NULL,
    pgh_context_id uuid,
    id bigint NOT NULL,
    organization_id bigint NOT NULL,
    name character varying(120) NOT NULL,
    slug character varying(80) NOT NULL,
    description text NOT NULL,
    active boolean NOT NULL,
    created_at timestamp with time zone NOT NULL,
    generation integer NOT NULL,
    share_hard_percent smallint,
    share_soft_percent smallint,
    share_weight integer NOT NULL,
    CONSTRAINT accounts_projectevent_generation_check CHECK ((generation >= 0)),
    CONSTRAINT accounts_projectevent_share_hard_percent_check CHECK ((share_hard_percent >= 0)),
    CONSTRAINT accounts_projectevent_share_soft_percent_check CHECK ((share_soft_percent >= 0)),
    CONSTRAINT accounts_projectevent_share_weight_check CHECK ((share_weight >= 0))
);

ALTER TABLE public.accounts_projectevent ALTER COLUMN pgh_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.accounts_projectevent_pgh_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.accounts_secret (
    id bigint NOT NULL,
    name character varying(63) NOT NULL,
    sealed bytea NOT NULL,
    version integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    set_at timestamp with time zone NOT NULL,
    project_id bigint,
    set_by_id bigint,
    user_id bigint,
    CONSTRAINT accounts_secret_version_check CHECK ((version >= 0)),
    CONSTRAINT secret_name_plain CHECK (((name)::text ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'::text)),
    CONSTRAINT secret_of_one CHECK ((((project_id IS NULL) AND (user_id IS NOT NULL)) OR ((project_id IS NOT NULL) AND (user_id IS NULL)))),
    CONSTRAINT secret_set_since CHECK ((set_at >= created_at))
);

ALTER TABLE public.accounts_secret ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.accounts_secret_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.accounts_signincount (
    key character varying(80) NOT NULL,
    failures integer NOT NULL,
    last_at timestamp with time zone NOT NULL,
    open_at timestamp with time zone NOT NULL,
    CONSTRAINT accounts_signincount_failures_check CHECK ((failures >= 0))
);

CREATE TABLE public.accounts_user (
    id bigint NOT NULL,
    password character varying(128) NOT NULL,
    last_login timestamp with time zone,
    is_superuser boolean NOT NULL,
    username character varying(150) NOT NULL,
    first_name character varying(150) NOT NULL,
    last_name character varying(150) NOT NULL,
    email character varying(254) NOT NULL,
    is_staff boolean NOT NULL,
    is_active boolean NOT NULL,
    date_joined timestamp with time zone NOT NULL,
    site_role character varying(16) NOT NULL,
    priority_ceiling smallint NOT NULL,
    theme character varying(8) NOT NULL,
    time_zone character varying(64) NOT NULL,
    is_demo boolean NOT NULL,
    access_version integer NOT NULL,
    default_project_id bigint,
    share_weight integer DEFAULT 1 NOT NULL,
    CONSTRAINT accounts_user_access_version_check CHECK ((access_version >= 0)),
    CONSTRAINT accounts_user_priority_ceiling_check CHECK ((priority_ceiling >= 0)),
    CONSTRAINT accounts_user_share_weight_check CHECK ((share_weight >= 0)),
    CONSTRAINT user_priority_ceiling_range CHECK ((priority_ceiling <= 100)),
    CONSTRAINT user_share_range CHECK (((share_weight >= 1) AND (share_weight <= 1000000)))
);

CREATE TABLE public.accounts_user_groups (
    id bigint NOT NULL,
    user_id bigint NOT NULL,
    group_id integer NOT NULL
);

ALTER TABLE public.accounts_user_groups ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.accounts_user_groups_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE public.accounts_user ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.accounts_user_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.accounts_user_user_permissions (
    id bigint NOT NULL,
    user_id bigint NOT NULL,
    permission_id integer NOT NULL
);

ALTER TABLE public.accounts_user_user_permissions ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.accounts_user_user_permissions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.accounts_userevent (
    pgh_id integer NOT NULL,
    pgh_created_at timestamp with time zone NOT NULL,
    pgh_label text NOT NULL,
    pgh_obj_id bigint NOT NULL,
    pgh_context_id uuid,
    id bigint NOT NULL,
    is_superuser boolean NOT NULL,
    username character varying(150) NOT NULL,
    first_name character varying(150) NOT NULL,
    last_name character varying(150) NOT NULL,
    email character varying(254) NOT NULL,
    is_staff boolean NOT NULL,
    is_active boolean NOT NULL,
    date_joined timestamp with time zone NOT NULL,
    site_role character varying(16) NOT NULL,
    default_project_id bigint,
    priority_ceiling smallint NOT NULL,
    theme character varying(8) NOT NULL,
    time_zone character varying(64) NOT NULL,
    is_demo boolean NOT NULL,
    access_version integer NOT NULL,
    share_weight integer DEFAULT 1 NOT NULL,
    CONSTRAINT accounts_userevent_access_version_check CHECK ((access_version >= 0)),
    CONSTRAINT accounts_userevent_priority_ceiling_check CHECK ((priority_ceiling >= 0)),
    CONSTRAINT accounts_userevent_share_weight_check CHECK ((share_weight >= 0))
);

ALTER TABLE public.accounts_userevent ALTER COLUMN pgh_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.accounts_userevent_pgh_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.auth_group (
    id integer NOT NULL,
    name character varying(150) NOT NULL
);

ALTER TABLE public.auth_group ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.auth_group_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.auth_group_permissions (
    id bigint NOT NULL,
    group_id integer NOT NULL,
    permission_id integer NOT NULL
);

ALTER TABLE public.auth_group_permissions ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.auth_group_permissions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.auth_permission (
    id integer NOT NULL,
    name character varying(255) NOT NULL,
    content_type_id integer NOT NULL,
    codename character varying(100) NOT NULL
);

ALTER TABLE public.auth_permission ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.auth_permission_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.django_admin_log (
    id integer NOT NULL,
    action_time timestamp with time zone NOT NULL,
    object_id text,
    object_repr character varying(200) NOT NULL,
    action_flag smallint NOT NULL,
    change_message text NOT NULL,
    content_type_id integer,
    user_id bigint NOT NULL,
    CONSTRAINT django_admin_log_action_flag_check CHECK ((action_flag >= 0))
);

ALTER TABLE public.django_admin_log ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.django_admin_log_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.django_celery_beat_clockedschedule (
    id integer NOT NULL,
    clocked_time timestamp with time zone NOT NULL
);

ALTER TABLE public.django_celery_beat_clockedschedule ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.django_celery_beat_clockedschedule_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.django_celery_beat_crontabschedule (
    id integer NOT NULL,
    minute character varying(240) NOT NULL,
    hour character varying(96) NOT NULL,
    day_of_week character varying(64) NOT NULL,
    day_of_month character varying(124) NOT NULL,
    month_of_year character varying(64) NOT NULL,
    timezone character varying(63) NOT NULL
);

ALTER TABLE public.django_celery_beat_crontabschedule ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.django_celery_beat_crontabschedule_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.django_celery_beat_intervalschedule (
    id integer NOT NULL,
    every integer NOT NULL,
    period character varying(24) NOT NULL
);

ALTER TABLE public.django_celery_beat_intervalschedule ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.django_celery_beat_intervalschedule_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.django_celery_beat_periodictask (
    id integer NOT NULL,
    name character varying(200) NOT NULL,
    task character varying(200) NOT NULL,
    args text NOT NULL,
    kwargs text NOT NULL,
    queue character varying(200),
    exchange character varying(200),
    routing_key character varying(200),
    expires timestamp with time zone,
    enabled boolean NOT NULL,
    last_run_at timestamp with time zone,
    total_run_count integer NOT NULL,
    date_changed timestamp with time zone NOT NULL,
    description text NOT NULL,
    crontab_id integer,
    interval_id integer,
    solar_id integer,
    one_off boolean NOT NULL,
    start_time timestamp with time zone,
    priority integer,
    headers text NOT NULL,
    clocked_id integer,
    expire_seconds integer,
    CONSTRAINT django_celery_beat_periodictask_expire_seconds_check CHECK ((expire_seconds >= 0)),
    CONSTRAINT django_celery_beat_periodictask_priority_check CHECK ((priority >= 0)),
    CONSTRAINT django_celery_beat_periodictask_total_run_count_check CHECK ((total_run_count >= 0))
);

ALTER TABLE public.django_celery_beat_periodictask ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.django_celery_beat_periodictask_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.django_celery_beat_periodictasks (
    ident smallint NOT NULL,
    last_update timestamp with time zone NOT NULL
);

CREATE TABLE public.django_celery_beat_solarschedule (
    id integer NOT NULL,
    event character varying(24) NOT NULL,
    latitude numeric(9,6) NOT NULL,
    longitude numeric(9,6) NOT NULL
);

ALTER TABLE public.django_celery_beat_solarschedule ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.django_celery_beat_solarschedule_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.django_content_type (
    id integer NOT NULL,
    app_label character varying(100) NOT NULL,
    model character varying(100) NOT NULL
);

ALTER TABLE public.django_content_type ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.django_content_type_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.django_migrations (
    id bigint NOT NULL,
    app character varying(255) NOT NULL,
    name character varying(255) NOT NULL,
    applied timestamp with time zone NOT NULL
);

ALTER TABLE public.django_migrations ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.django_migrations_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.django_session (
    session_key character varying(40) NOT NULL,
    session_data text NOT NULL,
    expire_date timestamp with time zone NOT NULL
);

CREATE TABLE public.infra_circuit (
    name character varying(120) NOT NULL,
    system character varying(12) NOT NULL,
    label character varying(200) DEFAULT ''::character varying NOT NULL,
    failures integer NOT NULL,
    failed_at timestamp with time zone NOT NULL,
    opened_at timestamp with time zone,
    open_until timestamp with time zone,
    text character varying(500) DEFAULT ''::character varying NOT NULL,
    CONSTRAINT circuit_open_since_and_until CHECK ((((open_until IS NULL) AND (opened_at IS NULL)) OR ((open_until IS NOT NULL) AND (opened_at IS NOT NULL)))),
    CONSTRAINT circuit_system_known CHECK (((system)::text = ANY ((ARRAY['storage'::character varying, 'mail'::character varying, 'quota'::character varying, 'webhook'::character varying, 'inventory'::character varying])::text[]))),
    CONSTRAINT infra_circuit_failures_check CHECK ((failures >= 0))
);

CREATE TABLE public.notifications_cursor (
    source character varying(32) NOT NULL,
    "position" bigint NOT NULL,
    moved_at timestamp with time zone NOT NULL
);

CREATE TABLE public.notifications_endpoint (
    id bigint NOT NULL,
    uuid uuid NOT NULL,
    name character varying(80) NOT NULL,
    url character varying(500) NOT NULL,
    kinds character varying(24)[] NOT NULL,
    secret_version integer NOT NULL,
    key_fingerprint character varying(16) NOT NULL,
    old_secret_until timestamp with time zone,
    created_at timestamp with time zone NOT NULL,
    failing_since timestamp with time zone,
    disabled_at timestamp with time zone,
    disabled_reason character varying(300) NOT NULL,
    created_by_id bigint,
    project_id bigint,
    user_id bigint,
    CONSTRAINT endpoint_has_kinds CHECK ((
CASE
    WHEN (kinds IS NULL) THEN NULL::integer
    ELSE COALESCE(array_length(kinds, 1), 0)
END > 0)),
    CONSTRAINT endpoint_has_one_owner CHECK ((((project_id IS NULL) AND (user_id IS NOT NULL)) OR ((project_id IS NOT NULL) AND (user_id IS NULL)))),
    CONSTRAINT notifications_endpoint_secret_version_check CHECK ((secret_version >= 0))
);

ALTER TABLE public.notifications_endpoint ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.notifications_endpoint_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.notifications_finding (
    id bigint NOT NULL,
    key character varying(120) NOT NULL,
    at timestamp with time zone NOT NULL
);

ALTER TABLE public.notifications_finding ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.notifications_finding_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.notifications_mail (
    notification_id bigint NOT NULL,
    state character varying(8) NOT NULL,
    due_at timestamp with time zone NOT NULL,
    tries smallint NOT NULL,
    count_sent integer NOT NULL,
    sent_at timestamp with time zone,
    last_error character varying(300) NOT NULL,
    CONSTRAINT notifications_mail_count_sent_check CHECK ((count_sent >= 0)),
    CONSTRAINT notifications_mail_tries_check CHECK ((tries >= 0))
);

CREATE TABLE public.notifications_message (
    id bigint NOT NULL,
    kind character varying(24) NOT NULL,
    group_key character varying(80) NOT NULL,
    count integer NOT NULL,
    jobs bigint[] NOT NULL,
    name character varying(200) NOT NULL,
    thing character varying(40) NOT NULL,
    text character varying(300) NOT NULL,
    lines character varying(300)[] NOT NULL,
    first_at timestamp with time zone NOT NULL,
    last_at timestamp with time zone NOT NULL,
    source character varying(32) NOT NULL,
    first_event bigint NOT NULL,
    last_event bigint NOT NULL,
    uuid uuid NOT NULL,
    body text NOT NULL,
    state character varying(9) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    due_at timestamp with time zone NOT NULL,
    tries smallint NOT NULL,
    tries_of_round smallint NOT NULL,
    delivered_at timestamp with time zone,
    log jsonb NOT NULL,
    endpoint_id bigint NOT NULL,
    project_id bigint,
    user_id bigint,
    CONSTRAINT notifications_message_count_check CHECK ((count >= 0)),
    CONSTRAINT notifications_message_tries_check CHECK ((tries >= 0)),
    CONSTRAINT notifications_message_tries_of_round_check CHECK ((tries_of_round >= 0))
);

ALTER TABLE public.notifications_message ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.notifications_message_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.notifications_notification (
    id bigint NOT NULL,
    kind character varying(24) NOT NULL,
    group_key character varying(80) NOT NULL,
    count integer NOT NULL,
    jobs bigint[] NOT NULL,
    name character varying(200) NOT NULL,
    thing character varying(40) NOT NULL,
    text character varying(300) NOT NULL,
    lines character varying(300)[] NOT NULL,
    first_at timestamp with time zone NOT NULL,
    last_at timestamp with time zone NOT NULL,
    source character varying(32) NOT NULL,
    first_event bigint NOT NULL,
    last_event bigint NOT NULL,
    in_portal boolean NOT NULL,
    created_at timestamp with time zone NOT NULL,
    read_at timestamp with time zone,
    project_id bigint,
    user_id bigint NOT NULL,
    CONSTRAINT notification_counts CHECK ((count >= 1)),
    CONSTRAINT notification_events_in_order CHECK ((first_event <= last_event)),
    CONSTRAINT notifications_notification_count_check CHECK ((count >= 0))
);

ALTER TABLE public.notifications_notification ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.notifications_notification_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.notifications_preference (
    id bigint NOT NULL,
    kind character varying(24) NOT NULL,
    channel character varying(8) NOT NULL,
    "on" boolean NOT NULL,
    user_id bigint NOT NULL
);

ALTER TABLE public.notifications_preference ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.notifications_preference_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.pghistory_context (
    id uuid NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    metadata jsonb NOT NULL
);

CREATE TABLE public.quotas_alert (
    id bigint NOT NULL,
    kind character varying(12) NOT NULL,
    subject character varying(80) NOT NULL,
    text character varying(300) NOT NULL,
    at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    organization_id bigint,
    project_id bigint,
    CONSTRAINT alert_kind_known CHECK (((kind)::text = ANY ((ARRAY['soft_passed'::character varying, 'nearly_full'::character varying, 'full'::character varying, 'runs_out'::character varying, 'expires'::character varying, 'grant'::character varying])::text[])))
);

ALTER TABLE public.quotas_alert ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_alert_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.quotas_budget (
    id bigint NOT NULL,
    name character varying(80) NOT NULL,
    resource character varying(20) NOT NULL,
    amount bigint NOT NULL,
    period character varying(8) NOT NULL,
    on_spent character varying(8) NOT NULL,
    starts_at timestamp with time zone NOT NULL,
    ends_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL,
    generation integer NOT NULL,
    organization_id bigint,
    project_id bigint,
    CONSTRAINT budget_ends_after_start CHECK (((ends_at IS NULL) OR (ends_at > starts_at))),
    CONSTRAINT budget_not_negative CHECK ((amount >= 0)),
    CONSTRAINT budget_of_one CHECK ((((organization_id IS NULL) AND (project_id IS NOT NULL)) OR ((organization_id IS NOT NULL) AND (project_id IS NULL)))),
    CONSTRAINT budget_resource_known CHECK (((resource)::text = ANY ((ARRAY['gpu_milli_seconds'::character varying, 'cpu_milli_seconds'::character varying, 'money_micros'::character varying])::text[]))),
    CONSTRAINT budget_window_ends CHECK (((NOT ((period)::text = 'window'::text)) OR (ends_at IS NOT NULL))),
    CONSTRAINT quotas_budget_generation_check CHECK ((generation >= 0))
);

ALTER TABLE public.quotas_budget ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_budget_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.quotas_budgetevent (
    pgh_id integer NOT NULL,
    pgh_created_at timestamp with time zone NOT NULL,
    pgh_label text NOT NULL,
    id bigint NOT NULL,
    name character varying(80) NOT NULL,
    resource character varying(20) NOT NULL,
    amount bigint NOT NULL,
    period character varying(8) NOT NULL,
    on_spent character varying(8) NOT NULL,
    starts_at timestamp with time zone NOT NULL,
    ends_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL,
    generation integer NOT NULL,
    organization_id bigint,
    pgh_context_id uuid,
    pgh_obj_id bigint NOT NULL,
    project_id bigint,
    CONSTRAINT quotas_budgetevent_generation_check CHECK ((generation >= 0))
);

ALTER TABLE public.quotas_budgetevent ALTER COLUMN pgh_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_budgetevent_pgh_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.quotas_budgetperiod (
    id bigint NOT NULL,
    starts_at timestamp with time zone NOT NULL,
    ends_at timestamp with time zone NOT NULL,
    amount bigint NOT NULL,
    enforce boolean NOT NULL,
    held bigint NOT NULL,
    charged bigint NOT NULL,
    checked_at timestamp with time zone,
    budget_id bigint NOT NULL,
    CONSTRAINT budget_period_ends CHECK ((ends_at > starts_at)),
    CONSTRAINT budget_period_held_not_negative CHECK ((held >= 0))
);

ALTER TABLE public.quotas_budgetperiod ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_budgetperiod_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.quotas_driftfinding (
    id bigint NOT NULL,
    kind character varying(16) NOT NULL,
    subject character varying(160) NOT NULL,
    was bigint NOT NULL,
    found bigint NOT NULL,
    found_at timestamp with time zone NOT NULL,
    repaired_at timestamp with time zone,
    reason character varying(300) NOT NULL,
    project_id bigint
);

ALTER TABLE public.quotas_driftfinding ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_driftfinding_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.quotas_fairsharerules (
    id bigint NOT NULL,
    from_settings boolean NOT NULL,
    mode character varying(16) NOT NULL,
    half_life_seconds integer NOT NULL,
    window_seconds integer NOT NULL,
    gpu_weight double precision NOT NULL,
    cpu_weight double precision NOT NULL,
    memory_weight double precision NOT NULL,
    dominant boolean NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    reason character varying(1000) NOT NULL,
    changed_by_id bigint,
    CONSTRAINT fair_share_mode_known CHECK (((mode)::text = ANY ((ARRAY['exponential'::character varying, 'window'::character varying, 'none'::character varying])::text[]))),
    CONSTRAINT fair_share_times CHECK (((half_life_seconds >= 1) AND (window_seconds >= 1))),
    CONSTRAINT fair_share_weights CHECK (((cpu_weight >= (0.0)::double precision) AND (gpu_weight >= (0.0)::double precision) AND (memory_weight >= (0.0)::double precision) AND ((gpu_weight > (0.0)::double precision) OR (cpu_weight > (0.0)::double precision) OR (memory_weight > (0.0)::double precision)))),
    CONSTRAINT quotas_fairsharerules_half_life_seconds_check CHECK ((half_life_seconds >= 0)),
    CONSTRAINT quotas_fairsharerules_window_seconds_check CHECK ((window_seconds >= 0))
);

ALTER TABLE public.quotas_fairsharerules ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_fairsharerules_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.quotas_grant (
    id bigint NOT NULL,
    resource character varying(20) NOT NULL,
    gpu_model character varying(80) NOT NULL,
    amount bigint NOT NULL,
    reason text NOT NULL,
    evidence jsonb NOT NULL,
    starts_at timestamp with time zone,
    ends_at timestamp with time zone,
    asked_at timestamp with time zone NOT NULL,
    state character varying(10) NOT NULL,
    granted bigint,
    decided_at timestamp with time zone,
    decision text NOT NULL,
    seconded_at timestamp with time zone,
    begun_at timestamp with time zone,
    ended_at timestamp with time zone,
    raised_hard bigint NOT NULL,
    raised_nominal bigint NOT NULL,
    generation integer NOT NULL,
    asked_by_id bigint,
    decided_by_id bigint,
    project_id bigint NOT NULL,
    renews_id bigint,
    seconded_by_id bigint,
    budget_id bigint,
    CONSTRAINT grant_asks_for_some CHECK ((amount > 0)),
    CONSTRAINT grant_ends_after_start CHECK (((ends_at IS NULL) OR (starts_at IS NULL) OR (ends_at > starts_at))),
    CONSTRAINT grant_in_force_was_approved CHECK (((NOT ((state)::text = ANY ((ARRAY['approved'::character varying, 'active'::character varying])::text[]))) OR (granted IS NOT NULL))),
    CONSTRAINT grant_no_more_than_asked CHECK (((granted IS NULL) OR ((granted > 0) AND (granted <= amount)))),
    CONSTRAINT grant_of_a_line_or_a_budget CHECK ((((budget_id IS NOT NULL) AND ((resource)::text = ANY ((ARRAY['gpu_milli_seconds'::character varying, 'cpu_milli_seconds'::character varying, 'money_micros'::character varying])::text[]))) OR ((budget_id IS NULL) AND ((resource)::text = ANY ((ARRAY['cpu_millis'::character varying, 'memory_mib'::character varying, 'gpu_millis'::character varying, 'storage_mib'::character varying, 'running_jobs'::character varying, 'pending_jobs'::character varying])::text[]))))),
    CONSTRAINT grant_state_known CHECK (((state)::text = ANY ((ARRAY['asked'::character varying, 'seconding'::character varying, 'approved'::character varying, 'active'::character varying, 'declined'::character varying, 'withdrawn'::character varying, 'ended'::character varying])::text[]))),
    CONSTRAINT grant_two_people_decide CHECK (((seconded_by_id IS NULL) OR (decided_by_id IS NULL) OR (NOT ((seconded_by_id = decided_by_id) AND (seconded_by_id IS NOT NULL) AND (decided_by_id IS NOT NULL))))),
    CONSTRAINT quotas_grant_generation_check CHECK ((generation >= 0))
);

ALTER TABLE public.quotas_grant ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_grant_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.quotas_grantevent (
    pgh_id integer NOT NULL,
    pgh_created_at timestamp with time zone NOT NULL,
    pgh_label text NOT NULL,
    id bigint NOT NULL,
    resource character varying(20) NOT NULL,
    gpu_model character varying(80) NOT NULL,
    amount bigint NOT NULL,
    reason text NOT NULL,
    evidence jsonb NOT NULL,
    starts_at timestamp with time zone,
    ends_at timestamp with time zone,
    asked_at timestamp with time zone NOT NULL,
    state character varying(10) NOT NULL,
    granted bigint,
    decided_at timestamp with time zone,
    decision text NOT NULL,
    seconded_at timestamp with time zone,
    begun_at timestamp with time zone,
    ended_at timestamp with time zone,
    raised_hard bigint NOT NULL,
    raised_nominal bigint NOT NULL,
    generation integer NOT NULL,
    asked_by_id bigint,
    decided_by_id bigint,
    pgh_context_id uuid,
    pgh_obj_id bigint NOT NULL,
    project_id bigint NOT NULL,
    renews_id bigint,
    seconded_by_id bigint,
    budget_id bigint,
    CONSTRAINT quotas_grantevent_generation_check CHECK ((generation >= 0))
);

ALTER TABLE public.quotas_grantevent ALTER COLUMN pgh_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_grantevent_pgh_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.quotas_ledgerentry (
    id bigint NOT NULL,
    kind character varying(8) NOT NULL,
    job_number bigint,
    attempt_id bigint,
    gpu_model character varying(80) NOT NULL,
    cpu_millis bigint NOT NULL,
    memory_mib bigint NOT NULL,
    gpu_millis bigint NOT NULL,
    storage_mib bigint NOT NULL,
    held_seconds bigint NOT NULL,
    charged_seconds bigint NOT NULL,
    held_micros bigint NOT NULL,
    charged_micros bigint NOT NULL,
    starts_at timestamp with time zone NOT NULL,
    ends_at timestamp with time zone NOT NULL,
    at timestamp with time zone NOT NULL,
    reason character varying(200) NOT NULL,
    project_id bigint NOT NULL,
    user_id bigint,
    roll_up_id bigint,
    unused_seconds bigint,
    CONSTRAINT ledger_amounts_not_negative CHECK (((cpu_millis >= 0) AND (gpu_millis >= 0) AND (memory_mib >= 0) AND (storage_mib >= 0))),
    CONSTRAINT ledger_ends_after_start CHECK ((ends_at >= starts_at)),
    CONSTRAINT ledger_kind_known CHECK (((kind)::text = ANY ((ARRAY['hold'::character varying, 'charge'::character varying, 'refund'::character varying, 'adjust'::character varying])::text[]))),
    CONSTRAINT ledger_sums_move_as_their_kind_says CHECK ((((kind)::text = 'adjust'::text) OR ((charged_micros = 0) AND (charged_seconds = 0) AND (held_micros >= 0) AND (held_seconds > 0) AND ((kind)::text = 'hold'::text)) OR ((charged_micros >= 0) AND (charged_seconds >= 0) AND (held_micros <= 0) AND (held_seconds <= 0) AND ((kind)::text = 'charge'::text)) OR ((charged_micros <= 0) AND (charged_seconds <= 0) AND (held_micros <= 0) AND (held_seconds <= 0) AND ((kind)::text = 'refund'::text)))),
    CONSTRAINT ledger_unused_of_charges CHECK (((unused_seconds IS NULL) OR (((kind)::text = 'charge'::text) AND (unused_seconds >= 0)))),
    CONSTRAINT quotas_ledgerentry_attempt_id_check CHECK ((attempt_id >= 0)),
    CONSTRAINT quotas_ledgerentry_job_number_check CHECK ((job_number >= 0))
);

ALTER TABLE public.quotas_ledgerentry ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_ledgerentry_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.quotas_ledgerrollup (
    id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    lines integer NOT NULL,
    digest character varying(64) NOT NULL,
    CONSTRAINT quotas_ledgerrollup_lines_check CHECK ((lines >= 0))
);

ALTER TABLE public.quotas_ledgerrollup ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_ledgerrollup_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.quotas_notice (
    id bigint NOT NULL,
    period_starts_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    read_at timestamp with time zone,
    user_id bigint NOT NULL
);

CREATE TABLE public.quotas_notice_alerts (
    id bigint NOT NULL,
    notice_id bigint NOT NULL,
    alert_id bigint NOT NULL
);

ALTER TABLE public.quotas_notice_alerts ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_notice_alerts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE public.quotas_notice ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_notice_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.quotas_pricerow (
    id bigint NOT NULL,
    resource character varying(16) NOT NULL,
    gpu_model character varying(80) NOT NULL,
    micros_per_hour bigint NOT NULL,
    valid_from timestamp with time zone NOT NULL,
    valid_until timestamp with time zone,
    CONSTRAINT price_ends_after_start CHECK (((valid_until IS NULL) OR (valid_until > valid_from))),
    CONSTRAINT price_not_negative CHECK ((micros_per_hour >= 0)),
    CONSTRAINT price_of_a_gpu_has_the_model CHECK ((((gpu_model)::text = ''::text) OR ((resource)::text = 'gpu_millis'::text)))
);

ALTER TABLE public.quotas_pricerow ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_pricerow_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.quotas_providerallocation (
    attempt_id bigint NOT NULL,
    job_number bigint NOT NULL,
    provider character varying(16) NOT NULL,
    state character varying(8) NOT NULL,
    start jsonb NOT NULL,
    text character varying(300) NOT NULL,
    asked_at timestamp with time zone NOT NULL,
    answered_at timestamp with time zone,
    ended_at timestamp with time zone,
    released_at timestamp with time zone,
    tries integer NOT NULL,
    next_try_at timestamp with time zone,
    project_id bigint NOT NULL,
    CONSTRAINT provider_allocation_answered CHECK ((((answered_at IS NULL) AND ((state)::text = 'asked'::text)) OR ((answered_at IS NOT NULL) AND ((state)::text = ANY ((ARRAY['held'::character varying, 'refused'::character varying])::text[]))) OR ((state)::text = 'released'::text))),
    CONSTRAINT provider_allocation_is_told CHECK (((next_try_at IS NOT NULL) OR ((NOT ((state)::text = 'asked'::text)) AND (NOT ((ended_at IS NOT NULL) AND ((state)::text = 'held'::text)))))),
    CONSTRAINT provider_allocation_known CHECK (((state)::text = ANY ((ARRAY['asked'::character varying, 'held'::character varying, 'refused'::character varying, 'released'::character varying])::text[]))),
    CONSTRAINT provider_allocation_released CHECK ((((ended_at IS NOT NULL) AND (released_at IS NOT NULL) AND ((state)::text = 'released'::text)) OR ((NOT ((state)::text = 'released'::text)) AND (released_at IS NULL)))),
    CONSTRAINT quotas_providerallocation_attempt_id_check CHECK ((attempt_id >= 0)),
    CONSTRAINT quotas_providerallocation_job_number_check CHECK ((job_number >= 0)),
    CONSTRAINT quotas_providerallocation_tries_check CHECK ((tries >= 0))
);

CREATE TABLE public.quotas_providercircuit (
    provider character varying(8) NOT NULL,
    failures integer NOT NULL,
    opened_at timestamp with time zone,
    open_until timestamp with time zone,
    text character varying(500) NOT NULL,
    CONSTRAINT quotas_providercircuit_failures_check CHECK ((failures >= 0))
);

CREATE TABLE public.quotas_providerstate (
    project_id bigint NOT NULL,
    provider character varying(16) NOT NULL,
    status character varying(12) NOT NULL,
    since timestamp with time zone NOT NULL,
    text character varying(500) NOT NULL,
    wanted jsonb NOT NULL,
    written jsonb,
    found jsonb NOT NULL,
    used jsonb NOT NULL,
    facts jsonb NOT NULL,
    left_out jsonb NOT NULL,
    failures integer NOT NULL,
    next_try_at timestamp with time zone,
    claim uuid,
    claimed_until timestamp with time zone,
    written_at timestamp with time zone,
    synced_at timestamp with time zone,
    CONSTRAINT provider_state_known CHECK (((status)::text = ANY ((ARRAY['pending'::character varying, 'ok'::character varying, 'unreachable'::character varying, 'refused'::character varying, 'drift'::character varying, 'off'::character varying])::text[]))),
    CONSTRAINT quotas_providerstate_failures_check CHECK ((failures >= 0))
);

CREATE TABLE public.quotas_quota (
    id bigint NOT NULL,
    project_id bigint,
    resource character varying(16) NOT NULL,
    nominal bigint,
    soft bigint,
    hard bigint,
    enforce boolean NOT NULL,
    provider character varying(16) NOT NULL,
    used bigint NOT NULL,
    synced_at timestamp with time zone,
    generation integer NOT NULL,
    borrowing_limit bigint,
    converge_after_seconds integer,
    gpu_model character varying(80) NOT NULL,
    job_type character varying(32) NOT NULL,
    lending_limit bigint,
    organization_id bigint,
    over_since timestamp with time zone,
    user_id bigint,
    CONSTRAINT quota_borrows_above_nominal CHECK (((nominal IS NOT NULL) OR ((borrowing_limit IS NULL) AND (lending_limit IS NULL)))),
    CONSTRAINT quota_bounds_not_negative CHECK ((((nominal IS NULL) OR (nominal >= 0)) AND ((borrowing_limit IS NULL) OR (borrowing_limit >= 0)) AND ((lending_limit IS NULL) OR (lending_limit >= 0)) AND ((soft IS NULL) OR (soft >= 0)) AND ((hard IS NULL) OR (hard >= 0)))),
    CONSTRAINT quota_model_of_gpus CHECK ((((gpu_model)::text = ''::text) OR ((resource)::text = 'gpu_millis'::text))),
    CONSTRAINT quota_one_subject CHECK ((((organization_id IS NOT NULL) AND (project_id IS NULL) AND (user_id IS NULL)) OR ((organization_id IS NULL) AND (project_id IS NOT NULL)) OR ((organization_id IS NULL) AND (user_id IS NOT NULL)))),
    CONSTRAINT quota_resource_known CHECK (((resource)::text = ANY ((ARRAY['cpu_millis'::character varying, 'memory_mib'::character varying, 'gpu_millis'::character varying, 'storage_mib'::character varying, 'running_jobs'::character varying, 'pending_jobs'::character varying])::text[]))),
    CONSTRAINT quota_soft_below_hard CHECK (((soft IS NULL) OR (hard IS NULL) OR (soft <= hard))),
    CONSTRAINT quota_used_not_negative CHECK ((used >= 0)),
    CONSTRAINT quotas_quota_converge_after_seconds_check CHECK ((converge_after_seconds >= 0)),
    CONSTRAINT quotas_quota_generation_check CHECK ((generation >= 0))
);

ALTER TABLE public.quotas_quota ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_quota_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.quotas_quotaevent (
    pgh_id integer NOT NULL,
    pgh_created_at timestamp with time zone NOT NULL,
    pgh_label text NOT NULL,
    pgh_obj_id bigint NOT NULL,
    pgh_context_id uuid,
    id bigint NOT NULL,
    project_id bigint,
    resource character varying(16) NOT NULL,
    nominal bigint,
    soft bigint,
    hard bigint,
    enforce boolean NOT NULL,
    provider character varying(16) NOT NULL,
    synced_at timestamp with time zone,
    generation integer NOT NULL,
    borrowing_limit bigint,
    converge_after_seconds integer,
    gpu_model character varying(80) NOT NULL,
    job_type character varying(32) NOT NULL,
    lending_limit bigint,
    organization_id bigint,
    over_since timestamp with time zone,
    user_id bigint,
    CONSTRAINT quotas_quotaevent_converge_after_seconds_check CHECK ((converge_after_seconds >= 0)),
    CONSTRAINT quotas_quotaevent_generation_check CHECK ((generation >= 0))
);

ALTER TABLE public.quotas_quotaevent ALTER COLUMN pgh_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_quotaevent_pgh_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.quotas_refusedstart (
    job_number bigint NOT NULL,
    provider character varying(16) NOT NULL,
    generation integer NOT NULL,
    text character varying(300) NOT NULL,
    possible boolean NOT NULL,
    times integer NOT NULL,
    refused_at timestamp with time zone NOT NULL,
    until timestamp with time zone NOT NULL,
    project_id bigint NOT NULL,
    CONSTRAINT quotas_refusedstart_generation_check CHECK ((generation >= 0)),
    CONSTRAINT quotas_refusedstart_job_number_check CHECK ((job_number >= 0)),
    CONSTRAINT quotas_refusedstart_times_check CHECK ((times >= 0)),
    CONSTRAINT refused_start_ends_later CHECK ((until > refused_at))
);

CREATE TABLE public.quotas_shareusage (
    id bigint NOT NULL,
    starts_at timestamp with time zone NOT NULL,
    gpu_seconds double precision NOT NULL,
    cpu_seconds double precision NOT NULL,
    memory_gib_seconds double precision NOT NULL,
    gpu_decayed double precision NOT NULL,
    cpu_decayed double precision NOT NULL,
    memory_decayed double precision NOT NULL,
    project_id bigint NOT NULL,
    user_id bigint NOT NULL,
    half_life_seconds integer DEFAULT 0 NOT NULL,
    window_seconds integer DEFAULT 0 NOT NULL,
    CONSTRAINT quotas_shareusage_half_life_seconds_check CHECK ((half_life_seconds >= 0)),
    CONSTRAINT quotas_shareusage_window_seconds_check CHECK ((window_seconds >= 0))
);

ALTER TABLE public.quotas_shareusage ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.quotas_shareusage_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_task (
    id bigint NOT NULL,
    attempt_id bigint NOT NULL,
    rank integer NOT NULL,
    node_id bigint NOT NULL,
    state character varying(12) NOT NULL,
    pid integer,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    exit_code integer,
    exit_signal smallint,
    end_text character varying(300) NOT NULL,
    peak_memory_mib bigint,
    cpu_time_ms bigint,
    stdout_bytes bigint,
    stderr_bytes bigint,
    suspended boolean DEFAULT false NOT NULL,
    gpu_busy_ms bigint,
    gpu_watched_ms bigint,
    peak_gpu_memory_mib bigint,
    failure_class character varying(16) DEFAULT ''::character varying NOT NULL,
    is_live boolean GENERATED ALWAYS AS (
CASE
    WHEN ((state)::text = ANY ((ARRAY['assigned'::character varying, 'running'::character varying, 'starting'::character varying, 'stopping'::character varying])::text[])) THEN true
    ELSE false
END) STORED,
    checkpoint_asked_at timestamp with time zone,
    probe_results jsonb,
    cpu_millis bigint DEFAULT 0 NOT NULL,
    suspended_cpu_millis bigint DEFAULT 0 NOT NULL,
    memory_mib bigint DEFAULT 0 NOT NULL,
    storage_mib bigint DEFAULT 0 NOT NULL,
    gpu_millis bigint DEFAULT 0 NOT NULL,
    device_ids bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    numa_domain smallint,
    extras jsonb DEFAULT '{}'::jsonb NOT NULL,
    held_at timestamp with time zone,
    released_at timestamp with time zone,
    CONSTRAINT allocation_ends_after_start CHECK (((released_at IS NULL) OR (released_at >= held_at))),
    CONSTRAINT allocation_not_negative CHECK (((cpu_millis >= 0) AND (suspended_cpu_millis >= 0) AND (memory_mib >= 0) AND (storage_mib >= 0) AND (gpu_millis >= 0))),
    CONSTRAINT scheduler_task_exit_signal_check CHECK ((exit_signal >= 0)),
    CONSTRAINT scheduler_task_pid_check CHECK ((pid >= 0)),
    CONSTRAINT scheduler_task_rank_check CHECK ((rank >= 0)),
    CONSTRAINT task_numa_domain_not_negative CHECK ((numa_domain >= 0)),
    CONSTRAINT task_state_known CHECK (((state)::text = ANY ((ARRAY['assigned'::character varying, 'starting'::character varying, 'running'::character varying, 'stopping'::character varying, 'succeeded'::character varying, 'failed'::character varying, 'stopped'::character varying, 'lost'::character varying])::text[])))
)
WITH (fillfactor='50');

CREATE VIEW public.scheduler_allocation WITH (security_invoker='true') AS
 SELECT id,
    attempt_id,
    rank,
    node_id,
    cpu_millis,
    suspended_cpu_millis,
    memory_mib,
    storage_mib,
    gpu_millis,
    device_ids,
    numa_domain,
    extras,
    held_at,
    released_at
   FROM public.scheduler_task
  WHERE (held_at IS NOT NULL);

CREATE TABLE public.scheduler_artifact (
    id bigint NOT NULL,
    epoch integer NOT NULL,
    rank integer NOT NULL,
    path text NOT NULL,
    key character varying(200) NOT NULL,
    size_bytes bigint NOT NULL,
    sha256 character varying(64) NOT NULL,
    stored_at timestamp with time zone,
    leaves_at timestamp with time zone,
    job_id bigint NOT NULL,
    CONSTRAINT artifact_has_size CHECK ((size_bytes >= 0)),
    CONSTRAINT artifact_stored_with_its_sum CHECK (((((sha256)::text = ''::text) AND (stored_at IS NULL)) OR ((NOT ((sha256)::text = ''::text)) AND (stored_at IS NOT NULL)))),
    CONSTRAINT scheduler_artifact_epoch_check CHECK ((epoch >= 0)),
    CONSTRAINT scheduler_artifact_rank_check CHECK ((rank >= 0))
);

ALTER TABLE public.scheduler_artifact ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_artifact_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_artifactupload (
    id bigint NOT NULL,
    epoch integer NOT NULL,
    rank integer NOT NULL,
    state character varying(8) NOT NULL,
    tries integer NOT NULL,
    next_try_at timestamp with time zone,
    message character varying(500) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    job_id bigint NOT NULL,
    CONSTRAINT artifact_upload_waits_or_ended CHECK ((((ended_at IS NULL) AND (next_try_at IS NOT NULL) AND ((state)::text = 'waiting'::text)) OR ((NOT ((state)::text = 'waiting'::text)) AND (ended_at IS NOT NULL) AND (next_try_at IS NULL)))),
    CONSTRAINT scheduler_artifactupload_epoch_check CHECK ((epoch >= 0)),
    CONSTRAINT scheduler_artifactupload_rank_check CHECK ((rank >= 0)),
    CONSTRAINT scheduler_artifactupload_tries_check CHECK ((tries >= 0))
);

ALTER TABLE public.scheduler_artifactupload ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_artifactupload_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_attempt (
    id bigint NOT NULL,
    job_id bigint NOT NULL,
    epoch integer NOT NULL,
    backend character varying(16) NOT NULL,
    state character varying(12) NOT NULL,
    stop_reason character varying(20) NOT NULL,
    stop_asked_at timestamp with time zone,
    stopped_for bigint,
    stopped_for_epoch integer,
    grace_seconds integer,
    backend_ref character varying(200) NOT NULL,
    cycle_id bigint,
    scheduled_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    exit_code integer,
    exit_signal smallint,
    end_text character varying(300) NOT NULL,
    resized_at timestamp with time zone,
    resized_for bigint,
    resized_for_epoch integer,
    suspend_asked_at timestamp with time zone,
    suspended_at timestamp with time zone,
    suspended_ms bigint DEFAULT 0 NOT NULL,
    failure_class character varying(16) DEFAULT ''::character varying NOT NULL,
    is_live boolean GENERATED ALWAYS AS (
CASE
    WHEN ((state)::text = ANY ((ARRAY['assigned'::character varying, 'running'::character varying, 'starting'::character varying, 'stopping'::character varying])::text[])) THEN true
    ELSE false
END) STORED,
    predicted_seconds bigint,
    predicted_from_runs smallint,
    limit_changed_at timestamp with time zone,
    CONSTRAINT attempt_state_known CHECK (((state)::text = ANY ((ARRAY['assigned'::character varying, 'starting'::character varying, 'running'::character varying, 'stopping'::character varying, 'succeeded'::character varying, 'failed'::character varying, 'stopped'::character varying, 'lost'::character varying])::text[]))),
    CONSTRAINT scheduler_attempt_epoch_check CHECK ((epoch >= 0)),
    CONSTRAINT scheduler_attempt_exit_signal_check CHECK ((exit_signal >= 0)),
    CONSTRAINT scheduler_attempt_grace_seconds_check CHECK ((grace_seconds >= 0)),
    CONSTRAINT scheduler_attempt_predicted_from_runs_check CHECK ((predicted_from_runs >= 0)),
    CONSTRAINT scheduler_attempt_predicted_seconds_check CHECK ((predicted_seconds >= 0)),
    CONSTRAINT scheduler_attempt_resized_for_check CHECK ((resized_for >= 0)),
    CONSTRAINT scheduler_attempt_resized_for_epoch_check CHECK ((resized_for_epoch >= 0)),
    CONSTRAINT scheduler_attempt_stopped_for_check CHECK ((stopped_for >= 0)),
    CONSTRAINT scheduler_attempt_stopped_for_epoch_check CHECK ((stopped_for_epoch >= 0))
)
WITH (fillfactor='50');

ALTER TABLE public.scheduler_attempt ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_attempt_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_attemptusage (
    attempt_id bigint NOT NULL,
    step_seconds integer NOT NULL,
    samples bigint[] NOT NULL,
    cpu_millis bigint[] NOT NULL,
    memory_mib bigint[] NOT NULL,
    gpu_samples bigint[] NOT NULL,
    gpu_percent bigint[] NOT NULL,
    gpu_memory_mib bigint[] NOT NULL,
    CONSTRAINT attempt_usage_bounded CHECK (((
CASE
    WHEN (cpu_millis IS NULL) THEN NULL::integer
    ELSE COALESCE(array_length(cpu_millis, 1), 0)
END =
CASE
    WHEN (samples IS NULL) THEN NULL::integer
    ELSE COALESCE(array_length(samples, 1), 0)
END) AND (
CASE
    WHEN (gpu_memory_mib IS NULL) THEN NULL::integer
    ELSE COALESCE(array_length(gpu_memory_mib, 1), 0)
END =
CASE
    WHEN (gpu_samples IS NULL) THEN NULL::integer
    ELSE COALESCE(array_length(gpu_samples, 1), 0)
END) AND (
CASE
    WHEN (gpu_percent IS NULL) THEN NULL::integer
    ELSE COALESCE(array_length(gpu_percent, 1), 0)
END =
CASE
    WHEN (gpu_samples IS NULL) THEN NULL::integer
    ELSE COALESCE(array_length(gpu_samples, 1), 0)
END) AND (
CASE
    WHEN (gpu_samples IS NULL) THEN NULL::integer
    ELSE COALESCE(array_length(gpu_samples, 1), 0)
END <=
CASE
    WHEN (samples IS NULL) THEN NULL::integer
    ELSE COALESCE(array_length(samples, 1), 0)
END) AND (
CASE
    WHEN (memory_mib IS NULL) THEN NULL::integer
    ELSE COALESCE(array_length(memory_mib, 1), 0)
END =
CASE
    WHEN (samples IS NULL) THEN NULL::integer
    ELSE COALESCE(array_length(samples, 1), 0)
END) AND (
CASE
    WHEN (samples IS NULL) THEN NULL::integer
    ELSE COALESCE(array_length(samples, 1), 0)
END <= 120) AND (step_seconds > 0))),
    CONSTRAINT scheduler_attemptusage_step_seconds_check CHECK ((step_seconds >= 0))
);

CREATE UNLOGGED TABLE public.scheduler_changedjob (
    id bigint NOT NULL,
    job_number bigint NOT NULL,
    queue_id bigint NOT NULL,
    xid bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='20000', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='100000');

ALTER TABLE public.scheduler_changedjob ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_changedjob_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_checkpoint (
    id uuid NOT NULL,
    epoch integer NOT NULL,
    rank integer NOT NULL,
    name character varying(800) NOT NULL,
    marked_ns bigint NOT NULL,
    state character varying(8) NOT NULL,
    reason character varying(10) NOT NULL,
    text character varying(300) NOT NULL,
    files integer NOT NULL,
    size_bytes bigint NOT NULL,
    taken_at timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    stored_at timestamp with time zone,
    job_id bigint NOT NULL,
    node_id bigint NOT NULL,
    removed_by_id bigint,
    CONSTRAINT checkpoint_complete_is_stored CHECK (((NOT ((state)::text = 'complete'::text)) OR (stored_at IS NOT NULL))),
    CONSTRAINT checkpoint_has_size CHECK ((size_bytes >= 0)),
    CONSTRAINT checkpoint_state_known CHECK (((state)::text = ANY ((ARRAY['storing'::character varying, 'complete'::character varying, 'failed'::character varying, 'leaving'::character varying, 'removed'::character varying])::text[]))),
    CONSTRAINT scheduler_checkpoint_epoch_check CHECK ((epoch >= 0)),
    CONSTRAINT scheduler_checkpoint_files_check CHECK ((files >= 0)),
    CONSTRAINT scheduler_checkpoint_rank_check CHECK ((rank >= 0))
);

CREATE TABLE public.scheduler_cluster (
    id bigint NOT NULL,
    name character varying(80) NOT NULL,
    slug character varying(80) NOT NULL,
    backend character varying(16) NOT NULL,
    paused boolean NOT NULL,
    paused_reason character varying(200) NOT NULL,
    paused_by character varying(150) NOT NULL,
    paused_at timestamp with time zone,
    profile_id bigint,
    cpu_overcommit_percent smallint NOT NULL,
    memory_overcommit_percent smallint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    generation integer NOT NULL,
    backend_key uuid DEFAULT gen_random_uuid() NOT NULL,
    backend_settings jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT cluster_overcommit_sane CHECK ((((cpu_overcommit_percent IS NULL) OR ((cpu_overcommit_percent >= 10) AND (cpu_overcommit_percent <= 1000))) AND ((memory_overcommit_percent IS NULL) OR ((memory_overcommit_percent >= 10) AND (memory_overcommit_percent <= 1000))))),
    CONSTRAINT scheduler_cluster_cpu_overcommit_percent_check CHECK ((cpu_overcommit_percent >= 0)),
    CONSTRAINT scheduler_cluster_generation_check CHECK ((generation >= 0)),
    CONSTRAINT scheduler_cluster_memory_overcommit_percent_check CHECK ((memory_overcommit_percent >= 0))
);

ALTER TABLE public.scheduler_cluster ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_cluster_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_clusterevent (
    pgh_id integer NOT NULL,
    pgh_created_at timestamp with time zone NOT NULL,
    pgh_label text NOT NULL,
    pgh_obj_id bigint NOT NULL,
    pgh_context_id uuid,
    id bigint NOT NULL,
    name character varying(80) NOT NULL,
    slug character varying(80) NOT NULL,
    backend character varying(16) NOT NULL,
    paused boolean NOT NULL,
    paused_reason character varying(200) NOT NULL,
    paused_by character varying(150) NOT NULL,
    paused_at timestamp with time zone,
    profile_id bigint,
    cpu_overcommit_percent smallint NOT NULL,
    memory_overcommit_percent smallint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    generation integer NOT NULL,
    backend_settings jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT scheduler_clusterevent_cpu_overcommit_percent_check CHECK ((cpu_overcommit_percent >= 0)),
    CONSTRAINT scheduler_clusterevent_generation_check CHECK ((generation >= 0)),
    CONSTRAINT scheduler_clusterevent_memory_overcommit_percent_check CHECK ((memory_overcommit_percent >= 0))
);

ALTER TABLE public.scheduler_clusterevent ALTER COLUMN pgh_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_clusterevent_pgh_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_cycle (
    id bigint NOT NULL,
    cluster_id bigint NOT NULL,
    fencing_token bigint NOT NULL,
    trigger character varying(32) NOT NULL,
    started_at timestamp with time zone NOT NULL,
    load_us bigint NOT NULL,
    plan_us bigint NOT NULL,
    apply_us bigint NOT NULL,
    pending_count integer NOT NULL,
    started_count integer NOT NULL,
    refused_count integer NOT NULL,
    refused jsonb NOT NULL,
    snapshot_digest character varying(64) NOT NULL,
    plan_digest character varying(64) NOT NULL,
    snapshot bytea,
    policy bytea,
    plan bytea,
    base_id bigint,
    rules jsonb DEFAULT '[]'::jsonb NOT NULL,
    profiles jsonb DEFAULT '[]'::jsonb NOT NULL
);

ALTER TABLE public.scheduler_cycle ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_cycle_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_dataset (
    id bigint NOT NULL,
    name character varying(200) NOT NULL,
    path character varying(1024) NOT NULL,
    ready_at timestamp with time zone,
    declared_by_id bigint,
    project_id bigint NOT NULL
);

ALTER TABLE public.scheduler_dataset ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_dataset_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_device (
    id bigint NOT NULL,
    node_id bigint NOT NULL,
    kind character varying(16) NOT NULL,
    index smallint NOT NULL,
    uuid character varying(80) NOT NULL,
    model character varying(80) NOT NULL,
    memory_mib bigint NOT NULL,
    numa_domain smallint NOT NULL,
    healthy boolean NOT NULL,
    fake boolean NOT NULL,
    gone boolean NOT NULL,
    used_millis smallint NOT NULL,
    utilisation_percent smallint,
    memory_used_mib bigint,
    temperature_c smallint,
    share_millis smallint NOT NULL,
    power_watts smallint,
    trouble character varying(200) DEFAULT ''::character varying NOT NULL,
    CONSTRAINT device_not_overcommitted CHECK (((used_millis >= 0) AND (used_millis <= share_millis) AND ((share_millis >= 1) AND (share_millis <= 1000)))),
    CONSTRAINT scheduler_device_index_check CHECK ((index >= 0)),
    CONSTRAINT scheduler_device_numa_domain_check CHECK ((numa_domain >= 0)),
    CONSTRAINT scheduler_device_power_watts_check CHECK ((power_watts >= 0)),
    CONSTRAINT scheduler_device_share_millis_check CHECK ((share_millis >= 0)),
    CONSTRAINT scheduler_device_used_millis_check CHECK ((used_millis >= 0)),
    CONSTRAINT scheduler_device_utilisation_percent_check CHECK ((utilisation_percent >= 0))
);

ALTER TABLE public.scheduler_device ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_device_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_elementend (
    id bigint NOT NULL,
    index integer NOT NULL,
    state character varying(9) NOT NULL,
    epoch integer,
    exit_code integer,
    exit_signal smallint,
    started_at timestamp with time zone,
    ended_at timestamp with time zone NOT NULL,
    cpu_time_ms bigint,
    peak_memory_mib bigint,
    stdout_offset bigint NOT NULL,
    stdout_bytes bigint NOT NULL,
    stderr_offset bigint NOT NULL,
    stderr_bytes bigint NOT NULL,
    end_text character varying(300) NOT NULL,
    job_id bigint NOT NULL,
    CONSTRAINT element_cancelled_or_run CHECK ((((epoch IS NULL) AND ((state)::text = 'cancelled'::text)) OR ((NOT ((state)::text = 'cancelled'::text)) AND (epoch IS NOT NULL) AND (started_at IS NOT NULL)))),
    CONSTRAINT element_ends_after_start CHECK (((started_at IS NULL) OR (ended_at >= started_at))),
    CONSTRAINT element_state_known CHECK (((state)::text = ANY ((ARRAY['succeeded'::character varying, 'failed'::character varying, 'cancelled'::character varying])::text[]))),
    CONSTRAINT scheduler_elementend_epoch_check CHECK ((epoch >= 0)),
    CONSTRAINT scheduler_elementend_exit_signal_check CHECK ((exit_signal >= 0)),
    CONSTRAINT scheduler_elementend_index_check CHECK ((index >= 0))
);

ALTER TABLE public.scheduler_elementend ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_elementend_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_fairqueueturn (
    id bigint NOT NULL,
    queue_id bigint NOT NULL,
    by_user boolean NOT NULL,
    tenant_id bigint NOT NULL,
    virtual bigint NOT NULL,
    waiting boolean NOT NULL,
    cluster_id bigint NOT NULL,
    CONSTRAINT fair_queue_turn_forward CHECK ((virtual >= 0))
);

ALTER TABLE public.scheduler_fairqueueturn ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_fairqueueturn_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_folderupload (
    id uuid NOT NULL,
    name character varying(200) NOT NULL,
    state character varying(9) NOT NULL,
    text character varying(300) NOT NULL,
    files integer NOT NULL,
    size_bytes bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    ready_at timestamp with time zone,
    used_at timestamp with time zone,
    held_to_id bigint,
    user_id bigint NOT NULL,
    CONSTRAINT folder_upload_has_size CHECK (((files >= 1) AND (size_bytes >= 0))),
    CONSTRAINT folder_upload_ready_is_whole CHECK (((NOT ((state)::text = 'ready'::text)) OR (ready_at IS NOT NULL))),
    CONSTRAINT folder_upload_state_known CHECK (((state)::text = ANY ((ARRAY['receiving'::character varying, 'ready'::character varying, 'leaving'::character varying, 'removed'::character varying])::text[]))),
    CONSTRAINT scheduler_folderupload_files_check CHECK ((files >= 0))
);

CREATE TABLE public.scheduler_forecastoutcome (
    id bigint NOT NULL,
    job_number bigint NOT NULL,
    told_at timestamp with time zone NOT NULL,
    p10_at timestamp with time zone NOT NULL,
    p90_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone NOT NULL,
    missed_seconds bigint NOT NULL,
    cluster_id bigint NOT NULL,
    raw_p10_at timestamp with time zone,
    raw_p90_at timestamp with time zone,
    CONSTRAINT scheduler_forecastoutcome_job_number_check CHECK ((job_number >= 0))
);

ALTER TABLE public.scheduler_forecastoutcome ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_forecastoutcome_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_forecastrun (
    cluster_id bigint NOT NULL,
    ended_at timestamp with time zone NOT NULL,
    took_ms integer NOT NULL,
    jobs integer NOT NULL,
    CONSTRAINT scheduler_forecastrun_jobs_check CHECK ((jobs >= 0)),
    CONSTRAINT scheduler_forecastrun_took_ms_check CHECK ((took_ms >= 0))
);

CREATE TABLE public.scheduler_idempotencykey (
    id bigint NOT NULL,
    user_id bigint NOT NULL,
    key character varying(200) NOT NULL,
    request_hash character varying(64) NOT NULL,
    status smallint,
    body jsonb,
    created_at timestamp with time zone NOT NULL,
    rights jsonb NOT NULL,
    CONSTRAINT scheduler_idempotencykey_status_check CHECK ((status >= 0))
);

ALTER TABLE public.scheduler_idempotencykey ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_idempotencykey_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_job (
    number bigint NOT NULL,
    user_id bigint NOT NULL,
    project_id bigint NOT NULL,
    queue_id bigint NOT NULL,
    state character varying(16) NOT NULL,
    held_by character varying(8) NOT NULL,
    reason_code character varying(32) NOT NULL,
    reason_category character varying(8) NOT NULL,
    reason_text text NOT NULL,
    reason_details jsonb NOT NULL,
    reason_at timestamp with time zone,
    expected_start_at timestamp with time zone,
    epoch integer NOT NULL,
    exit_code integer,
    exit_signal smallint,
    end_text character varying(300) NOT NULL,
    eligible_at timestamp with time zone,
    scheduled_at timestamp with time zone,
    started_at timestamp with time zone,
    completed_at timestamp with time zone,
    generation integer NOT NULL,
    assemblies_failed smallint NOT NULL,
    assembly_node_ids jsonb NOT NULL,
    assembly_until_at timestamp with time zone,
    saved_at timestamp with time zone,
    saved_path character varying(1024) NOT NULL,
    boost smallint DEFAULT 0 NOT NULL,
    boost_until_at timestamp with time zone,
    outcome character varying(16) GENERATED ALWAYS AS (
CASE
    WHEN ((state)::text = ANY ((ARRAY['cancelled'::character varying, 'completed'::character varying, 'failed'::character varying])::text[])) THEN state
    ELSE NULL::character varying
END) STORED,
    failure_class character varying(16) DEFAULT ''::character varying NOT NULL,
    move_terms jsonb,
    check_at timestamp with time zone,
    unsuccessful character varying(16),
    relaxed jsonb,
    CONSTRAINT job_boost_ends CHECK (((boost = 0) OR ((boost <= 100) AND (boost_until_at IS NOT NULL)))),
    CONSTRAINT job_ended_has_time CHECK (((NOT ((state)::text = ANY ((ARRAY['cancelled'::character varying, 'completed'::character varying, 'failed'::character varying])::text[]))) OR (completed_at IS NOT NULL))),
    CONSTRAINT job_state_known CHECK (((state)::text = ANY ((ARRAY['created'::character varying, 'held'::character varying, 'blocked'::character varying, 'queued'::character varying, 'reserved'::character varying, 'scheduled'::character varying, 'starting'::character varying, 'running'::character varying, 'checkpointing'::character varying, 'preempting'::character varying, 'stopping'::character varying, 'preempted'::character varying, 'suspended'::character varying, 'migrating'::character varying, 'completed'::character varying, 'failed'::character varying, 'cancelled'::character varying])::text[]))),
    CONSTRAINT scheduler_job_assemblies_failed_check CHECK ((assemblies_failed >= 0)),
    CONSTRAINT scheduler_job_boost_check CHECK ((boost >= 0)),
    CONSTRAINT scheduler_job_epoch_check CHECK ((epoch >= 0)),
    CONSTRAINT scheduler_job_exit_signal_check CHECK ((exit_signal >= 0)),
    CONSTRAINT scheduler_job_generation_check CHECK ((generation >= 0))
)
WITH (fillfactor='45');

CREATE TABLE public.scheduler_jobdependency (
    id bigint NOT NULL,
    job_id bigint NOT NULL,
    on_id bigint,
    kind character varying(12) NOT NULL,
    satisfied boolean,
    data character varying(200) NOT NULL,
    "group" smallint NOT NULL,
    need smallint NOT NULL,
    on_array bigint,
    CONSTRAINT dependency_not_on_itself CHECK ((NOT (job_id = on_id))),
    CONSTRAINT dependency_on_one_thing CHECK (((((data)::text = ''::text) AND (on_id IS NOT NULL) AND (on_array IS NULL)) OR (((data)::text = ''::text) AND (on_id IS NULL) AND (on_array IS NOT NULL)) OR (((kind)::text = 'data'::text) AND (on_id IS NULL) AND (on_array IS NULL) AND (NOT ((data)::text = ''::text))))),
    CONSTRAINT scheduler_jobdependency_group_check CHECK (("group" >= 0)),
    CONSTRAINT scheduler_jobdependency_need_check CHECK ((need >= 0))
);

ALTER TABLE public.scheduler_jobdependency ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_jobdependency_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_jobelements (
    job_id bigint NOT NULL,
    indices integer[] NOT NULL,
    limit_seconds integer,
    CONSTRAINT elements_not_empty CHECK ((
CASE
    WHEN (indices IS NULL) THEN NULL::integer
    ELSE COALESCE(array_length(indices, 1), 0)
END > 0)),
    CONSTRAINT scheduler_jobelements_limit_seconds_check CHECK ((limit_seconds >= 0))
);

CREATE TABLE public.scheduler_jobevent (
    id bigint NOT NULL,
    job_id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    kind character varying(32) NOT NULL,
    because character varying(300) NOT NULL,
    epoch integer,
    actor_id bigint,
    details jsonb NOT NULL,
    CONSTRAINT scheduler_jobevent_epoch_check CHECK ((epoch >= 0))
);

ALTER TABLE public.scheduler_jobevent ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_jobevent_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_jobmove (
    id bigint NOT NULL,
    epoch integer NOT NULL,
    cause character varying(10) NOT NULL,
    state character varying(8) NOT NULL,
    leaves jsonb NOT NULL,
    asked_at timestamp with time zone NOT NULL,
    reason character varying(300) NOT NULL,
    stopped_at timestamp with time zone,
    ended_at timestamp with time zone,
    text character varying(300) NOT NULL,
    asked_by_id bigint,
    job_id bigint NOT NULL,
    target_id bigint,
    CONSTRAINT move_ended_has_time CHECK ((((ended_at IS NOT NULL) AND ((state)::text = ANY ((ARRAY['done'::character varying, 'undone'::character varying])::text[]))) OR ((ended_at IS NULL) AND ((state)::text = ANY ((ARRAY['saving'::character varying, 'stopping'::character varying, 'waiting'::character varying])::text[]))))),
    CONSTRAINT move_state_known CHECK (((state)::text = ANY ((ARRAY['saving'::character varying, 'stopping'::character varying, 'waiting'::character varying, 'done'::character varying, 'undone'::character varying])::text[]))),
    CONSTRAINT scheduler_jobmove_epoch_check CHECK ((epoch >= 0))
);

ALTER TABLE public.scheduler_jobmove ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_jobmove_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_jobname (
    id bigint NOT NULL,
    name character varying(200) NOT NULL
);

ALTER TABLE public.scheduler_jobname ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_jobname_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_jobrequest (
    number bigint NOT NULL,
    uuid uuid NOT NULL,
    name character varying(200) NOT NULL,
    job_type character varying(32) NOT NULL,
    command text NOT NULL,
    script text NOT NULL,
    env jsonb NOT NULL,
    working_dir character varying(1024) NOT NULL,
    tasks integer NOT NULL,
    nodes integer,
    tasks_per_node integer,
    cpu_millis bigint NOT NULL,
    memory_mib bigint NOT NULL,
    storage_mib bigint NOT NULL,
    gpus integer NOT NULL,
    gpu_millis integer NOT NULL,
    gpu_model character varying(80) NOT NULL,
    gpu_slice character varying(24) NOT NULL,
    extras jsonb NOT NULL,
    cpu_limit_millis bigint,
    memory_limit_mib bigint,
    numa character varying(8) DEFAULT 'prefer'::character varying NOT NULL,
    time_limit_seconds bigint,
    node_selector jsonb NOT NULL,
    tolerations jsonb NOT NULL,
    affinity jsonb NOT NULL,
    labels jsonb NOT NULL,
    priority smallint NOT NULL,
    begin_at timestamp with time zone,
    deadline_at timestamp with time zone,
    restart_policy character varying(12) NOT NULL,
    max_restarts smallint NOT NULL,
    preemptible boolean NOT NULL,
    depends_until_at timestamp with time zone,
    depends_on_timeout character varying(5) NOT NULL,
    min_tasks integer,
    elastic boolean NOT NULL,
    on_task_failure character varying(8) NOT NULL,
    pack character varying(4) NOT NULL,
    pack_required boolean NOT NULL,
    assembly_timeout_seconds integer,
    array_id uuid,
    array_index integer,
    array_max_running integer,
    created_at timestamp with time zone NOT NULL,
    submitted_via character varying(8) NOT NULL,
    restart_delay_max_seconds integer,
    restart_delay_seconds integer,
    restart_rules jsonb DEFAULT '[]'::jsonb NOT NULL,
    mail_types character varying(120),
    checkpoint jsonb DEFAULT '{}'::jsonb NOT NULL,
    artifacts jsonb DEFAULT '[]'::jsonb NOT NULL,
    error_path character varying(1024) DEFAULT ''::character varying NOT NULL,
    open_mode character varying(8) DEFAULT 'truncate'::character varying NOT NULL,
    output_path character varying(1024) DEFAULT ''::character varying NOT NULL,
    probes jsonb DEFAULT '[]'::jsonb NOT NULL,
    secrets jsonb DEFAULT '[]'::jsonb NOT NULL,
    upload uuid,
    deadline_action character varying(4) DEFAULT 'none'::character varying NOT NULL,
    wait_limit_seconds bigint,
    array_number bigint,
    relax jsonb DEFAULT '[]'::jsonb NOT NULL,
    reservation_id bigint,
    limit_signal jsonb DEFAULT '{}'::jsonb NOT NULL,
    image character varying(255),
    CONSTRAINT job_amounts_not_negative CHECK (((cpu_millis >= 0) AND (memory_mib >= 0) AND (storage_mib >= 0))),
    CONSTRAINT job_deadline_action_known CHECK ((((deadline_action)::text = 'none'::text) OR (((deadline_action)::text = 'end'::text) AND (deadline_at IS NOT NULL)))),
    CONSTRAINT job_has_tasks CHECK ((tasks >= 1)),
    CONSTRAINT job_limits_not_below_requests CHECK ((((cpu_limit_millis IS NULL) OR (cpu_limit_millis >= cpu_millis)) AND ((memory_limit_mib IS NULL) OR (memory_limit_mib >= memory_mib)))),
    CONSTRAINT job_min_tasks_within CHECK (((min_tasks IS NULL) OR ((min_tasks >= 1) AND (min_tasks <= tasks)))),
    CONSTRAINT job_numa_known CHECK (((numa)::text = ANY ((ARRAY['prefer'::character varying, 'one'::character varying])::text[]))),
    CONSTRAINT job_priority_range CHECK ((priority <= 100)),
    CONSTRAINT job_runs_one_thing CHECK (((NOT ((command = ''::text) AND (script = ''::text))) AND ((command = ''::text) OR (script = ''::text)))),
    CONSTRAINT job_share_of_one_gpu CHECK (((gpu_millis = 0) OR ((gpus = 1) AND (gpu_millis < 1000)))),
    CONSTRAINT scheduler_jobrequest_array_index_check CHECK ((array_index >= 0)),
    CONSTRAINT scheduler_jobrequest_array_max_running_check CHECK ((array_max_running >= 0)),
    CONSTRAINT scheduler_jobrequest_assembly_timeout_seconds_check CHECK ((assembly_timeout_seconds >= 0)),
    CONSTRAINT scheduler_jobrequest_gpu_millis_check CHECK ((gpu_millis >= 0)),
    CONSTRAINT scheduler_jobrequest_gpus_check CHECK ((gpus >= 0)),
    CONSTRAINT scheduler_jobrequest_max_restarts_check CHECK ((max_restarts >= 0)),
    CONSTRAINT scheduler_jobrequest_min_tasks_check CHECK ((min_tasks >= 0)),
    CONSTRAINT scheduler_jobrequest_nodes_check CHECK ((nodes >= 0)),
    CONSTRAINT scheduler_jobrequest_priority_check CHECK ((priority >= 0)),
    CONSTRAINT scheduler_jobrequest_restart_delay_max_seconds_check CHECK ((restart_delay_max_seconds >= 0)),
    CONSTRAINT scheduler_jobrequest_restart_delay_seconds_check CHECK ((restart_delay_seconds >= 0)),
    CONSTRAINT scheduler_jobrequest_tasks_check CHECK ((tasks >= 0)),
    CONSTRAINT scheduler_jobrequest_tasks_per_node_check CHECK ((tasks_per_node >= 0)),
    CONSTRAINT scheduler_jobrequest_time_limit_seconds_check CHECK ((time_limit_seconds >= 0)),
    CONSTRAINT scheduler_jobrequest_wait_limit_seconds_check CHECK ((wait_limit_seconds >= 0))
);

ALTER TABLE public.scheduler_jobrequest ALTER COLUMN number ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_jobrequest_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_jointoken (
    id bigint NOT NULL,
    cluster_id bigint NOT NULL,
    prefix character varying(16) NOT NULL,
    digest character varying(64) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    created_by character varying(150) NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    revoked_at timestamp with time zone
);

ALTER TABLE public.scheduler_jointoken ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_jointoken_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_keptresult (
    id bigint NOT NULL,
    epoch integer NOT NULL,
    rank integer NOT NULL,
    files integer NOT NULL,
    size_bytes bigint NOT NULL,
    counted_whole boolean NOT NULL,
    kept_at timestamp with time zone NOT NULL,
    leaves_at timestamp with time zone,
    leaves_because character varying(12) NOT NULL,
    fetched_at timestamp with time zone,
    left_at timestamp with time zone,
    job_id bigint NOT NULL,
    node_id bigint NOT NULL,
    user_id bigint NOT NULL,
    CONSTRAINT kept_result_has_size CHECK ((size_bytes >= 0)),
    CONSTRAINT kept_result_leaves_for_a_reason CHECK ((((leaves_at IS NULL) AND (left_at IS NULL)) OR (NOT ((leaves_because)::text = ''::text)))),
    CONSTRAINT scheduler_keptresult_epoch_check CHECK ((epoch >= 0)),
    CONSTRAINT scheduler_keptresult_files_check CHECK ((files >= 0)),
    CONSTRAINT scheduler_keptresult_rank_check CHECK ((rank >= 0))
);

ALTER TABLE public.scheduler_keptresult ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_keptresult_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_lease (
    id bigint NOT NULL,
    scope character varying(120) NOT NULL,
    holder character varying(120) NOT NULL,
    token bigint NOT NULL,
    expires_at timestamp with time zone,
    CONSTRAINT lease_token_not_negative CHECK ((token >= 0))
);

ALTER TABLE public.scheduler_lease ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_lease_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_logchunk (
    id bigint NOT NULL,
    task_id bigint NOT NULL,
    stream character varying(6) NOT NULL,
    "offset" bigint NOT NULL,
    length integer NOT NULL,
    data bytea NOT NULL,
    received_at timestamp with time zone NOT NULL,
    CONSTRAINT log_chunk_has_bytes CHECK (((length > 0) AND ("offset" >= 0)))
);

ALTER TABLE public.scheduler_logchunk ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_logchunk_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_metriccount (
    id bigint NOT NULL,
    name character varying(40) NOT NULL,
    label character varying(120) NOT NULL,
    detail character varying(60) NOT NULL,
    value bigint NOT NULL,
    CONSTRAINT metric_count_not_negative CHECK ((value >= 0))
);

ALTER TABLE public.scheduler_metriccount ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_metriccount_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_metriccursor (
    id bigint NOT NULL,
    source character varying(20) NOT NULL,
    "position" bigint NOT NULL,
    moved_at timestamp with time zone NOT NULL
);

ALTER TABLE public.scheduler_metriccursor ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_metriccursor_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_node (
    id bigint NOT NULL,
    cluster_id bigint NOT NULL,
    name character varying(120) NOT NULL,
    state character varying(8) NOT NULL,
    cordoned boolean NOT NULL,
    draining boolean NOT NULL,
    drain_reason character varying(200) NOT NULL,
    drained_by character varying(150) NOT NULL,
    drained_at timestamp with time zone,
    labels jsonb NOT NULL,
    taints jsonb NOT NULL,
    rack character varying(80) NOT NULL,
    zone character varying(80) NOT NULL,
    region character varying(80) NOT NULL,
    cpu_millis bigint NOT NULL,
    memory_mib bigint NOT NULL,
    storage_mib bigint NOT NULL,
    numa_domains smallint NOT NULL,
    extras jsonb NOT NULL,
    cpu_millis_capacity bigint NOT NULL,
    memory_mib_capacity bigint NOT NULL,
    used_cpu_millis bigint NOT NULL,
    used_memory_mib bigint NOT NULL,
    used_storage_mib bigint NOT NULL,
    used_gpu_millis bigint NOT NULL,
    gpu_millis bigint NOT NULL,
    address character varying(64) NOT NULL,
    agent_version character varying(32) NOT NULL,
    agent_key_prefix character varying(16) NOT NULL,
    agent_key_digest character varying(64) NOT NULL,
    boot_id character varying(64) NOT NULL,
    registered_at timestamp with time zone,
    trouble character varying(200) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    generation integer NOT NULL,
    cpu_overcommit_percent smallint,
    memory_overcommit_percent smallint,
    domains jsonb NOT NULL,
    isolation jsonb NOT NULL,
    drain_deadline_at timestamp with time zone,
    agent_protocol smallint,
    CONSTRAINT node_cpu_not_overcommitted CHECK (((used_cpu_millis >= 0) AND (used_cpu_millis <= cpu_millis_capacity))),
    CONSTRAINT node_deadline_is_of_a_drain CHECK ((draining OR (drain_deadline_at IS NULL))),
    CONSTRAINT node_gpu_not_overcommitted CHECK (((used_gpu_millis >= 0) AND (used_gpu_millis <= gpu_millis))),
    CONSTRAINT node_memory_not_overcommitted CHECK (((used_memory_mib >= 0) AND (used_memory_mib <= memory_mib_capacity))),
    CONSTRAINT node_overcommit_sane CHECK ((((cpu_overcommit_percent IS NULL) OR ((cpu_overcommit_percent >= 10) AND (cpu_overcommit_percent <= 1000))) AND ((memory_overcommit_percent IS NULL) OR ((memory_overcommit_percent >= 10) AND (memory_overcommit_percent <= 1000))))),
    CONSTRAINT node_state_known CHECK (((state)::text = ANY ((ARRAY['up'::character varying, 'unknown'::character varying, 'down'::character varying])::text[]))),
    CONSTRAINT node_storage_not_overcommitted CHECK (((used_storage_mib >= 0) AND (used_storage_mib <= storage_mib))),
    CONSTRAINT scheduler_node_agent_protocol_check CHECK ((agent_protocol >= 0)),
    CONSTRAINT scheduler_node_cpu_overcommit_percent_check CHECK ((cpu_overcommit_percent >= 0)),
    CONSTRAINT scheduler_node_generation_check CHECK ((generation >= 0)),
    CONSTRAINT scheduler_node_memory_overcommit_percent_check CHECK ((memory_overcommit_percent >= 0)),
    CONSTRAINT scheduler_node_numa_domains_check CHECK ((numa_domains >= 0))
);

ALTER TABLE public.scheduler_node ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_node_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_node_partitions (
    id bigint NOT NULL,
    node_id bigint NOT NULL,
    partition_id bigint NOT NULL
);

ALTER TABLE public.scheduler_node_partitions ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_node_partitions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_nodeheartbeat (
    node_id bigint NOT NULL,
    last_seen_at timestamp with time zone NOT NULL,
    lease_expires_at timestamp with time zone NOT NULL,
    clock_skew_ms integer NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE public.scheduler_nodenamecordoneddrainingdrainreasondrainedbylabeled01 (
    pgh_id integer CONSTRAINT scheduler_nodenamecordoneddrainingdrainreasondr_pgh_id_not_null NOT NULL,
    pgh_created_at timestamp with time zone CONSTRAINT scheduler_nodenamecordoneddrainingdrain_pgh_created_at_not_null NOT NULL,
    pgh_label text CONSTRAINT scheduler_nodenamecordoneddrainingdrainreaso_pgh_label_not_null NOT NULL,
    pgh_obj_id bigint CONSTRAINT scheduler_nodenamecordoneddrainingdrainreas_pgh_obj_id_not_null NOT NULL,
    pgh_context_id uuid,
    name character varying(120) CONSTRAINT scheduler_nodenamecordoneddrainingdrainreasondrai_name_not_null NOT NULL,
    cordoned boolean CONSTRAINT scheduler_nodenamecordoneddrainingdrainreason_cordoned_not_null NOT NULL,
    draining boolean CONSTRAINT scheduler_nodenamecordoneddrainingdrainreason_draining_not_null NOT NULL,
    drain_reason character varying(200) CONSTRAINT scheduler_nodenamecordoneddrainingdrainre_drain_reason_not_null NOT NULL,
    drained_by character varying(150) CONSTRAINT scheduler_nodenamecordoneddrainingdrainreas_drained_by_not_null NOT NULL,
    labels jsonb CONSTRAINT scheduler_nodenamecordoneddrainingdrainreasondr_labels_not_null NOT NULL,
    taints jsonb CONSTRAINT scheduler_nodenamecordoneddrainingdrainreasondr_taints_not_null NOT NULL,
    cpu_millis bigint CONSTRAINT scheduler_nodenamecordoneddrainingdrainreas_cpu_millis_not_null NOT NULL,
    memory_mib bigint CONSTRAINT scheduler_nodenamecordoneddrainingdrainreas_memory_mib_not_null NOT NULL,
    storage_mib bigint CONSTRAINT scheduler_nodenamecordoneddrainingdrainrea_storage_mib_not_null NOT NULL
);

ALTER TABLE public.scheduler_nodenamecordoneddrainingdrainreasondrainedbylabeled01 ALTER COLUMN pgh_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_nodenamecordoneddrainingdrainreasondrained_pgh_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_nodeoutage (
    id bigint NOT NULL,
    began_at timestamp with time zone NOT NULL,
    node_id bigint NOT NULL
);

ALTER TABLE public.scheduler_nodeoutage ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_nodeoutage_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_nodescore (
    node_id bigint NOT NULL,
    reliability smallint,
    performance smallint,
    attempts integer NOT NULL,
    failed_starts integer NOT NULL,
    lost integer NOT NULL,
    infrastructure integer NOT NULL,
    succeeded_elsewhere integer NOT NULL,
    outages integer NOT NULL,
    speed_percent integer,
    compared_runs integer NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    CONSTRAINT node_scores_are_points CHECK ((((reliability IS NULL) OR (reliability <= 100)) AND ((performance IS NULL) OR (performance <= 100)))),
    CONSTRAINT scheduler_nodescore_attempts_check CHECK ((attempts >= 0)),
    CONSTRAINT scheduler_nodescore_compared_runs_check CHECK ((compared_runs >= 0)),
    CONSTRAINT scheduler_nodescore_failed_starts_check CHECK ((failed_starts >= 0)),
    CONSTRAINT scheduler_nodescore_infrastructure_check CHECK ((infrastructure >= 0)),
    CONSTRAINT scheduler_nodescore_lost_check CHECK ((lost >= 0)),
    CONSTRAINT scheduler_nodescore_outages_check CHECK ((outages >= 0)),
    CONSTRAINT scheduler_nodescore_performance_check CHECK ((performance >= 0)),
    CONSTRAINT scheduler_nodescore_reliability_check CHECK ((reliability >= 0)),
    CONSTRAINT scheduler_nodescore_speed_percent_check CHECK ((speed_percent >= 0)),
    CONSTRAINT scheduler_nodescore_succeeded_elsewhere_check CHECK ((succeeded_elsewhere >= 0))
);

CREATE TABLE public.scheduler_partition (
    id bigint NOT NULL,
    cluster_id bigint NOT NULL,
    name character varying(80) NOT NULL,
    max_wall_seconds integer,
    created_at timestamp with time zone NOT NULL,
    cpu_overcommit_percent smallint,
    memory_overcommit_percent smallint,
    CONSTRAINT partition_overcommit_sane CHECK ((((cpu_overcommit_percent IS NULL) OR ((cpu_overcommit_percent >= 10) AND (cpu_overcommit_percent <= 1000))) AND ((memory_overcommit_percent IS NULL) OR ((memory_overcommit_percent >= 10) AND (memory_overcommit_percent <= 1000))))),
    CONSTRAINT scheduler_partition_cpu_overcommit_percent_check CHECK ((cpu_overcommit_percent >= 0)),
    CONSTRAINT scheduler_partition_max_wall_seconds_check CHECK ((max_wall_seconds >= 0)),
    CONSTRAINT scheduler_partition_memory_overcommit_percent_check CHECK ((memory_overcommit_percent >= 0))
);

ALTER TABLE public.scheduler_partition ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_partition_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_partitionevent (
    pgh_id integer NOT NULL,
    pgh_created_at timestamp with time zone NOT NULL,
    pgh_label text NOT NULL,
    pgh_obj_id bigint NOT NULL,
    pgh_context_id uuid,
    id bigint NOT NULL,
    cluster_id bigint NOT NULL,
    name character varying(80) NOT NULL,
    max_wall_seconds integer,
    created_at timestamp with time zone NOT NULL,
    cpu_overcommit_percent smallint,
    memory_overcommit_percent smallint,
    CONSTRAINT scheduler_partitionevent_cpu_overcommit_percent_check CHECK ((cpu_overcommit_percent >= 0)),
    CONSTRAINT scheduler_partitionevent_max_wall_seconds_check CHECK ((max_wall_seconds >= 0)),
    CONSTRAINT scheduler_partitionevent_memory_overcommit_percent_check CHECK ((memory_overcommit_percent >= 0))
);

ALTER TABLE public.scheduler_partitionevent ALTER COLUMN pgh_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_partitionevent_pgh_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_policychoice (
    id bigint NOT NULL,
    queue_id bigint NOT NULL,
    rule character varying(40) NOT NULL,
    since_ms bigint NOT NULL,
    policy character varying(16) NOT NULL,
    placement character varying(16) NOT NULL,
    cluster_id bigint NOT NULL
);

ALTER TABLE public.scheduler_policychoice ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_policychoice_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_policyfault (
    id bigint NOT NULL,
    subject character varying(150) NOT NULL,
    reason character varying(500) NOT NULL,
    began_at timestamp with time zone NOT NULL,
    cluster_id bigint NOT NULL
);

ALTER TABLE public.scheduler_policyfault ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_policyfault_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_predictionaccuracy (
    cluster_id bigint NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    starts integer NOT NULL,
    inside integer NOT NULL,
    width_seconds bigint,
    waited_seconds bigint,
    runs integer NOT NULL,
    longer integer NOT NULL,
    ratio_millis bigint,
    CONSTRAINT scheduler_predictionaccuracy_inside_check CHECK ((inside >= 0)),
    CONSTRAINT scheduler_predictionaccuracy_longer_check CHECK ((longer >= 0)),
    CONSTRAINT scheduler_predictionaccuracy_ratio_millis_check CHECK ((ratio_millis >= 0)),
    CONSTRAINT scheduler_predictionaccuracy_runs_check CHECK ((runs >= 0)),
    CONSTRAINT scheduler_predictionaccuracy_starts_check CHECK ((starts >= 0)),
    CONSTRAINT scheduler_predictionaccuracy_waited_seconds_check CHECK ((waited_seconds >= 0)),
    CONSTRAINT scheduler_predictionaccuracy_width_seconds_check CHECK ((width_seconds >= 0))
);

CREATE TABLE public.scheduler_priorityclass (
    id bigint NOT NULL,
    name character varying(32) NOT NULL,
    value smallint NOT NULL,
    aliases jsonb NOT NULL,
    boost_per_hour numeric(6,3) NOT NULL,
    description character varying(200) NOT NULL,
    CONSTRAINT priority_class_range CHECK ((value <= 100)),
    CONSTRAINT scheduler_priorityclass_value_check CHECK ((value >= 0))
);

ALTER TABLE public.scheduler_priorityclass ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_priorityclass_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_priorityclass_preempts (
    id bigint NOT NULL,
    from_priorityclass_id bigint NOT NULL,
    to_priorityclass_id bigint NOT NULL
);

ALTER TABLE public.scheduler_priorityclass_preempts ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_priorityclass_preempts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_priorityclassevent (
    pgh_id integer NOT NULL,
    pgh_created_at timestamp with time zone NOT NULL,
    pgh_label text NOT NULL,
    pgh_obj_id bigint NOT NULL,
    pgh_context_id uuid,
    id bigint NOT NULL,
    name character varying(32) NOT NULL,
    value smallint NOT NULL,
    aliases jsonb NOT NULL,
    boost_per_hour numeric(6,3) NOT NULL,
    description character varying(200) NOT NULL,
    CONSTRAINT scheduler_priorityclassevent_value_check CHECK ((value >= 0))
);

ALTER TABLE public.scheduler_priorityclassevent ALTER COLUMN pgh_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_priorityclassevent_pgh_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_profileversion (
    id bigint NOT NULL,
    profile_id bigint NOT NULL,
    profile_name character varying(80) NOT NULL,
    number integer NOT NULL,
    content jsonb NOT NULL,
    origin character varying(8) NOT NULL,
    origin_number bigint,
    made_at timestamp with time zone NOT NULL,
    made_by character varying(150) NOT NULL,
    reason character varying(200) NOT NULL,
    CONSTRAINT profile_version_origin_known CHECK (((origin)::text = ANY ((ARRAY['create'::character varying, 'edit'::character varying, 'rollback'::character varying, 'publish'::character varying, 'settings'::character varying, 'found'::character varying])::text[]))),
    CONSTRAINT scheduler_profileversion_number_check CHECK ((number >= 0))
);

ALTER TABLE public.scheduler_profileversion ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_profileversion_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_queue (
    id bigint NOT NULL,
    cluster_id bigint NOT NULL,
    name character varying(80) NOT NULL,
    slug character varying(80) NOT NULL,
    project_id bigint,
    is_default boolean NOT NULL,
    priority smallint NOT NULL,
    profile_id bigint,
    paused boolean NOT NULL,
    paused_reason character varying(200) NOT NULL,
    paused_by character varying(150) NOT NULL,
    paused_at timestamp with time zone,
    max_concurrent_jobs integer,
    max_pending_jobs integer,
    default_wall_seconds integer,
    max_wall_seconds integer,
    created_at timestamp with time zone NOT NULL,
    generation integer NOT NULL,
    results_days integer,
    results_job_mib integer,
    results_until_fetched boolean,
    isolation character varying(8) DEFAULT ''::character varying NOT NULL,
    scratch_mib integer,
    default_assembly_seconds integer,
    default_wait_seconds integer,
    preference_wait_seconds integer,
    CONSTRAINT queue_isolation_known CHECK (((isolation)::text = ANY ((ARRAY[''::character varying, 'partial'::character varying, 'strict'::character varying])::text[]))),
    CONSTRAINT queue_priority_range CHECK ((priority <= 100)),
    CONSTRAINT scheduler_queue_default_assembly_seconds_check CHECK ((default_assembly_seconds >= 0)),
    CONSTRAINT scheduler_queue_default_wait_seconds_check CHECK ((default_wait_seconds >= 0)),
    CONSTRAINT scheduler_queue_default_wall_seconds_check CHECK ((default_wall_seconds >= 0)),
    CONSTRAINT scheduler_queue_generation_check CHECK ((generation >= 0)),
    CONSTRAINT scheduler_queue_max_concurrent_jobs_check CHECK ((max_concurrent_jobs >= 0)),
    CONSTRAINT scheduler_queue_max_pending_jobs_check CHECK ((max_pending_jobs >= 0)),
    CONSTRAINT scheduler_queue_max_wall_seconds_check CHECK ((max_wall_seconds >= 0)),
    CONSTRAINT scheduler_queue_preference_wait_seconds_check CHECK ((preference_wait_seconds >= 0)),
    CONSTRAINT scheduler_queue_priority_check CHECK ((priority >= 0)),
    CONSTRAINT scheduler_queue_results_days_check CHECK ((results_days >= 0)),
    CONSTRAINT scheduler_queue_results_job_mib_check CHECK ((results_job_mib >= 0)),
    CONSTRAINT scheduler_queue_scratch_mib_check CHECK ((scratch_mib >= 0))
);

ALTER TABLE public.scheduler_queue ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_queue_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_queue_partitions (
    id bigint NOT NULL,
    queue_id bigint NOT NULL,
    partition_id bigint NOT NULL
);

ALTER TABLE public.scheduler_queue_partitions ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_queue_partitions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_queueevent (
    pgh_id integer NOT NULL,
    pgh_created_at timestamp with time zone NOT NULL,
    pgh_label text NOT NULL,
    pgh_obj_id bigint NOT NULL,
    pgh_context_id uuid,
    id bigint NOT NULL,
    cluster_id bigint NOT NULL,
    name character varying(80) NOT NULL,
    slug character varying(80) NOT NULL,
    project_id bigint,
    is_default boolean NOT NULL,
    priority smallint NOT NULL,
    profile_id bigint,
    paused boolean NOT NULL,
    paused_reason character varying(200) NOT NULL,
    paused_by character varying(150) NOT NULL,
    paused_at timestamp with time zone,
    max_concurrent_jobs integer,
    max_pending_jobs integer,
    default_wall_seconds integer,
    max_wall_seconds integer,
    created_at timestamp with time zone NOT NULL,
    results_days integer,
    results_job_mib integer,
    results_until_fetched boolean,
    isolation character varying(8) DEFAULT ''::character varying NOT NULL,
    scratch_mib integer,
    default_assembly_seconds integer,
    default_wait_seconds integer,
    preference_wait_seconds integer,
    CONSTRAINT scheduler_queueevent_default_assembly_seconds_check CHECK ((default_assembly_seconds >= 0)),
    CONSTRAINT scheduler_queueevent_default_wait_seconds_check CHECK ((default_wait_seconds >= 0)),
    CONSTRAINT scheduler_queueevent_default_wall_seconds_check CHECK ((default_wall_seconds >= 0)),
    CONSTRAINT scheduler_queueevent_max_concurrent_jobs_check CHECK ((max_concurrent_jobs >= 0)),
    CONSTRAINT scheduler_queueevent_max_pending_jobs_check CHECK ((max_pending_jobs >= 0)),
    CONSTRAINT scheduler_queueevent_max_wall_seconds_check CHECK ((max_wall_seconds >= 0)),
    CONSTRAINT scheduler_queueevent_preference_wait_seconds_check CHECK ((preference_wait_seconds >= 0)),
    CONSTRAINT scheduler_queueevent_priority_check CHECK ((priority >= 0)),
    CONSTRAINT scheduler_queueevent_results_days_check CHECK ((results_days >= 0)),
    CONSTRAINT scheduler_queueevent_results_job_mib_check CHECK ((results_job_mib >= 0)),
    CONSTRAINT scheduler_queueevent_scratch_mib_check CHECK ((scratch_mib >= 0))
);

ALTER TABLE public.scheduler_queueevent ALTER COLUMN pgh_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_queueevent_pgh_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_reservation (
    id bigint NOT NULL,
    uuid uuid NOT NULL,
    cluster_id bigint NOT NULL,
    name character varying(120) NOT NULL,
    project_id bigint,
    job_id bigint,
    starts_at timestamp with time zone NOT NULL,
    ends_at timestamp with time zone NOT NULL,
    reason character varying(200) NOT NULL,
    created_by_id bigint,
    created_at timestamp with time zone NOT NULL,
    cancelled_at timestamp with time zone,
    decided_at timestamp with time zone,
    decided_by_id bigint,
    decision_reason character varying(200) DEFAULT ''::character varying NOT NULL,
    magnetic boolean DEFAULT true NOT NULL,
    status character varying(9) DEFAULT 'approved'::character varying NOT NULL,
    wanted jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT reservation_declined_with_reason CHECK (((NOT ((status)::text = 'declined'::text)) OR (NOT ((decision_reason)::text = ''::text)))),
    CONSTRAINT reservation_ends_after_start CHECK ((ends_at > starts_at)),
    CONSTRAINT reservation_status_known CHECK (((status)::text = ANY ((ARRAY['requested'::character varying, 'approved'::character varying, 'declined'::character varying])::text[])))
);

CREATE TABLE public.scheduler_reservation_nodes (
    id bigint NOT NULL,
    reservation_id bigint NOT NULL,
    node_id bigint NOT NULL
);

CREATE TABLE public.scheduler_reservationpart (
    id bigint NOT NULL,
    cpu_millis bigint NOT NULL,
    memory_mib bigint NOT NULL,
    device_ids bigint[] NOT NULL,
    node_id bigint NOT NULL,
    reservation_id bigint NOT NULL,
    CONSTRAINT reservation_part_not_negative CHECK (((cpu_millis >= 0) AND (memory_mib >= 0)))
);

CREATE VIEW public.scheduler_reservation_held AS
 SELECT reservation.id AS reservation_id,
    reservation.starts_at,
    reservation.ends_at,
    held.node_id,
    true AS whole,
    (0)::bigint AS cpu_millis,
    (0)::bigint AS memory_mib,
    ARRAY[]::bigint[] AS device_ids
   FROM (public.scheduler_reservation reservation
     JOIN public.scheduler_reservation_nodes held ON ((held.reservation_id = reservation.id)))
  WHERE (((reservation.status)::text = 'approved'::text) AND (reservation.cancelled_at IS NULL))
UNION ALL
 SELECT reservation.id AS reservation_id,
    reservation.starts_at,
    reservation.ends_at,
    held.node_id,
    false AS whole,
    held.cpu_millis,
    held.memory_mib,
    held.device_ids
   FROM (public.scheduler_reservation reservation
     JOIN public.scheduler_reservationpart held ON ((held.reservation_id = reservation.id)))
  WHERE (((reservation.status)::text = 'approved'::text) AND (reservation.cancelled_at IS NULL));

ALTER TABLE public.scheduler_reservation ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_reservation_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE public.scheduler_reservation_nodes ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_reservation_nodes_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_reservation_users (
    id bigint NOT NULL,
    reservation_id bigint NOT NULL,
    user_id bigint NOT NULL
);

ALTER TABLE public.scheduler_reservation_users ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_reservation_users_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_reservationevent (
    pgh_id integer NOT NULL,
    pgh_created_at timestamp with time zone NOT NULL,
    pgh_label text NOT NULL,
    pgh_obj_id bigint NOT NULL,
    pgh_context_id uuid,
    id bigint NOT NULL,
    uuid uuid NOT NULL,
    cluster_id bigint NOT NULL,
    name character varying(120) NOT NULL,
    project_id bigint,
    job_id bigint,
    starts_at timestamp with time zone NOT NULL,
    ends_at timestamp with time zone NOT NULL,
    reason character varying(200) NOT NULL,
    created_by_id bigint,
    created_at timestamp with time zone NOT NULL,
    cancelled_at timestamp with time zone,
    decided_at timestamp with time zone,
    decided_by_id bigint,
    decision_reason character varying(200) DEFAULT ''::character varying NOT NULL,
    magnetic boolean DEFAULT true NOT NULL,
    status character varying(9) DEFAULT 'approved'::character varying NOT NULL,
    wanted jsonb DEFAULT '{}'::jsonb NOT NULL
);

ALTER TABLE public.scheduler_reservationevent ALTER COLUMN pgh_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_reservationevent_pgh_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE public.scheduler_reservationpart ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_reservationpart_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_retentionrun (
    id bigint NOT NULL,
    started_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    rules jsonb NOT NULL,
    removed bigint NOT NULL,
    problem character varying(300) NOT NULL
);

ALTER TABLE public.scheduler_retentionrun ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_retentionrun_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_runtimeprediction (
    id bigint NOT NULL,
    name character varying(200) NOT NULL,
    runs smallint NOT NULL,
    usual_seconds bigint NOT NULL,
    planned_seconds bigint NOT NULL,
    version integer NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    cluster_id bigint NOT NULL,
    user_id bigint NOT NULL,
    CONSTRAINT prediction_positive CHECK (((planned_seconds > 0) AND (usual_seconds > 0))),
    CONSTRAINT scheduler_runtimeprediction_planned_seconds_check CHECK ((planned_seconds >= 0)),
    CONSTRAINT scheduler_runtimeprediction_runs_check CHECK ((runs >= 0)),
    CONSTRAINT scheduler_runtimeprediction_usual_seconds_check CHECK ((usual_seconds >= 0)),
    CONSTRAINT scheduler_runtimeprediction_version_check CHECK ((version >= 0))
);

ALTER TABLE public.scheduler_runtimeprediction ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_runtimeprediction_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_schedulerprofile (
    id bigint NOT NULL,
    name character varying(80) NOT NULL,
    policy character varying(16) NOT NULL,
    tie_breakers jsonb NOT NULL,
    strict_order boolean NOT NULL,
    placement character varying(16) NOT NULL,
    backfill character varying(16) NOT NULL,
    options jsonb NOT NULL,
    score_weights jsonb NOT NULL,
    plugins jsonb NOT NULL,
    preemption_enabled boolean NOT NULL,
    preemption jsonb NOT NULL,
    version integer NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    rule_hold_seconds integer DEFAULT 300 NOT NULL,
    rule_time_zone character varying(64) DEFAULT 'UTC'::character varying NOT NULL,
    rules jsonb DEFAULT '[]'::jsonb NOT NULL,
    CONSTRAINT scheduler_schedulerprofile_rule_hold_seconds_check CHECK ((rule_hold_seconds >= 0)),
    CONSTRAINT scheduler_schedulerprofile_version_check CHECK ((version >= 0))
);

ALTER TABLE public.scheduler_schedulerprofile ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_schedulerprofile_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_schedulerprofileevent (
    pgh_id integer NOT NULL,
    pgh_created_at timestamp with time zone NOT NULL,
    pgh_label text NOT NULL,
    pgh_obj_id bigint NOT NULL,
    pgh_context_id uuid,
    id bigint NOT NULL,
    name character varying(80) NOT NULL,
    policy character varying(16) NOT NULL,
    tie_breakers jsonb NOT NULL,
    strict_order boolean NOT NULL,
    placement character varying(16) NOT NULL,
    backfill character varying(16) NOT NULL,
    options jsonb NOT NULL,
    score_weights jsonb NOT NULL,
    plugins jsonb NOT NULL,
    preemption_enabled boolean NOT NULL,
    preemption jsonb NOT NULL,
    version integer NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    rule_hold_seconds integer DEFAULT 300 NOT NULL,
    rule_time_zone character varying(64) DEFAULT 'UTC'::character varying NOT NULL,
    rules jsonb DEFAULT '[]'::jsonb NOT NULL,
    CONSTRAINT scheduler_schedulerprofileevent_rule_hold_seconds_check CHECK ((rule_hold_seconds >= 0)),
    CONSTRAINT scheduler_schedulerprofileevent_version_check CHECK ((version >= 0))
);

ALTER TABLE public.scheduler_schedulerprofileevent ALTER COLUMN pgh_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_schedulerprofileevent_pgh_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_shadowcycle (
    id bigint NOT NULL,
    cycle bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    starts integer NOT NULL,
    shadow_starts integer NOT NULL,
    only_real integer NOT NULL,
    only_shadow integer NOT NULL,
    elsewhere integer NOT NULL,
    waiting integer NOT NULL,
    shadow_waiting integer NOT NULL,
    waited_seconds bigint NOT NULL,
    shadow_waited_seconds bigint NOT NULL,
    stops integer NOT NULL,
    shadow_stops integer NOT NULL,
    plan_us bigint NOT NULL,
    shadow_us bigint NOT NULL,
    run_id bigint NOT NULL,
    CONSTRAINT scheduler_shadowcycle_elsewhere_check CHECK ((elsewhere >= 0)),
    CONSTRAINT scheduler_shadowcycle_only_real_check CHECK ((only_real >= 0)),
    CONSTRAINT scheduler_shadowcycle_only_shadow_check CHECK ((only_shadow >= 0)),
    CONSTRAINT scheduler_shadowcycle_shadow_starts_check CHECK ((shadow_starts >= 0)),
    CONSTRAINT scheduler_shadowcycle_shadow_stops_check CHECK ((shadow_stops >= 0)),
    CONSTRAINT scheduler_shadowcycle_shadow_waiting_check CHECK ((shadow_waiting >= 0)),
    CONSTRAINT scheduler_shadowcycle_starts_check CHECK ((starts >= 0)),
    CONSTRAINT scheduler_shadowcycle_stops_check CHECK ((stops >= 0)),
    CONSTRAINT scheduler_shadowcycle_waiting_check CHECK ((waiting >= 0))
);

ALTER TABLE public.scheduler_shadowcycle ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_shadowcycle_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_shadowjob (
    id bigint NOT NULL,
    job bigint NOT NULL,
    started_at timestamp with time zone,
    shadow_at timestamp with time zone,
    run_id bigint NOT NULL
);

ALTER TABLE public.scheduler_shadowjob ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_shadowjob_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_shadowrun (
    id bigint NOT NULL,
    profile_version integer NOT NULL,
    content jsonb NOT NULL,
    state character varying(9) NOT NULL,
    cause character varying(500) NOT NULL,
    every integer NOT NULL,
    until timestamp with time zone NOT NULL,
    made_at timestamp with time zone NOT NULL,
    made_by character varying(150) NOT NULL,
    reason character varying(200) NOT NULL,
    ended_at timestamp with time zone,
    last_cycle bigint NOT NULL,
    compared integer NOT NULL,
    skipped integer NOT NULL,
    starts bigint NOT NULL,
    shadow_starts bigint NOT NULL,
    plan_us bigint NOT NULL,
    shadow_us bigint NOT NULL,
    jobs_left_out integer NOT NULL,
    cluster_id bigint NOT NULL,
    profile_id bigint NOT NULL,
    queue_id bigint,
    CONSTRAINT scheduler_shadowrun_compared_check CHECK ((compared >= 0)),
    CONSTRAINT scheduler_shadowrun_every_check CHECK ((every >= 0)),
    CONSTRAINT scheduler_shadowrun_jobs_left_out_check CHECK ((jobs_left_out >= 0)),
    CONSTRAINT scheduler_shadowrun_profile_version_check CHECK ((profile_version >= 0)),
    CONSTRAINT scheduler_shadowrun_skipped_check CHECK ((skipped >= 0)),
    CONSTRAINT shadow_ended_has_time CHECK ((((ended_at IS NULL) AND ((state)::text = 'running'::text)) OR ((NOT ((state)::text = 'running'::text)) AND (ended_at IS NOT NULL)))),
    CONSTRAINT shadow_every_positive CHECK ((every >= 1)),
    CONSTRAINT shadow_state_known CHECK (((state)::text = ANY ((ARRAY['running'::character varying, 'ended'::character varying, 'stopped'::character varying, 'failed'::character varying, 'published'::character varying])::text[]))),
    CONSTRAINT shadow_until_after_start CHECK ((until > made_at))
);

ALTER TABLE public.scheduler_shadowrun ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_shadowrun_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_startforecast (
    job_id bigint NOT NULL,
    p10_at timestamp with time zone,
    p50_at timestamp with time zone,
    p90_at timestamp with time zone,
    unknown character varying(400) NOT NULL,
    ends_first integer NOT NULL,
    ahead_jobs integer NOT NULL,
    computed_at timestamp with time zone NOT NULL,
    first_p10_at timestamp with time zone,
    first_p90_at timestamp with time zone,
    first_told_at timestamp with time zone,
    first_raw_p10_at timestamp with time zone,
    first_raw_p90_at timestamp with time zone,
    CONSTRAINT scheduler_startforecast_ahead_jobs_check CHECK ((ahead_jobs >= 0)),
    CONSTRAINT scheduler_startforecast_ends_first_check CHECK ((ends_first >= 0))
);

CREATE TABLE public.scheduler_suspension (
    id bigint NOT NULL,
    for_job bigint NOT NULL,
    for_epoch integer NOT NULL,
    cpu_millis bigint NOT NULL,
    asked_at timestamp with time zone NOT NULL,
    starts_at timestamp with time zone,
    ends_at timestamp with time zone,
    attempt_id bigint NOT NULL,
    CONSTRAINT scheduler_suspension_for_epoch_check CHECK ((for_epoch >= 0)),
    CONSTRAINT scheduler_suspension_for_job_check CHECK ((for_job >= 0)),
    CONSTRAINT suspension_ends_after_start CHECK (((ends_at IS NULL) OR ((starts_at IS NOT NULL) AND (ends_at >= starts_at))))
);

ALTER TABLE public.scheduler_suspension ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_suspension_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE public.scheduler_task ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_task_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.scheduler_unfinishedjob (
    queue_id bigint NOT NULL,
    number bigint NOT NULL
);

CREATE TABLE public.scheduler_unknowntask (
    id bigint NOT NULL,
    task bigint NOT NULL,
    epoch integer NOT NULL,
    job bigint,
    job_uuid uuid,
    username character varying(150) NOT NULL,
    found_at timestamp with time zone NOT NULL,
    stop_asked_at timestamp with time zone,
    stopped_because character varying(200) NOT NULL,
    node_id bigint NOT NULL,
    CONSTRAINT scheduler_unknowntask_epoch_check CHECK ((epoch >= 0))
);

ALTER TABLE public.scheduler_unknowntask ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.scheduler_unknowntask_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE ONLY public.accounts_apitoken
    ADD CONSTRAINT accounts_apitoken_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.accounts_apitoken
    ADD CONSTRAINT accounts_apitoken_prefix_key UNIQUE (prefix);

ALTER TABLE ONLY public.accounts_auditchain
    ADD CONSTRAINT accounts_auditchain_pkey PRIMARY KEY (shard);

ALTER TABLE ONLY public.accounts_auditcheck
    ADD CONSTRAINT accounts_auditcheck_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.accounts_auditcheckpoint
    ADD CONSTRAINT accounts_auditcheckpoint_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.accounts_auditevent
    ADD CONSTRAINT accounts_auditevent_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.accounts_membership
    ADD CONSTRAINT accounts_membership_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.accounts_membershipevent
    ADD CONSTRAINT accounts_membershipevent_pkey PRIMARY KEY (pgh_id);

ALTER TABLE ONLY public.accounts_organization
    ADD CONSTRAINT accounts_organization_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.accounts_organization
    ADD CONSTRAINT accounts_organization_slug_key UNIQUE (slug);

ALTER TABLE ONLY public.accounts_organizationevent
    ADD CONSTRAINT accounts_organizationevent_pkey PRIMARY KEY (pgh_id);

ALTER TABLE ONLY public.accounts_project
    ADD CONSTRAINT accounts_project_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.accounts_project
    ADD CONSTRAINT accounts_project_slug_key UNIQUE (slug);

ALTER TABLE ONLY public.accounts_projectevent
    ADD CONSTRAINT accounts_projectevent_pkey PRIMARY KEY (pgh_id);

ALTER TABLE ONLY public.accounts_secret
    ADD CONSTRAINT accounts_secret_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.accounts_signincount
    ADD CONSTRAINT accounts_signincount_pkey PRIMARY KEY (key);

ALTER TABLE ONLY public.accounts_user_groups
    ADD CONSTRAINT accounts_user_groups_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.accounts_user_groups
    ADD CONSTRAINT accounts_user_groups_user_id_group_id_59c0b32f_uniq UNIQUE (user_id, group_id);

ALTER TABLE ONLY public.accounts_user
    ADD CONSTRAINT accounts_user_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.accounts_user_user_permissions
    ADD CONSTRAINT accounts_user_user_permi_user_id_permission_id_2ab516c2_uniq UNIQUE (user_id, permission_id);

ALTER TABLE ONLY public.accounts_user_user_permissions
    ADD CONSTRAINT accounts_user_user_permissions_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.accounts_user
    ADD CONSTRAINT accounts_user_username_key UNIQUE (username);

ALTER TABLE ONLY public.accounts_userevent
    ADD CONSTRAINT accounts_userevent_pkey PRIMARY KEY (pgh_id);

ALTER TABLE ONLY public.quotas_alert
    ADD CONSTRAINT alert_once UNIQUE (kind, subject);

ALTER TABLE ONLY public.scheduler_artifact
    ADD CONSTRAINT artifact_once UNIQUE (job_id, epoch, rank, path);

ALTER TABLE ONLY public.scheduler_artifactupload
    ADD CONSTRAINT artifact_upload_once UNIQUE (job_id, epoch, rank);

ALTER TABLE ONLY public.scheduler_attempt
    ADD CONSTRAINT attempt_epoch_once UNIQUE (job_id, epoch);

ALTER TABLE ONLY public.accounts_auditcheckpoint
    ADD CONSTRAINT audit_checkpoint_once UNIQUE (shard, number);

ALTER TABLE ONLY public.accounts_auditevent
    ADD CONSTRAINT audit_position_once UNIQUE (shard, number);

ALTER TABLE ONLY public.auth_group
    ADD CONSTRAINT auth_group_name_key UNIQUE (name);

ALTER TABLE ONLY public.auth_group_permissions
    ADD CONSTRAINT auth_group_permissions_group_id_permission_id_0cd325b0_uniq UNIQUE (group_id, permission_id);

ALTER TABLE ONLY public.auth_group_permissions
    ADD CONSTRAINT auth_group_permissions_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.auth_group
    ADD CONSTRAINT auth_group_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.auth_permission
    ADD CONSTRAINT auth_permission_content_type_id_codename_01ab375a_uniq UNIQUE (content_type_id, codename);

ALTER TABLE ONLY public.auth_permission
    ADD CONSTRAINT auth_permission_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.quotas_budgetperiod
    ADD CONSTRAINT budget_period_once UNIQUE (budget_id, starts_at);

ALTER TABLE ONLY public.scheduler_checkpoint
    ADD CONSTRAINT checkpoint_once UNIQUE (job_id, epoch, rank, name, marked_ns);

ALTER TABLE ONLY public.scheduler_dataset
    ADD CONSTRAINT dataset_once UNIQUE (project_id, name);

ALTER TABLE ONLY public.scheduler_jobdependency
    ADD CONSTRAINT dependency_once UNIQUE (job_id, on_id, kind, "group");

ALTER TABLE ONLY public.scheduler_device
    ADD CONSTRAINT device_index_once UNIQUE (node_id, kind, index);

ALTER TABLE ONLY public.django_admin_log
    ADD CONSTRAINT django_admin_log_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.django_celery_beat_clockedschedule
    ADD CONSTRAINT django_celery_beat_clockedschedule_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.django_celery_beat_crontabschedule
    ADD CONSTRAINT django_celery_beat_crontabschedule_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.django_celery_beat_intervalschedule
    ADD CONSTRAINT django_celery_beat_intervalschedule_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.django_celery_beat_periodictask
    ADD CONSTRAINT django_celery_beat_periodictask_name_key UNIQUE (name);

ALTER TABLE ONLY public.django_celery_beat_periodictask
    ADD CONSTRAINT django_celery_beat_periodictask_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.django_celery_beat_periodictasks
    ADD CONSTRAINT django_celery_beat_periodictasks_pkey PRIMARY KEY (ident);

ALTER TABLE ONLY public.django_celery_beat_solarschedule
    ADD CONSTRAINT django_celery_beat_solar_event_latitude_longitude_ba64999a_uniq UNIQUE (event, latitude, longitude);

ALTER TABLE ONLY public.django_celery_beat_solarschedule
    ADD CONSTRAINT django_celery_beat_solarschedule_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.django_content_type
    ADD CONSTRAINT django_content_type_app_label_model_76bd3d3b_uniq UNIQUE (app_label, model);

ALTER TABLE ONLY public.django_content_type
    ADD CONSTRAINT django_content_type_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.django_migrations
    ADD CONSTRAINT django_migrations_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.django_session
    ADD CONSTRAINT django_session_pkey PRIMARY KEY (session_key);

ALTER TABLE ONLY public.scheduler_elementend
    ADD CONSTRAINT element_ends_once UNIQUE (job_id, index);

ALTER TABLE ONLY public.scheduler_fairqueueturn
    ADD CONSTRAINT fair_queue_turn_once UNIQUE (cluster_id, queue_id, by_user, tenant_id);

ALTER TABLE ONLY public.scheduler_idempotencykey
    ADD CONSTRAINT idempotency_key_once UNIQUE (user_id, key);

ALTER TABLE ONLY public.infra_circuit
    ADD CONSTRAINT infra_circuit_pkey PRIMARY KEY (name);

ALTER TABLE ONLY public.scheduler_jobname
    ADD CONSTRAINT job_name_once UNIQUE (name);

ALTER TABLE ONLY public.scheduler_keptresult
    ADD CONSTRAINT kept_result_once UNIQUE (job_id, epoch, rank);

ALTER TABLE ONLY public.scheduler_logchunk
    ADD CONSTRAINT log_chunk_once UNIQUE (task_id, stream, "offset");

ALTER TABLE ONLY public.accounts_membership
    ADD CONSTRAINT membership_once UNIQUE (user_id, project_id);

ALTER TABLE ONLY public.notifications_message
    ADD CONSTRAINT message_once UNIQUE (endpoint_id, kind, source, group_key, first_event);

ALTER TABLE ONLY public.scheduler_metriccount
    ADD CONSTRAINT metric_count_once UNIQUE (name, label, detail);

ALTER TABLE ONLY public.scheduler_node
    ADD CONSTRAINT node_name_once UNIQUE (cluster_id, name);

ALTER TABLE ONLY public.quotas_notice
    ADD CONSTRAINT notice_once_a_turn UNIQUE (user_id, period_starts_at);

ALTER TABLE ONLY public.notifications_notification
    ADD CONSTRAINT notification_once UNIQUE (user_id, kind, source, group_key, first_event);

ALTER TABLE ONLY public.notifications_cursor
    ADD CONSTRAINT notifications_cursor_pkey PRIMARY KEY (source);

ALTER TABLE ONLY public.notifications_endpoint
    ADD CONSTRAINT notifications_endpoint_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.notifications_endpoint
    ADD CONSTRAINT notifications_endpoint_uuid_key UNIQUE (uuid);

ALTER TABLE ONLY public.notifications_finding
    ADD CONSTRAINT notifications_finding_key_key UNIQUE (key);

ALTER TABLE ONLY public.notifications_finding
    ADD CONSTRAINT notifications_finding_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.notifications_mail
    ADD CONSTRAINT notifications_mail_pkey PRIMARY KEY (notification_id);

ALTER TABLE ONLY public.notifications_message
    ADD CONSTRAINT notifications_message_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.notifications_message
    ADD CONSTRAINT notifications_message_uuid_key UNIQUE (uuid);

ALTER TABLE ONLY public.notifications_notification
    ADD CONSTRAINT notifications_notification_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.notifications_preference
    ADD CONSTRAINT notifications_preference_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_partition
    ADD CONSTRAINT partition_name_once UNIQUE (cluster_id, name);

ALTER TABLE ONLY public.pghistory_context
    ADD CONSTRAINT pghistory_context_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_policychoice
    ADD CONSTRAINT policy_choice_once UNIQUE (cluster_id, queue_id);

ALTER TABLE ONLY public.scheduler_policyfault
    ADD CONSTRAINT policy_fault_once UNIQUE (cluster_id, subject);

ALTER TABLE ONLY public.scheduler_runtimeprediction
    ADD CONSTRAINT prediction_once UNIQUE (user_id, name, cluster_id);

ALTER TABLE ONLY public.notifications_preference
    ADD CONSTRAINT preference_once UNIQUE (user_id, kind, channel);

ALTER TABLE ONLY public.quotas_pricerow
    ADD CONSTRAINT price_once UNIQUE (resource, gpu_model, valid_from);

ALTER TABLE ONLY public.scheduler_profileversion
    ADD CONSTRAINT profile_version_once UNIQUE (profile_id, number);

ALTER TABLE ONLY public.quotas_quota
    ADD CONSTRAINT quota_line_once UNIQUE NULLS NOT DISTINCT (project_id, organization_id, user_id, resource, gpu_model, job_type);

ALTER TABLE ONLY public.quotas_alert
    ADD CONSTRAINT quotas_alert_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.quotas_budget
    ADD CONSTRAINT quotas_budget_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.quotas_budgetevent
    ADD CONSTRAINT quotas_budgetevent_pkey PRIMARY KEY (pgh_id);

ALTER TABLE ONLY public.quotas_budgetperiod
    ADD CONSTRAINT quotas_budgetperiod_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.quotas_driftfinding
    ADD CONSTRAINT quotas_driftfinding_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.quotas_fairsharerules
    ADD CONSTRAINT quotas_fairsharerules_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.quotas_grant
    ADD CONSTRAINT quotas_grant_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.quotas_grantevent
    ADD CONSTRAINT quotas_grantevent_pkey PRIMARY KEY (pgh_id);

ALTER TABLE ONLY public.quotas_ledgerentry
    ADD CONSTRAINT quotas_ledgerentry_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.quotas_ledgerrollup
    ADD CONSTRAINT quotas_ledgerrollup_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.quotas_notice_alerts
    ADD CONSTRAINT quotas_notice_alerts_notice_id_alert_id_0dfd617e_uniq UNIQUE (notice_id, alert_id);

ALTER TABLE ONLY public.quotas_notice_alerts
    ADD CONSTRAINT quotas_notice_alerts_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.quotas_notice
    ADD CONSTRAINT quotas_notice_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.quotas_pricerow
    ADD CONSTRAINT quotas_pricerow_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.quotas_providerallocation
    ADD CONSTRAINT quotas_providerallocation_pkey PRIMARY KEY (attempt_id);

ALTER TABLE ONLY public.quotas_providercircuit
    ADD CONSTRAINT quotas_providercircuit_pkey PRIMARY KEY (provider);

ALTER TABLE ONLY public.quotas_providerstate
    ADD CONSTRAINT quotas_providerstate_pkey PRIMARY KEY (project_id);

ALTER TABLE ONLY public.quotas_quota
    ADD CONSTRAINT quotas_quota_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.quotas_quotaevent
    ADD CONSTRAINT quotas_quotaevent_pkey PRIMARY KEY (pgh_id);

ALTER TABLE ONLY public.quotas_refusedstart
    ADD CONSTRAINT quotas_refusedstart_pkey PRIMARY KEY (job_number);

ALTER TABLE ONLY public.quotas_shareusage
    ADD CONSTRAINT quotas_shareusage_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_reservationpart
    ADD CONSTRAINT reservation_part_once UNIQUE (reservation_id, node_id);

ALTER TABLE ONLY public.scheduler_artifact
    ADD CONSTRAINT scheduler_artifact_key_key UNIQUE (key);

ALTER TABLE ONLY public.scheduler_artifact
    ADD CONSTRAINT scheduler_artifact_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_artifactupload
    ADD CONSTRAINT scheduler_artifactupload_pkey PRIMARY KEY (id);

ALTER TABLE public.scheduler_attempt
    ADD CONSTRAINT scheduler_attempt_cycle_id_check CHECK ((cycle_id >= 0)) NOT VALID;

ALTER TABLE ONLY public.scheduler_attempt
    ADD CONSTRAINT scheduler_attempt_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_attemptusage
    ADD CONSTRAINT scheduler_attemptusage_pkey PRIMARY KEY (attempt_id);

ALTER TABLE ONLY public.scheduler_changedjob
    ADD CONSTRAINT scheduler_changedjob_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_checkpoint
    ADD CONSTRAINT scheduler_checkpoint_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_cluster
    ADD CONSTRAINT scheduler_cluster_backend_key_key UNIQUE (backend_key);

ALTER TABLE ONLY public.scheduler_cluster
    ADD CONSTRAINT scheduler_cluster_name_key UNIQUE (name);

ALTER TABLE ONLY public.scheduler_cluster
    ADD CONSTRAINT scheduler_cluster_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_cluster
    ADD CONSTRAINT scheduler_cluster_slug_key UNIQUE (slug);

ALTER TABLE ONLY public.scheduler_clusterevent
    ADD CONSTRAINT scheduler_clusterevent_pkey PRIMARY KEY (pgh_id);

ALTER TABLE ONLY public.scheduler_cycle
    ADD CONSTRAINT scheduler_cycle_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_dataset
    ADD CONSTRAINT scheduler_dataset_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_device
    ADD CONSTRAINT scheduler_device_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_elementend
    ADD CONSTRAINT scheduler_elementend_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_fairqueueturn
    ADD CONSTRAINT scheduler_fairqueueturn_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_folderupload
    ADD CONSTRAINT scheduler_folderupload_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_forecastoutcome
    ADD CONSTRAINT scheduler_forecastoutcome_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_forecastrun
    ADD CONSTRAINT scheduler_forecastrun_pkey PRIMARY KEY (cluster_id);

ALTER TABLE ONLY public.scheduler_idempotencykey
    ADD CONSTRAINT scheduler_idempotencykey_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_job
    ADD CONSTRAINT scheduler_job_pkey PRIMARY KEY (number);

ALTER TABLE ONLY public.scheduler_jobdependency
    ADD CONSTRAINT scheduler_jobdependency_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_jobelements
    ADD CONSTRAINT scheduler_jobelements_pkey PRIMARY KEY (job_id);

ALTER TABLE ONLY public.scheduler_jobevent
    ADD CONSTRAINT scheduler_jobevent_pkey PRIMARY KEY (job_id, id);

ALTER TABLE ONLY public.scheduler_jobmove
    ADD CONSTRAINT scheduler_jobmove_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_jobname
    ADD CONSTRAINT scheduler_jobname_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_jobrequest
    ADD CONSTRAINT scheduler_jobrequest_pkey PRIMARY KEY (number);

ALTER TABLE ONLY public.scheduler_jobrequest
    ADD CONSTRAINT scheduler_jobrequest_uuid_key UNIQUE (uuid);

ALTER TABLE ONLY public.scheduler_jointoken
    ADD CONSTRAINT scheduler_jointoken_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_jointoken
    ADD CONSTRAINT scheduler_jointoken_prefix_key UNIQUE (prefix);

ALTER TABLE ONLY public.scheduler_keptresult
    ADD CONSTRAINT scheduler_keptresult_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_lease
    ADD CONSTRAINT scheduler_lease_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_lease
    ADD CONSTRAINT scheduler_lease_scope_key UNIQUE (scope);

ALTER TABLE ONLY public.scheduler_logchunk
    ADD CONSTRAINT scheduler_logchunk_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_metriccount
    ADD CONSTRAINT scheduler_metriccount_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_metriccursor
    ADD CONSTRAINT scheduler_metriccursor_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_metriccursor
    ADD CONSTRAINT scheduler_metriccursor_source_key UNIQUE (source);

ALTER TABLE ONLY public.scheduler_node_partitions
    ADD CONSTRAINT scheduler_node_partitions_node_id_partition_id_3ea76f74_uniq UNIQUE (node_id, partition_id);

ALTER TABLE ONLY public.scheduler_node_partitions
    ADD CONSTRAINT scheduler_node_partitions_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_node
    ADD CONSTRAINT scheduler_node_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_nodeheartbeat
    ADD CONSTRAINT scheduler_nodeheartbeat_pkey PRIMARY KEY (node_id);

ALTER TABLE ONLY public.scheduler_nodenamecordoneddrainingdrainreasondrainedbylabeled01
    ADD CONSTRAINT scheduler_nodenamecordoneddrainingdrainreasondrainedbylabe_pkey PRIMARY KEY (pgh_id);

ALTER TABLE ONLY public.scheduler_nodeoutage
    ADD CONSTRAINT scheduler_nodeoutage_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_nodescore
    ADD CONSTRAINT scheduler_nodescore_pkey PRIMARY KEY (node_id);

ALTER TABLE ONLY public.scheduler_partition
    ADD CONSTRAINT scheduler_partition_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_partitionevent
    ADD CONSTRAINT scheduler_partitionevent_pkey PRIMARY KEY (pgh_id);

ALTER TABLE ONLY public.scheduler_policychoice
    ADD CONSTRAINT scheduler_policychoice_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_policyfault
    ADD CONSTRAINT scheduler_policyfault_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_predictionaccuracy
    ADD CONSTRAINT scheduler_predictionaccuracy_pkey PRIMARY KEY (cluster_id);

ALTER TABLE ONLY public.scheduler_priorityclass_preempts
    ADD CONSTRAINT scheduler_priorityclass__from_priorityclass_id_to_067e68b9_uniq UNIQUE (from_priorityclass_id, to_priorityclass_id);

ALTER TABLE ONLY public.scheduler_priorityclass
    ADD CONSTRAINT scheduler_priorityclass_name_key UNIQUE (name);

ALTER TABLE ONLY public.scheduler_priorityclass
    ADD CONSTRAINT scheduler_priorityclass_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_priorityclass_preempts
    ADD CONSTRAINT scheduler_priorityclass_preempts_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_priorityclass
    ADD CONSTRAINT scheduler_priorityclass_value_key UNIQUE (value);

ALTER TABLE ONLY public.scheduler_priorityclassevent
    ADD CONSTRAINT scheduler_priorityclassevent_pkey PRIMARY KEY (pgh_id);

ALTER TABLE ONLY public.scheduler_profileversion
    ADD CONSTRAINT scheduler_profileversion_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_queue_partitions
    ADD CONSTRAINT scheduler_queue_partitions_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_queue_partitions
    ADD CONSTRAINT scheduler_queue_partitions_queue_id_partition_id_05c6993b_uniq UNIQUE (queue_id, partition_id);

ALTER TABLE ONLY public.scheduler_queue
    ADD CONSTRAINT scheduler_queue_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_queue
    ADD CONSTRAINT scheduler_queue_slug_key UNIQUE (slug);

ALTER TABLE ONLY public.scheduler_queueevent
    ADD CONSTRAINT scheduler_queueevent_pkey PRIMARY KEY (pgh_id);

ALTER TABLE ONLY public.scheduler_reservation_nodes
    ADD CONSTRAINT scheduler_reservation_no_reservation_id_node_id_385bea0f_uniq UNIQUE (reservation_id, node_id);

ALTER TABLE ONLY public.scheduler_reservation_nodes
    ADD CONSTRAINT scheduler_reservation_nodes_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_reservation
    ADD CONSTRAINT scheduler_reservation_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_reservation_users
    ADD CONSTRAINT scheduler_reservation_us_reservation_id_user_id_f7935630_uniq UNIQUE (reservation_id, user_id);

ALTER TABLE ONLY public.scheduler_reservation_users
    ADD CONSTRAINT scheduler_reservation_users_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_reservation
    ADD CONSTRAINT scheduler_reservation_uuid_key UNIQUE (uuid);

ALTER TABLE ONLY public.scheduler_reservationevent
    ADD CONSTRAINT scheduler_reservationevent_pkey PRIMARY KEY (pgh_id);

ALTER TABLE ONLY public.scheduler_reservationpart
    ADD CONSTRAINT scheduler_reservationpart_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_retentionrun
    ADD CONSTRAINT scheduler_retentionrun_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_runtimeprediction
    ADD CONSTRAINT scheduler_runtimeprediction_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_schedulerprofile
    ADD CONSTRAINT scheduler_schedulerprofile_name_key UNIQUE (name);

ALTER TABLE ONLY public.scheduler_schedulerprofile
    ADD CONSTRAINT scheduler_schedulerprofile_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_schedulerprofileevent
    ADD CONSTRAINT scheduler_schedulerprofileevent_pkey PRIMARY KEY (pgh_id);

ALTER TABLE ONLY public.scheduler_shadowcycle
    ADD CONSTRAINT scheduler_shadowcycle_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_shadowjob
    ADD CONSTRAINT scheduler_shadowjob_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_shadowrun
    ADD CONSTRAINT scheduler_shadowrun_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_startforecast
    ADD CONSTRAINT scheduler_startforecast_pkey PRIMARY KEY (job_id);

ALTER TABLE ONLY public.scheduler_suspension
    ADD CONSTRAINT scheduler_suspension_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_task
    ADD CONSTRAINT scheduler_task_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_unfinishedjob
    ADD CONSTRAINT scheduler_unfinishedjob_pkey PRIMARY KEY (queue_id, number);

ALTER TABLE ONLY public.scheduler_unknowntask
    ADD CONSTRAINT scheduler_unknowntask_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.scheduler_shadowcycle
    ADD CONSTRAINT shadow_cycle_once UNIQUE (run_id, cycle);

ALTER TABLE ONLY public.scheduler_shadowjob
    ADD CONSTRAINT shadow_job_once UNIQUE (run_id, job);

ALTER TABLE ONLY public.quotas_shareusage
    ADD CONSTRAINT share_slice_once UNIQUE (project_id, user_id, starts_at);

ALTER TABLE ONLY public.scheduler_task
    ADD CONSTRAINT task_rank_once UNIQUE (attempt_id, rank);

ALTER TABLE ONLY public.scheduler_unknowntask
    ADD CONSTRAINT unknown_task_once UNIQUE (node_id, task, epoch);

CREATE INDEX accounts_apitoken_prefix_8b81ac32_like ON public.accounts_apitoken USING btree (prefix varchar_pattern_ops);

CREATE INDEX accounts_apitoken_project_id_16ebf865 ON public.accounts_apitoken USING btree (project_id);

CREATE INDEX accounts_apitoken_user_id_bbee13e0 ON public.accounts_apitoken USING btree (user_id);

CREATE INDEX accounts_auditevent_project_id_c9e05770 ON public.accounts_auditevent USING btree (project_id);

CREATE INDEX accounts_membership_project_id_e3530d11 ON public.accounts_membership USING btree (project_id);

CREATE INDEX accounts_membership_user_id_487fb39e ON public.accounts_membership USING btree (user_id);

CREATE INDEX accounts_membershipevent_pgh_context_id_31df8159 ON public.accounts_membershipevent USING btree (pgh_context_id);

CREATE INDEX accounts_membershipevent_pgh_obj_id_8231a68b ON public.accounts_membershipevent USING btree (pgh_obj_id);

CREATE INDEX accounts_membershipevent_project_id_0eb8b7c9 ON public.accounts_membershipevent USING btree (project_id);

CREATE INDEX accounts_membershipevent_user_id_165d49f9 ON public.accounts_membershipevent USING btree (user_id);

CREATE INDEX accounts_organization_parent_id_fe6d2ff2 ON public.accounts_organization USING btree (parent_id);

CREATE INDEX accounts_organization_slug_d6ef85ac_like ON public.accounts_organization USING btree (slug varchar_pattern_ops);

CREATE INDEX accounts_organizationevent_parent_id_7230e7bf ON public.accounts_organizationevent USING btree (parent_id);

CREATE INDEX accounts_organizationevent_pgh_context_id_19b6352a ON public.accounts_organizationevent USING btree (pgh_context_id);

CREATE INDEX accounts_organizationevent_pgh_obj_id_a8b6121d ON public.accounts_organizationevent USING btree (pgh_obj_id);

CREATE INDEX accounts_project_organization_id_e10581a6 ON public.accounts_project USING btree (organization_id);

CREATE INDEX accounts_project_slug_955b1b53_like ON public.accounts_project USING btree (slug varchar_pattern_ops);

CREATE INDEX accounts_projectevent_organization_id_4a6eafb8 ON public.accounts_projectevent USING btree (organization_id);

CREATE INDEX accounts_projectevent_pgh_context_id_6646d19b ON public.accounts_projectevent USING btree (pgh_context_id);

CREATE INDEX accounts_projectevent_pgh_obj_id_18c76b48 ON public.accounts_projectevent USING btree (pgh_obj_id);

CREATE INDEX accounts_secret_project_id_c2c216d2 ON public.accounts_secret USING btree (project_id);

CREATE INDEX accounts_secret_set_by_id_0742756d ON public.accounts_secret USING btree (set_by_id);

CREATE INDEX accounts_secret_user_id_46eb1d40 ON public.accounts_secret USING btree (user_id);

CREATE INDEX accounts_signincount_key_2d52d92a_like ON public.accounts_signincount USING btree (key varchar_pattern_ops);

CREATE INDEX accounts_user_default_project_id_29956eeb ON public.accounts_user USING btree (default_project_id);

CREATE INDEX accounts_user_groups_group_id_bd11a704 ON public.accounts_user_groups USING btree (group_id);

CREATE INDEX accounts_user_groups_user_id_52b62117 ON public.accounts_user_groups USING btree (user_id);

CREATE INDEX accounts_user_user_permissions_permission_id_113bb443 ON public.accounts_user_user_permissions USING btree (permission_id);

CREATE INDEX accounts_user_user_permissions_user_id_e4f0a161 ON public.accounts_user_user_permissions USING btree (user_id);

CREATE INDEX accounts_user_username_6088629e_like ON public.accounts_user USING btree (username varchar_pattern_ops);

CREATE INDEX accounts_userevent_default_project_id_16f0126a ON public.accounts_userevent USING btree (default_project_id);

CREATE INDEX accounts_userevent_pgh_context_id_9043cf9a ON public.accounts_userevent USING btree (pgh_context_id);

CREATE INDEX accounts_userevent_pgh_obj_id_aa99e6a3 ON public.accounts_userevent USING btree (pgh_obj_id);

CREATE UNIQUE INDEX array_element_once ON public.scheduler_jobrequest USING btree (array_id, array_index) WHERE (array_id IS NOT NULL);

CREATE INDEX artifact_leaves ON public.scheduler_artifact USING btree (leaves_at) WHERE (leaves_at IS NOT NULL);

CREATE INDEX attempt_by_end ON public.scheduler_attempt USING brin (ended_at) WITH (autosummarize='on', pages_per_range='16');

CREATE INDEX attempt_failed_as ON public.scheduler_attempt USING btree (failure_class) WHERE (NOT ((failure_class)::text = ''::text));

CREATE INDEX attempt_interrupted ON public.scheduler_attempt USING btree (stop_asked_at) WHERE ((stop_reason)::text = ANY ((ARRAY['preempted'::character varying, 'evicted'::character varying, 'drained'::character varying])::text[]));

CREATE INDEX attempt_resized_for ON public.scheduler_attempt USING btree (resized_for) WHERE (resized_for IS NOT NULL);

CREATE INDEX attempt_stopped_for ON public.scheduler_attempt USING btree (stopped_for) WHERE (stopped_for IS NOT NULL);

CREATE INDEX audit_by_action ON public.accounts_auditevent USING btree (action, id DESC);

CREATE INDEX audit_by_actor ON public.accounts_auditevent USING btree (actor_id, id DESC);

CREATE INDEX audit_by_object ON public.accounts_auditevent USING btree (object_type, object_id, id DESC);

CREATE INDEX auth_group_name_a6ea08ec_like ON public.auth_group USING btree (name varchar_pattern_ops);

CREATE INDEX auth_group_permissions_group_id_b120cbf9 ON public.auth_group_permissions USING btree (group_id);

CREATE INDEX auth_group_permissions_permission_id_84c5c92e ON public.auth_group_permissions USING btree (permission_id);

CREATE INDEX auth_permission_content_type_id_2f476e4b ON public.auth_permission USING btree (content_type_id);

CREATE INDEX budget_period_by_end ON public.quotas_budgetperiod USING btree (ends_at);

CREATE INDEX checkpoint_to_watch ON public.scheduler_checkpoint USING btree (taken_at) WHERE ((state)::text = ANY ((ARRAY['storing'::character varying, 'complete'::character varying, 'leaving'::character varying])::text[]));

CREATE INDEX cycle_by_cluster ON public.scheduler_cycle USING btree (cluster_id, id DESC);

CREATE UNIQUE INDEX dependency_on_data_once ON public.scheduler_jobdependency USING btree (job_id, data, "group") WHERE (NOT ((data)::text = ''::text));

CREATE INDEX dependency_open_array ON public.scheduler_jobdependency USING btree (on_array) WHERE ((on_array IS NOT NULL) AND (satisfied IS NULL));

CREATE INDEX dependency_open_data ON public.scheduler_jobdependency USING btree (data) WHERE ((NOT ((data)::text = ''::text)) AND (satisfied IS NULL));

CREATE INDEX django_admin_log_content_type_id_c4bce8eb ON public.django_admin_log USING btree (content_type_id);

CREATE INDEX django_admin_log_user_id_c564eba6 ON public.django_admin_log USING btree (user_id);

CREATE INDEX django_celery_beat_periodictask_clocked_id_47a69f82 ON public.django_celery_beat_periodictask USING btree (clocked_id);

CREATE INDEX django_celery_beat_periodictask_crontab_id_d3cba168 ON public.django_celery_beat_periodictask USING btree (crontab_id);

CREATE INDEX django_celery_beat_periodictask_interval_id_a8ca27da ON public.django_celery_beat_periodictask USING btree (interval_id);

CREATE INDEX django_celery_beat_periodictask_name_265a36b7_like ON public.django_celery_beat_periodictask USING btree (name varchar_pattern_ops);

CREATE INDEX django_celery_beat_periodictask_solar_id_a87ce72c ON public.django_celery_beat_periodictask USING btree (solar_id);

CREATE INDEX django_session_expire_date_a5c62663 ON public.django_session USING btree (expire_date);

CREATE INDEX django_session_session_key_c0390e0f_like ON public.django_session USING btree (session_key varchar_pattern_ops);

CREATE INDEX event_by_id ON public.scheduler_jobevent USING brin (id) WITH (autosummarize='on', pages_per_range='16');

CREATE INDEX finding_by_age ON public.notifications_finding USING btree (at);

CREATE INDEX grant_open ON public.quotas_grant USING btree (state, starts_at) WHERE (NOT ((state)::text = ANY ((ARRAY['declined'::character varying, 'withdrawn'::character varying, 'ended'::character varying])::text[])));

CREATE INDEX idempotency_by_age ON public.scheduler_idempotencykey USING btree (created_at);

CREATE INDEX infra_circuit_name_5194ba2d_like ON public.infra_circuit USING btree (name varchar_pattern_ops);

CREATE INDEX job_gathering ON public.scheduler_job USING btree (queue_id, number) WHERE (assembly_until_at IS NOT NULL);

CREATE INDEX job_name_by_part ON public.scheduler_jobname USING gin (upper((name)::text) public.gin_trgm_ops);

CREATE INDEX job_to_check ON public.scheduler_job USING btree (check_at) WHERE (check_at IS NOT NULL);

CREATE INDEX job_unsuccessful ON public.scheduler_job USING btree (unsuccessful, number) WHERE (unsuccessful IS NOT NULL);

CREATE INDEX jobs_of_project ON public.scheduler_job USING btree (project_id, number, unsuccessful);

CREATE INDEX jobs_of_queue ON public.scheduler_job USING btree (queue_id, number, unsuccessful);

CREATE INDEX jobs_of_user ON public.scheduler_job USING btree (user_id, number, unsuccessful);

CREATE INDEX kept_on_node ON public.scheduler_keptresult USING btree (node_id, job_id) WHERE (left_at IS NULL);

CREATE INDEX ledger_by_job ON public.quotas_ledgerentry USING btree (job_number);

CREATE INDEX ledger_by_project ON public.quotas_ledgerentry USING btree (project_id, starts_at);

CREATE INDEX ledger_by_roll_up ON public.quotas_ledgerentry USING btree (roll_up_id) WHERE (roll_up_id IS NOT NULL);

CREATE INDEX ledger_by_time ON public.quotas_ledgerentry USING brin (starts_at) WITH (pages_per_range='16');

CREATE INDEX ledger_by_user ON public.quotas_ledgerentry USING btree (user_id, starts_at);

CREATE INDEX mail_due ON public.notifications_mail USING btree (due_at) WHERE ((state)::text = 'pending'::text);

CREATE INDEX membership_weighed ON public.accounts_membership USING btree (project_id) WHERE (NOT (share_weight = 1));

CREATE INDEX message_by_age ON public.notifications_message USING btree (created_at);

CREATE INDEX message_by_endpoint ON public.notifications_message USING btree (endpoint_id, id DESC);

CREATE INDEX message_due ON public.notifications_message USING btree (due_at) WHERE ((state)::text = 'pending'::text);

CREATE INDEX move_of_job ON public.scheduler_jobmove USING btree (job_id, id DESC);

CREATE UNIQUE INDEX move_one_open ON public.scheduler_jobmove USING btree (job_id) WHERE (ended_at IS NULL);

CREATE INDEX notice_unread ON public.quotas_notice USING btree (user_id) WHERE (read_at IS NULL);

CREATE INDEX notification_by_age ON public.notifications_notification USING btree (last_at);

CREATE INDEX notification_by_user ON public.notifications_notification USING btree (user_id, id DESC) WHERE in_portal;

CREATE INDEX notification_unread ON public.notifications_notification USING btree (user_id) WHERE (in_portal AND (read_at IS NULL));

CREATE INDEX notifications_cursor_source_4d06e463_like ON public.notifications_cursor USING btree (source varchar_pattern_ops);

CREATE INDEX notifications_endpoint_project_id_f2c66618 ON public.notifications_endpoint USING btree (project_id);

CREATE INDEX notifications_endpoint_user_id_e5ae0cfc ON public.notifications_endpoint USING btree (user_id);

CREATE INDEX notifications_finding_key_866c94f2_like ON public.notifications_finding USING btree (key varchar_pattern_ops);

CREATE INDEX outcome_by_start ON public.scheduler_forecastoutcome USING btree (cluster_id, started_at DESC);

CREATE INDEX preference_on ON public.notifications_preference USING btree (kind, user_id) WHERE "on";

CREATE INDEX project_share_limited ON public.accounts_project USING btree (organization_id) WHERE ((share_soft_percent IS NOT NULL) OR (share_hard_percent IS NOT NULL));

CREATE INDEX provider_allocation_due ON public.quotas_providerallocation USING btree (next_try_at) WHERE (next_try_at IS NOT NULL);

CREATE INDEX provider_allocation_open ON public.quotas_providerallocation USING btree (attempt_id) WHERE ((ended_at IS NULL) AND ((state)::text = ANY ((ARRAY['asked'::character varying, 'held'::character varying, 'refused'::character varying])::text[])));

CREATE UNIQUE INDEX queue_one_default ON public.scheduler_queue USING btree (cluster_id) WHERE is_default;

CREATE INDEX quotas_alert_organization_id_0b1dc11f ON public.quotas_alert USING btree (organization_id);

CREATE INDEX quotas_alert_project_id_2d586e53 ON public.quotas_alert USING btree (project_id);

CREATE INDEX quotas_budget_organization_id_d1ff7247 ON public.quotas_budget USING btree (organization_id);

CREATE INDEX quotas_budget_project_id_a1502ff6 ON public.quotas_budget USING btree (project_id);

CREATE INDEX quotas_budgetevent_organization_id_9173860c ON public.quotas_budgetevent USING btree (organization_id);

CREATE INDEX quotas_budgetevent_pgh_context_id_a06d9fd8 ON public.quotas_budgetevent USING btree (pgh_context_id);

CREATE INDEX quotas_budgetevent_pgh_obj_id_4bdcf579 ON public.quotas_budgetevent USING btree (pgh_obj_id);

CREATE INDEX quotas_budgetevent_project_id_fdcc0db8 ON public.quotas_budgetevent USING btree (project_id);

CREATE INDEX quotas_driftfinding_found_at_a3a25041 ON public.quotas_driftfinding USING btree (found_at);

CREATE INDEX quotas_driftfinding_project_id_6fb49a7b ON public.quotas_driftfinding USING btree (project_id);

CREATE INDEX quotas_grant_asked_by_id_1a23a90f ON public.quotas_grant USING btree (asked_by_id);

CREATE INDEX quotas_grant_budget_id_e8455075 ON public.quotas_grant USING btree (budget_id);

CREATE INDEX quotas_grant_decided_by_id_f3c1229f ON public.quotas_grant USING btree (decided_by_id);

CREATE INDEX quotas_grant_project_id_bb19f46f ON public.quotas_grant USING btree (project_id);

CREATE INDEX quotas_grant_renews_id_6aa927c5 ON public.quotas_grant USING btree (renews_id);

CREATE INDEX quotas_grant_seconded_by_id_0d3c1c52 ON public.quotas_grant USING btree (seconded_by_id);

CREATE INDEX quotas_grantevent_asked_by_id_f143a779 ON public.quotas_grantevent USING btree (asked_by_id);

CREATE INDEX quotas_grantevent_budget_id_bfa63068 ON public.quotas_grantevent USING btree (budget_id);

CREATE INDEX quotas_grantevent_decided_by_id_ebd9a01d ON public.quotas_grantevent USING btree (decided_by_id);

CREATE INDEX quotas_grantevent_pgh_context_id_fec26d2d ON public.quotas_grantevent USING btree (pgh_context_id);

CREATE INDEX quotas_grantevent_pgh_obj_id_62a122f6 ON public.quotas_grantevent USING btree (pgh_obj_id);

CREATE INDEX quotas_grantevent_project_id_dc567fd3 ON public.quotas_grantevent USING btree (project_id);

CREATE INDEX quotas_grantevent_renews_id_47c60a01 ON public.quotas_grantevent USING btree (renews_id);

CREATE INDEX quotas_grantevent_seconded_by_id_5f57055b ON public.quotas_grantevent USING btree (seconded_by_id);

CREATE INDEX quotas_notice_alerts_alert_id_fd24a49e ON public.quotas_notice_alerts USING btree (alert_id);

CREATE INDEX quotas_notice_alerts_notice_id_30ff5c39 ON public.quotas_notice_alerts USING btree (notice_id);

CREATE INDEX quotas_notice_user_id_09a578e5 ON public.quotas_notice USING btree (user_id);

CREATE INDEX quotas_providerallocation_project_id_a0f7323e ON public.quotas_providerallocation USING btree (project_id);

CREATE INDEX quotas_providercircuit_provider_1065cd3e_like ON public.quotas_providercircuit USING btree (provider varchar_pattern_ops);

CREATE INDEX quotas_quota_organization_id_5df9b129 ON public.quotas_quota USING btree (organization_id);

CREATE INDEX quotas_quota_project_id_0cc09c1a ON public.quotas_quota USING btree (project_id);

CREATE INDEX quotas_quota_user_id_2619c9cb ON public.quotas_quota USING btree (user_id);

CREATE INDEX quotas_quotaevent_organization_id_3c19e738 ON public.quotas_quotaevent USING btree (organization_id);

CREATE INDEX quotas_quotaevent_pgh_context_id_38e9685c ON public.quotas_quotaevent USING btree (pgh_context_id);

CREATE INDEX quotas_quotaevent_pgh_obj_id_519773ff ON public.quotas_quotaevent USING btree (pgh_obj_id);

CREATE INDEX quotas_quotaevent_project_id_794b44c8 ON public.quotas_quotaevent USING btree (project_id);

CREATE INDEX quotas_quotaevent_user_id_a4869d03 ON public.quotas_quotaevent USING btree (user_id);

CREATE INDEX quotas_refusedstart_project_id_310279ea ON public.quotas_refusedstart USING btree (project_id);

CREATE INDEX quotas_shareusage_project_id_0d5ad3db ON public.quotas_shareusage USING btree (project_id);

CREATE INDEX refused_start_until ON public.quotas_refusedstart USING btree (until);

CREATE INDEX request_by_deadline ON public.scheduler_jobrequest USING btree (deadline_at) WHERE (deadline_at IS NOT NULL);

CREATE INDEX request_by_gpu_model ON public.scheduler_jobrequest USING btree (upper((gpu_model)::text), number DESC) WHERE (NOT ((gpu_model)::text = ''::text));

CREATE INDEX request_by_label ON public.scheduler_jobrequest USING gin (labels) WHERE (NOT (labels = '{}'::jsonb));

CREATE INDEX request_by_type ON public.scheduler_jobrequest USING btree (job_type, number DESC) WHERE (NOT ((job_type)::text = 'batch'::text));

CREATE INDEX request_by_upload ON public.scheduler_jobrequest USING btree (upload) WHERE (upload IS NOT NULL);

CREATE INDEX request_by_whole_name ON public.scheduler_jobrequest USING btree (hashtext((name)::text));

CREATE INDEX request_in_array ON public.scheduler_jobrequest USING btree (array_number, array_index) WHERE (array_number IS NOT NULL);

CREATE INDEX request_in_reservation ON public.scheduler_jobrequest USING btree (reservation_id, number DESC) WHERE (reservation_id IS NOT NULL);

CREATE INDEX request_waits_until ON public.scheduler_jobrequest USING btree (depends_until_at) WHERE (depends_until_at IS NOT NULL);

CREATE INDEX requests_by_age ON public.scheduler_jobrequest USING btree (created_at, number);

CREATE INDEX retention_run_by_age ON public.scheduler_retentionrun USING btree (started_at);

CREATE INDEX scheduler_artifact_key_d56a4881_like ON public.scheduler_artifact USING btree (key varchar_pattern_ops);

CREATE INDEX scheduler_cluster_name_0993d6f4_like ON public.scheduler_cluster USING btree (name varchar_pattern_ops);

CREATE INDEX scheduler_cluster_profile_id_a1ae8554 ON public.scheduler_cluster USING btree (profile_id);

CREATE INDEX scheduler_cluster_slug_1f044174_like ON public.scheduler_cluster USING btree (slug varchar_pattern_ops);

CREATE INDEX scheduler_clusterevent_pgh_context_id_450ec8dc ON public.scheduler_clusterevent USING btree (pgh_context_id);

CREATE INDEX scheduler_clusterevent_pgh_obj_id_6c23971a ON public.scheduler_clusterevent USING btree (pgh_obj_id);

CREATE INDEX scheduler_clusterevent_profile_id_97aca37e ON public.scheduler_clusterevent USING btree (profile_id);

CREATE INDEX scheduler_cycle_cluster_id_76507646 ON public.scheduler_cycle USING btree (cluster_id);

CREATE INDEX scheduler_dataset_declared_by_id_c42331bd ON public.scheduler_dataset USING btree (declared_by_id);

CREATE INDEX scheduler_dataset_project_id_f5a1a71c ON public.scheduler_dataset USING btree (project_id);

CREATE INDEX scheduler_device_node_id_fbcee070 ON public.scheduler_device USING btree (node_id);

CREATE INDEX scheduler_folderupload_user_id_3535a533 ON public.scheduler_folderupload USING btree (user_id);

CREATE INDEX scheduler_idempotencykey_user_id_7a69afd3 ON public.scheduler_idempotencykey USING btree (user_id);

CREATE INDEX scheduler_jobdependency_on_id_456fb793 ON public.scheduler_jobdependency USING btree (on_id);

CREATE INDEX scheduler_jointoken_cluster_id_3004864a ON public.scheduler_jointoken USING btree (cluster_id);

CREATE INDEX scheduler_jointoken_prefix_f3dbc1a8_like ON public.scheduler_jointoken USING btree (prefix varchar_pattern_ops);

CREATE INDEX scheduler_lease_scope_8875de95_like ON public.scheduler_lease USING btree (scope varchar_pattern_ops);

CREATE INDEX scheduler_metriccursor_source_b1be7c91_like ON public.scheduler_metriccursor USING btree (source varchar_pattern_ops);

CREATE INDEX scheduler_node_agent_key_prefix_858ae398 ON public.scheduler_node USING btree (agent_key_prefix);

CREATE INDEX scheduler_node_agent_key_prefix_858ae398_like ON public.scheduler_node USING btree (agent_key_prefix varchar_pattern_ops);

CREATE INDEX scheduler_node_cluster_id_5b5a025d ON public.scheduler_node USING btree (cluster_id);

CREATE INDEX scheduler_node_partitions_node_id_e5fdc740 ON public.scheduler_node_partitions USING btree (node_id);

CREATE INDEX scheduler_node_partitions_partition_id_7438e75e ON public.scheduler_node_partitions USING btree (partition_id);

CREATE INDEX scheduler_nodenamecordoned_pgh_context_id_fe9bdbef ON public.scheduler_nodenamecordoneddrainingdrainreasondrainedbylabeled01 USING btree (pgh_context_id);

CREATE INDEX scheduler_nodenamecordoned_pgh_obj_id_ef3557c2 ON public.scheduler_nodenamecordoneddrainingdrainreasondrainedbylabeled01 USING btree (pgh_obj_id);

CREATE INDEX scheduler_nodeoutage_node_id_603570e8 ON public.scheduler_nodeoutage USING btree (node_id);

CREATE INDEX scheduler_partition_cluster_id_d7f94248 ON public.scheduler_partition USING btree (cluster_id);

CREATE INDEX scheduler_partitionevent_cluster_id_50ebbefd ON public.scheduler_partitionevent USING btree (cluster_id);

CREATE INDEX scheduler_partitionevent_pgh_context_id_d129d231 ON public.scheduler_partitionevent USING btree (pgh_context_id);

CREATE INDEX scheduler_partitionevent_pgh_obj_id_0e4b7285 ON public.scheduler_partitionevent USING btree (pgh_obj_id);

CREATE INDEX scheduler_priorityclass_name_2bafc939_like ON public.scheduler_priorityclass USING btree (name varchar_pattern_ops);

CREATE INDEX scheduler_priorityclass_preempts_from_priorityclass_id_0ab6142b ON public.scheduler_priorityclass_preempts USING btree (from_priorityclass_id);

CREATE INDEX scheduler_priorityclass_preempts_to_priorityclass_id_961151ef ON public.scheduler_priorityclass_preempts USING btree (to_priorityclass_id);

CREATE INDEX scheduler_priorityclassevent_pgh_context_id_4f0cd156 ON public.scheduler_priorityclassevent USING btree (pgh_context_id);

CREATE INDEX scheduler_priorityclassevent_pgh_obj_id_e5cd6d84 ON public.scheduler_priorityclassevent USING btree (pgh_obj_id);

CREATE INDEX scheduler_queue_cluster_id_88622e40 ON public.scheduler_queue USING btree (cluster_id);

CREATE INDEX scheduler_queue_partitions_partition_id_aa218b3b ON public.scheduler_queue_partitions USING btree (partition_id);

CREATE INDEX scheduler_queue_partitions_queue_id_5b80b9b1 ON public.scheduler_queue_partitions USING btree (queue_id);

CREATE INDEX scheduler_queue_profile_id_3abc6989 ON public.scheduler_queue USING btree (profile_id);

CREATE INDEX scheduler_queue_project_id_893723a7 ON public.scheduler_queue USING btree (project_id);

CREATE INDEX scheduler_queue_slug_631a3633_like ON public.scheduler_queue USING btree (slug varchar_pattern_ops);

CREATE INDEX scheduler_queueevent_cluster_id_c139b9e7 ON public.scheduler_queueevent USING btree (cluster_id);

CREATE INDEX scheduler_queueevent_pgh_context_id_09c1059a ON public.scheduler_queueevent USING btree (pgh_context_id);

CREATE INDEX scheduler_queueevent_pgh_obj_id_4f03e94f ON public.scheduler_queueevent USING btree (pgh_obj_id);

CREATE INDEX scheduler_queueevent_profile_id_3a9e7588 ON public.scheduler_queueevent USING btree (profile_id);

CREATE INDEX scheduler_queueevent_project_id_3a57653a ON public.scheduler_queueevent USING btree (project_id);

CREATE INDEX scheduler_reservation_cluster_id_b4482f37 ON public.scheduler_reservation USING btree (cluster_id);

CREATE INDEX scheduler_reservation_created_by_id_0223232b ON public.scheduler_reservation USING btree (created_by_id);

CREATE INDEX scheduler_reservation_decided_by_id_410637e3 ON public.scheduler_reservation USING btree (decided_by_id);

CREATE INDEX scheduler_reservation_job_id_d7bebc45 ON public.scheduler_reservation USING btree (job_id);

CREATE INDEX scheduler_reservation_nodes_node_id_734168f5 ON public.scheduler_reservation_nodes USING btree (node_id);

CREATE INDEX scheduler_reservation_nodes_reservation_id_b1d732b4 ON public.scheduler_reservation_nodes USING btree (reservation_id);

CREATE INDEX scheduler_reservation_project_id_87a1e240 ON public.scheduler_reservation USING btree (project_id);

CREATE INDEX scheduler_reservation_users_reservation_id_26a5a911 ON public.scheduler_reservation_users USING btree (reservation_id);

CREATE INDEX scheduler_reservation_users_user_id_13ce9d86 ON public.scheduler_reservation_users USING btree (user_id);

CREATE INDEX scheduler_reservationevent_cluster_id_b2e52057 ON public.scheduler_reservationevent USING btree (cluster_id);

CREATE INDEX scheduler_reservationevent_created_by_id_7f310a1b ON public.scheduler_reservationevent USING btree (created_by_id);

CREATE INDEX scheduler_reservationevent_decided_by_id_afddc4c6 ON public.scheduler_reservationevent USING btree (decided_by_id);

CREATE INDEX scheduler_reservationevent_job_id_d23183b5 ON public.scheduler_reservationevent USING btree (job_id);

CREATE INDEX scheduler_reservationevent_pgh_context_id_7e5a0da9 ON public.scheduler_reservationevent USING btree (pgh_context_id);

CREATE INDEX scheduler_reservationevent_pgh_obj_id_75050c96 ON public.scheduler_reservationevent USING btree (pgh_obj_id);

CREATE INDEX scheduler_reservationevent_project_id_01d349df ON public.scheduler_reservationevent USING btree (project_id);

CREATE INDEX scheduler_reservationpart_node_id_f6fd32a5 ON public.scheduler_reservationpart USING btree (node_id);

CREATE INDEX scheduler_reservationpart_reservation_id_03045f00 ON public.scheduler_reservationpart USING btree (reservation_id);

CREATE INDEX scheduler_schedulerprofile_name_c19df6f3_like ON public.scheduler_schedulerprofile USING btree (name varchar_pattern_ops);

CREATE INDEX scheduler_schedulerprofileevent_pgh_context_id_8400483a ON public.scheduler_schedulerprofileevent USING btree (pgh_context_id);

CREATE INDEX scheduler_schedulerprofileevent_pgh_obj_id_d6a40e02 ON public.scheduler_schedulerprofileevent USING btree (pgh_obj_id);

CREATE INDEX scheduler_suspension_attempt_id_e8aa7880 ON public.scheduler_suspension USING btree (attempt_id);

CREATE UNIQUE INDEX secret_once_a_person ON public.accounts_secret USING btree (user_id, name) WHERE (user_id IS NOT NULL);

CREATE UNIQUE INDEX secret_once_a_project ON public.accounts_secret USING btree (project_id, name) WHERE (project_id IS NOT NULL);

CREATE UNIQUE INDEX shadow_one_running ON public.scheduler_shadowrun USING btree (cluster_id) WHERE ((state)::text = 'running'::text);

CREATE INDEX share_slice_by_time ON public.quotas_shareusage USING btree (starts_at);

CREATE INDEX sign_in_count_by_age ON public.accounts_signincount USING btree (last_at);

CREATE INDEX suspension_asked ON public.scheduler_suspension USING btree (asked_at);

CREATE UNIQUE INDEX suspension_one_open ON public.scheduler_suspension USING btree (attempt_id) WHERE ((ends_at IS NULL) AND (starts_at IS NOT NULL));

CREATE INDEX task_held_on_node ON public.scheduler_task USING btree (node_id) WHERE (released_at IS NULL);

CREATE INDEX upload_to_watch ON public.scheduler_folderupload USING btree (seen_at) WHERE ((state)::text = ANY ((ARRAY['receiving'::character varying, 'ready'::character varying, 'leaving'::character varying])::text[]));

CREATE INDEX upload_waits ON public.scheduler_artifactupload USING btree (next_try_at) WHERE ((state)::text = 'waiting'::text);

CREATE STATISTICS public.request_upper_name ON upper(name::text) FROM public.scheduler_jobrequest;
ALTER STATISTICS public.request_upper_name SET STATISTICS 500;

CREATE TRIGGER allocation_added INSTEAD OF INSERT ON public.scheduler_allocation FOR EACH ROW EXECUTE FUNCTION public.scheduler_allocation_added();

CREATE TRIGGER attempt_one_live AFTER INSERT ON public.scheduler_attempt REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_attempt_one_live();

CREATE TRIGGER attempt_stays_over AFTER UPDATE OF state, job_id ON public.scheduler_attempt FOR EACH ROW WHEN ((new.is_live AND ((NOT old.is_live) OR (new.job_id <> old.job_id)))) EXECUTE FUNCTION public.scheduler_attempt_stays_over();

CREATE TRIGGER job_changed AFTER UPDATE OF state, epoch, generation, queue_id, project_id, user_id, boost, boost_until_at, eligible_at, assembly_until_at, assemblies_failed, move_terms, relaxed ON public.scheduler_job FOR EACH ROW WHEN ((((old.state)::text = ANY ((ARRAY['queued'::character varying, 'reserved'::character varying])::text[])) OR ((new.state)::text = ANY ((ARRAY['queued'::character varying, 'reserved'::character varying])::text[])))) EXECUTE FUNCTION public.muster_job_changed();

CREATE TRIGGER job_gone AFTER DELETE ON public.scheduler_job FOR EACH ROW WHEN (((old.state)::text = ANY ((ARRAY['queued'::character varying, 'reserved'::character varying])::text[]))) EXECUTE FUNCTION public.muster_job_changed();

CREATE TRIGGER job_unfinished AFTER UPDATE OF state, queue_id ON public.scheduler_job FOR EACH ROW WHEN ((((old.outcome IS NULL) <> (new.outcome IS NULL)) OR (old.queue_id <> new.queue_id))) EXECUTE FUNCTION public.muster_job_unfinished();

CREATE TRIGGER job_unfinished_gone AFTER DELETE ON public.scheduler_job FOR EACH ROW WHEN ((old.outcome IS NULL)) EXECUTE FUNCTION public.muster_job_unfinished();

CREATE TRIGGER job_unsuccessful BEFORE INSERT OR UPDATE OF state, unsuccessful ON public.scheduler_job FOR EACH ROW WHEN (((new.unsuccessful)::text IS DISTINCT FROM (
        CASE
            WHEN ((new.state)::text = ANY ((ARRAY['cancelled'::character varying, 'failed'::character varying])::text[])) THEN new.state
            ELSE NULL::character varying
        END)::text)) EXECUTE FUNCTION public.muster_job_unsuccessful();

CREATE TRIGGER jobs_added AFTER INSERT ON public.scheduler_job REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.muster_jobs_added();

CREATE TRIGGER pgtrigger_audit_chain_keeps_its_heads_c8244 BEFORE DELETE ON public.accounts_auditchain FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_audit_chain_keeps_its_heads_c8244();

COMMENT ON TRIGGER pgtrigger_audit_chain_keeps_its_heads_c8244 ON public.accounts_auditchain IS '510164e8bd21a46c86dd4c3ff323db330dc1fc95';

CREATE TRIGGER pgtrigger_audit_chain_only_grows_9247e BEFORE UPDATE ON public.accounts_auditchain FOR EACH ROW WHEN ((new.length <= old.length)) EXECUTE FUNCTION public.pgtrigger_audit_chain_only_grows_9247e();

COMMENT ON TRIGGER pgtrigger_audit_chain_only_grows_9247e ON public.accounts_auditchain IS 'c5e47582898ebff89df0b780ac53186df4bd1c6b';

CREATE TRIGGER pgtrigger_audit_checkpoints_never_change_49f6b BEFORE DELETE OR UPDATE ON public.accounts_auditcheckpoint FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_audit_checkpoints_never_change_49f6b();

COMMENT ON TRIGGER pgtrigger_audit_checkpoints_never_change_49f6b ON public.accounts_auditcheckpoint IS '8642aef4828673f069b36c99684509bc27ec1612';

CREATE TRIGGER pgtrigger_audit_never_truncated_b5d10 BEFORE TRUNCATE ON public.accounts_auditevent FOR EACH STATEMENT EXECUTE FUNCTION public.pgtrigger_audit_never_truncated_b5d10();

COMMENT ON TRIGGER pgtrigger_audit_never_truncated_b5d10 ON public.accounts_auditevent IS '8653d36ce0802f5677d5f52bd7f4188b6dc58616';

CREATE TRIGGER pgtrigger_audit_rows_go_by_checkpoint_97bc4 AFTER DELETE ON public.accounts_auditevent REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.pgtrigger_audit_rows_go_by_checkpoint_97bc4();

COMMENT ON TRIGGER pgtrigger_audit_rows_go_by_checkpoint_97bc4 ON public.accounts_auditevent IS '226eb683914015fe352db381d24189763d1a58d2';

CREATE TRIGGER pgtrigger_audit_rows_never_change_f62a4 BEFORE UPDATE ON public.accounts_auditevent FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_audit_rows_never_change_f62a4();

COMMENT ON TRIGGER pgtrigger_audit_rows_never_change_f62a4 ON public.accounts_auditevent IS '9e1c80e8b0ad1a517114e25e981aa7f3bb480ecd';

CREATE TRIGGER pgtrigger_budget_never_passed_4b7ee BEFORE UPDATE OF held ON public.quotas_budgetperiod FOR EACH ROW WHEN ((new.enforce AND (new.held > old.held) AND ((new.held + new.charged) > new.amount))) EXECUTE FUNCTION public.pgtrigger_budget_never_passed_4b7ee();

COMMENT ON TRIGGER pgtrigger_budget_never_passed_4b7ee ON public.quotas_budgetperiod IS '6fb2dbce750008e95713de03e5b853b6a0dc45dc';

CREATE TRIGGER pgtrigger_insert_insert_15fd0 AFTER INSERT ON public.scheduler_queue FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_insert_insert_15fd0();

COMMENT ON TRIGGER pgtrigger_insert_insert_15fd0 ON public.scheduler_queue IS '439dd8227330330633608ca735812012f9db1041';

CREATE TRIGGER pgtrigger_insert_insert_3867c AFTER INSERT ON public.accounts_user FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_insert_insert_3867c();

COMMENT ON TRIGGER pgtrigger_insert_insert_3867c ON public.accounts_user IS 'e3c5a5da9524fafdc258faac7036fb36bbe2be8a';

CREATE TRIGGER pgtrigger_insert_insert_4e91c AFTER INSERT ON public.quotas_budget FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_insert_insert_4e91c();

COMMENT ON TRIGGER pgtrigger_insert_insert_4e91c ON public.quotas_budget IS '6e9bcc7a26eb6034de8ac8bb06a721b683d37899';

CREATE TRIGGER pgtrigger_insert_insert_53de9 AFTER INSERT ON public.scheduler_node FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_insert_insert_53de9();

COMMENT ON TRIGGER pgtrigger_insert_insert_53de9 ON public.scheduler_node IS '62a11755775d4894340d1818db9778e468dde57a';

CREATE TRIGGER pgtrigger_insert_insert_6d17a AFTER INSERT ON public.accounts_organization FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_insert_insert_6d17a();

COMMENT ON TRIGGER pgtrigger_insert_insert_6d17a ON public.accounts_organization IS '8d6087d740cfbc9115beb40aca2e56c560606d41';

CREATE TRIGGER pgtrigger_insert_insert_72f72 AFTER INSERT ON public.scheduler_priorityclass FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_insert_insert_72f72();

COMMENT ON TRIGGER pgtrigger_insert_insert_72f72 ON public.scheduler_priorityclass IS '1d20411f3e7193123fadaf6cafed1704cbee2637';

CREATE TRIGGER pgtrigger_insert_insert_85146 AFTER INSERT ON public.quotas_quota FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_insert_insert_85146();

COMMENT ON TRIGGER pgtrigger_insert_insert_85146 ON public.quotas_quota IS 'b5809da983d8372a57ebf902bd157816f8c50440';

CREATE TRIGGER pgtrigger_insert_insert_86abc AFTER INSERT ON public.scheduler_schedulerprofile FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_insert_insert_86abc();

COMMENT ON TRIGGER pgtrigger_insert_insert_86abc ON public.scheduler_schedulerprofile IS '2e2b9bf10946df6f452c69c873e4183be9df336d';

CREATE TRIGGER pgtrigger_insert_insert_8eba1 AFTER INSERT ON public.scheduler_reservation FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_insert_insert_8eba1();

COMMENT ON TRIGGER pgtrigger_insert_insert_8eba1 ON public.scheduler_reservation IS 'c3b449d1b4394d693387b4d6f304d9200fdfac9c';

CREATE TRIGGER pgtrigger_insert_insert_be6c9 AFTER INSERT ON public.scheduler_cluster FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_insert_insert_be6c9();

COMMENT ON TRIGGER pgtrigger_insert_insert_be6c9 ON public.scheduler_cluster IS 'ad95cdf5bf3a812f851d058050e1989e305b8c56';

CREATE TRIGGER pgtrigger_insert_insert_c28f2 AFTER INSERT ON public.accounts_project FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_insert_insert_c28f2();

COMMENT ON TRIGGER pgtrigger_insert_insert_c28f2 ON public.accounts_project IS '5b79090b8971cbd00e0d0121b146890a5750ddf5';

CREATE TRIGGER pgtrigger_insert_insert_cccdc AFTER INSERT ON public.scheduler_partition FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_insert_insert_cccdc();

COMMENT ON TRIGGER pgtrigger_insert_insert_cccdc ON public.scheduler_partition IS 'a48143c7f8864494682c31a8649cd015d7ea12de';

CREATE TRIGGER pgtrigger_insert_insert_efc44 AFTER INSERT ON public.quotas_grant FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_insert_insert_efc44();

COMMENT ON TRIGGER pgtrigger_insert_insert_efc44 ON public.quotas_grant IS '922e5f1634f16ba3e41b9a681c5bc7646629ab8e';

CREATE TRIGGER pgtrigger_insert_insert_fc05a AFTER INSERT ON public.accounts_membership FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_insert_insert_fc05a();

COMMENT ON TRIGGER pgtrigger_insert_insert_fc05a ON public.accounts_membership IS '1eae81885f3001d3a01aa0544b5b35330b39d8eb';

CREATE TRIGGER pgtrigger_ledger_never_truncated_5fead BEFORE TRUNCATE ON public.quotas_ledgerentry FOR EACH STATEMENT EXECUTE FUNCTION public.pgtrigger_ledger_never_truncated_5fead();

COMMENT ON TRIGGER pgtrigger_ledger_never_truncated_5fead ON public.quotas_ledgerentry IS '5df7ff630db4648406f517dab815e82e0d64ca9c';

CREATE TRIGGER pgtrigger_ledger_only_rolled_up_f4b5c AFTER DELETE ON public.quotas_ledgerentry REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.pgtrigger_ledger_only_rolled_up_f4b5c();

COMMENT ON TRIGGER pgtrigger_ledger_only_rolled_up_f4b5c ON public.quotas_ledgerentry IS '4ad3164054e6397fcb880b34de82f1960369436b';

CREATE TRIGGER pgtrigger_ledger_rows_never_change_a2925 BEFORE UPDATE ON public.quotas_ledgerentry FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_ledger_rows_never_change_a2925();

COMMENT ON TRIGGER pgtrigger_ledger_rows_never_change_a2925 ON public.quotas_ledgerentry IS '3f4e435abf3d5d6dbabd793218226bc5a12ca919';

CREATE TRIGGER pgtrigger_provider_allocation_moves_0a134 BEFORE UPDATE ON public.quotas_providerallocation FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_provider_allocation_moves_0a134();

COMMENT ON TRIGGER pgtrigger_provider_allocation_moves_0a134 ON public.quotas_providerallocation IS '41cf43025002959e4f3e47d6dfe3a797a785479e';

CREATE TRIGGER pgtrigger_quota_never_passed_d8b21 BEFORE UPDATE OF used ON public.quotas_quota FOR EACH ROW WHEN ((new.enforce AND (new.used > old.used) AND (new.used > LEAST(new.hard, (new.nominal + new.borrowing_limit))))) EXECUTE FUNCTION public.pgtrigger_quota_never_passed_d8b21();

COMMENT ON TRIGGER pgtrigger_quota_never_passed_d8b21 ON public.quotas_quota IS '727aa6bdeb546fdfced64c8f59c1fbd52f91d4fa';

CREATE TRIGGER pgtrigger_roll_ups_never_change_de91a BEFORE DELETE OR UPDATE ON public.quotas_ledgerrollup FOR EACH ROW EXECUTE FUNCTION public.pgtrigger_roll_ups_never_change_de91a();

COMMENT ON TRIGGER pgtrigger_roll_ups_never_change_de91a ON public.quotas_ledgerrollup IS '8719148ab0f3410fd5c1bca96b27e7924801f441';

CREATE TRIGGER pgtrigger_update_update_005ff AFTER UPDATE ON public.scheduler_schedulerprofile FOR EACH ROW WHEN ((old.* IS DISTINCT FROM new.*)) EXECUTE FUNCTION public.pgtrigger_update_update_005ff();

COMMENT ON TRIGGER pgtrigger_update_update_005ff ON public.scheduler_schedulerprofile IS 'b7cd5e7ba4e0ff4638855bd756022171a99a13c9';

CREATE TRIGGER pgtrigger_update_update_0e890 AFTER UPDATE ON public.accounts_user FOR EACH ROW WHEN (((old.access_version IS DISTINCT FROM new.access_version) OR (old.date_joined IS DISTINCT FROM new.date_joined) OR (old.default_project_id IS DISTINCT FROM new.default_project_id) OR ((old.email)::text IS DISTINCT FROM (new.email)::text) OR ((old.first_name)::text IS DISTINCT FROM (new.first_name)::text) OR (old.id IS DISTINCT FROM new.id) OR (old.is_active IS DISTINCT FROM new.is_active) OR (old.is_demo IS DISTINCT FROM new.is_demo) OR (old.is_staff IS DISTINCT FROM new.is_staff) OR (old.is_superuser IS DISTINCT FROM new.is_superuser) OR ((old.last_name)::text IS DISTINCT FROM (new.last_name)::text) OR (old.priority_ceiling IS DISTINCT FROM new.priority_ceiling) OR (old.share_weight IS DISTINCT FROM new.share_weight) OR ((old.site_role)::text IS DISTINCT FROM (new.site_role)::text) OR ((old.theme)::text IS DISTINCT FROM (new.theme)::text) OR ((old.time_zone)::text IS DISTINCT FROM (new.time_zone)::text) OR ((old.username)::text IS DISTINCT FROM (new.username)::text))) EXECUTE FUNCTION public.pgtrigger_update_update_0e890();

COMMENT ON TRIGGER pgtrigger_update_update_0e890 ON public.accounts_user IS 'ca4f118994a7fc29f409c032f68586824e2fa82f';

CREATE TRIGGER pgtrigger_update_update_20ab5 AFTER UPDATE ON public.accounts_membership FOR EACH ROW WHEN ((old.* IS DISTINCT FROM new.*)) EXECUTE FUNCTION public.pgtrigger_update_update_20ab5();

COMMENT ON TRIGGER pgtrigger_update_update_20ab5 ON public.accounts_membership IS 'fe6e02c3ee05932cfdfa0da5375e2bb556c96b6d';

CREATE TRIGGER pgtrigger_update_update_528f0 AFTER UPDATE ON public.accounts_project FOR EACH ROW WHEN ((old.* IS DISTINCT FROM new.*)) EXECUTE FUNCTION public.pgtrigger_update_update_528f0();

COMMENT ON TRIGGER pgtrigger_update_update_528f0 ON public.accounts_project IS '382935b8a300f942320f528e2d4b80799c6c00ab';

CREATE TRIGGER pgtrigger_update_update_59b97 AFTER UPDATE ON public.scheduler_queue FOR EACH ROW WHEN (((old.cluster_id IS DISTINCT FROM new.cluster_id) OR (old.created_at IS DISTINCT FROM new.created_at) OR (old.default_assembly_seconds IS DISTINCT FROM new.default_assembly_seconds) OR (old.default_wait_seconds IS DISTINCT FROM new.default_wait_seconds) OR (old.default_wall_seconds IS DISTINCT FROM new.default_wall_seconds) OR (old.id IS DISTINCT FROM new.id) OR (old.is_default IS DISTINCT FROM new.is_default) OR ((old.isolation)::text IS DISTINCT FROM (new.isolation)::text) OR (old.max_concurrent_jobs IS DISTINCT FROM new.max_concurrent_jobs) OR (old.max_pending_jobs IS DISTINCT FROM new.max_pending_jobs) OR (old.max_wall_seconds IS DISTINCT FROM new.max_wall_seconds) OR ((old.name)::text IS DISTINCT FROM (new.name)::text) OR (old.paused IS DISTINCT FROM new.paused) OR (old.paused_at IS DISTINCT FROM new.paused_at) OR ((old.paused_by)::text IS DISTINCT FROM (new.paused_by)::text) OR ((old.paused_reason)::text IS DISTINCT FROM (new.paused_reason)::text) OR (old.preference_wait_seconds IS DISTINCT FROM new.preference_wait_seconds) OR (old.priority IS DISTINCT FROM new.priority) OR (old.profile_id IS DISTINCT FROM new.profile_id) OR (old.project_id IS DISTINCT FROM new.project_id) OR (old.results_days IS DISTINCT FROM new.results_days) OR (old.results_job_mib IS DISTINCT FROM new.results_job_mib) OR (old.results_until_fetched IS DISTINCT FROM new.results_until_fetched) OR (old.scratch_mib IS DISTINCT FROM new.scratch_mib) OR ((old.slug)::text IS DISTINCT FROM (new.slug)::text))) EXECUTE FUNCTION public.pgtrigger_update_update_59b97();

COMMENT ON TRIGGER pgtrigger_update_update_59b97 ON public.scheduler_queue IS '951fc12d56b57fc6b41e5a6bbcb0985a4ff943a5';

CREATE TRIGGER pgtrigger_update_update_8561c AFTER UPDATE ON public.quotas_budget FOR EACH ROW WHEN ((old.* IS DISTINCT FROM new.*)) EXECUTE FUNCTION public.pgtrigger_update_update_8561c();

COMMENT ON TRIGGER pgtrigger_update_update_8561c ON public.quotas_budget IS '8dba84d5f36b32f6733407d0523abca28e336549';

CREATE TRIGGER pgtrigger_update_update_aa609 AFTER UPDATE ON public.scheduler_cluster FOR EACH ROW WHEN ((((old.backend)::text IS DISTINCT FROM (new.backend)::text) OR (old.backend_settings IS DISTINCT FROM new.backend_settings) OR (old.cpu_overcommit_percent IS DISTINCT FROM new.cpu_overcommit_percent) OR (old.created_at IS DISTINCT FROM new.created_at) OR (old.generation IS DISTINCT FROM new.generation) OR (old.id IS DISTINCT FROM new.id) OR (old.memory_overcommit_percent IS DISTINCT FROM new.memory_overcommit_percent) OR ((old.name)::text IS DISTINCT FROM (new.name)::text) OR (old.paused IS DISTINCT FROM new.paused) OR (old.paused_at IS DISTINCT FROM new.paused_at) OR ((old.paused_by)::text IS DISTINCT FROM (new.paused_by)::text) OR ((old.paused_reason)::text IS DISTINCT FROM (new.paused_reason)::text) OR (old.profile_id IS DISTINCT FROM new.profile_id) OR ((old.slug)::text IS DISTINCT FROM (new.slug)::text))) EXECUTE FUNCTION public.pgtrigger_update_update_aa609();

COMMENT ON TRIGGER pgtrigger_update_update_aa609 ON public.scheduler_cluster IS '9b0813f67848bf843fa1e858438e1914a90712b2';

CREATE TRIGGER pgtrigger_update_update_ad91d AFTER UPDATE ON public.quotas_quota FOR EACH ROW WHEN (((old.borrowing_limit IS DISTINCT FROM new.borrowing_limit) OR (old.converge_after_seconds IS DISTINCT FROM new.converge_after_seconds) OR (old.enforce IS DISTINCT FROM new.enforce) OR (old.generation IS DISTINCT FROM new.generation) OR ((old.gpu_model)::text IS DISTINCT FROM (new.gpu_model)::text) OR (old.hard IS DISTINCT FROM new.hard) OR (old.id IS DISTINCT FROM new.id) OR ((old.job_type)::text IS DISTINCT FROM (new.job_type)::text) OR (old.lending_limit IS DISTINCT FROM new.lending_limit) OR (old.nominal IS DISTINCT FROM new.nominal) OR (old.organization_id IS DISTINCT FROM new.organization_id) OR (old.over_since IS DISTINCT FROM new.over_since) OR (old.project_id IS DISTINCT FROM new.project_id) OR ((old.provider)::text IS DISTINCT FROM (new.provider)::text) OR ((old.resource)::text IS DISTINCT FROM (new.resource)::text) OR (old.soft IS DISTINCT FROM new.soft) OR (old.synced_at IS DISTINCT FROM new.synced_at) OR (old.user_id IS DISTINCT FROM new.user_id))) EXECUTE FUNCTION public.pgtrigger_update_update_ad91d();

CREATE TRIGGER pgtrigger_update_update_c19db AFTER UPDATE ON public.scheduler_reservation FOR EACH ROW WHEN ((old.* IS DISTINCT FROM new.*)) EXECUTE FUNCTION public.pgtrigger_update_update_c19db();

COMMENT ON TRIGGER pgtrigger_update_update_c19db ON public.scheduler_reservation IS 'e19d58adb51ccc6be5d09a1fe4eef26187c0cb78';

CREATE TRIGGER pgtrigger_update_update_c68db AFTER UPDATE ON public.scheduler_priorityclass FOR EACH ROW WHEN ((old.* IS DISTINCT FROM new.*)) EXECUTE FUNCTION public.pgtrigger_update_update_c68db();

COMMENT ON TRIGGER pgtrigger_update_update_c68db ON public.scheduler_priorityclass IS 'b69faa8daaecab35d3621c4222a209a1d1068fed';

CREATE TRIGGER pgtrigger_update_update_df7c2 AFTER UPDATE ON public.accounts_organization FOR EACH ROW WHEN ((old.* IS DISTINCT FROM new.*)) EXECUTE FUNCTION public.pgtrigger_update_update_df7c2();

COMMENT ON TRIGGER pgtrigger_update_update_df7c2 ON public.accounts_organization IS '353b5cff3ffbe139671a7a8ac353262c47d970f7';

CREATE TRIGGER pgtrigger_update_update_e1ab7 AFTER UPDATE ON public.scheduler_node FOR EACH ROW WHEN (((old.cordoned IS DISTINCT FROM new.cordoned) OR (old.cpu_millis IS DISTINCT FROM new.cpu_millis) OR ((old.drain_reason)::text IS DISTINCT FROM (new.drain_reason)::text) OR ((old.drained_by)::text IS DISTINCT FROM (new.drained_by)::text) OR (old.draining IS DISTINCT FROM new.draining) OR (old.labels IS DISTINCT FROM new.labels) OR (old.memory_mib IS DISTINCT FROM new.memory_mib) OR ((old.name)::text IS DISTINCT FROM (new.name)::text) OR (old.storage_mib IS DISTINCT FROM new.storage_mib) OR (old.taints IS DISTINCT FROM new.taints))) EXECUTE FUNCTION public.pgtrigger_update_update_e1ab7();

COMMENT ON TRIGGER pgtrigger_update_update_e1ab7 ON public.scheduler_node IS 'a8f3700f67fb57462a417de9599c734a446920d6';

CREATE TRIGGER pgtrigger_update_update_e405d AFTER UPDATE ON public.quotas_grant FOR EACH ROW WHEN ((old.* IS DISTINCT FROM new.*)) EXECUTE FUNCTION public.pgtrigger_update_update_e405d();

COMMENT ON TRIGGER pgtrigger_update_update_e405d ON public.quotas_grant IS '3ec2504f993f8dffc51c2de94d8862acd8ead61c';

CREATE TRIGGER pgtrigger_update_update_f3318 AFTER UPDATE ON public.scheduler_partition FOR EACH ROW WHEN ((old.* IS DISTINCT FROM new.*)) EXECUTE FUNCTION public.pgtrigger_update_update_f3318();

COMMENT ON TRIGGER pgtrigger_update_update_f3318 ON public.scheduler_partition IS '23cfb8ef1011f6e5afd9e0930a331f8d39b51b04';

CREATE TRIGGER priority_class_named BEFORE DELETE OR UPDATE OF name ON public.scheduler_priorityclass FOR EACH ROW EXECUTE FUNCTION public.scheduler_priorityclass_named();

CREATE TRIGGER quotas_ledgerentry_project_id_gone AFTER DELETE ON public.accounts_project REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.quotas_ledgerentry_project_id_gone();

CREATE TRIGGER quotas_ledgerentry_project_id_moved AFTER UPDATE OF project_id ON public.quotas_ledgerentry FOR EACH ROW WHEN (((new.project_id IS DISTINCT FROM old.project_id) AND (new.project_id IS NOT NULL))) EXECUTE FUNCTION public.quotas_ledgerentry_project_id_moved();

CREATE TRIGGER quotas_ledgerentry_project_id_rekeyed AFTER UPDATE OF id ON public.accounts_project FOR EACH ROW WHEN ((new.id IS DISTINCT FROM old.id)) EXECUTE FUNCTION public.quotas_ledgerentry_project_id_rekeyed();

CREATE TRIGGER quotas_ledgerentry_roll_up_id_gone AFTER DELETE ON public.quotas_ledgerrollup REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.quotas_ledgerentry_roll_up_id_gone();

CREATE TRIGGER quotas_ledgerentry_roll_up_id_moved AFTER UPDATE OF roll_up_id ON public.quotas_ledgerentry FOR EACH ROW WHEN (((new.roll_up_id IS DISTINCT FROM old.roll_up_id) AND (new.roll_up_id IS NOT NULL))) EXECUTE FUNCTION public.quotas_ledgerentry_roll_up_id_moved();

CREATE TRIGGER quotas_ledgerentry_roll_up_id_rekeyed AFTER UPDATE OF id ON public.quotas_ledgerrollup FOR EACH ROW WHEN ((new.id IS DISTINCT FROM old.id)) EXECUTE FUNCTION public.quotas_ledgerentry_roll_up_id_rekeyed();

CREATE TRIGGER quotas_ledgerentry_user_id_gone AFTER DELETE ON public.accounts_user REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.quotas_ledgerentry_user_id_gone();

CREATE TRIGGER quotas_ledgerentry_user_id_moved AFTER UPDATE OF user_id ON public.quotas_ledgerentry FOR EACH ROW WHEN (((new.user_id IS DISTINCT FROM old.user_id) AND (new.user_id IS NOT NULL))) EXECUTE FUNCTION public.quotas_ledgerentry_user_id_moved();

CREATE TRIGGER quotas_ledgerentry_user_id_rekeyed AFTER UPDATE OF id ON public.accounts_user FOR EACH ROW WHEN ((new.id IS DISTINCT FROM old.id)) EXECUTE FUNCTION public.quotas_ledgerentry_user_id_rekeyed();

CREATE TRIGGER references_added AFTER INSERT ON public.quotas_ledgerentry REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.quotas_ledgerentry_added();

CREATE TRIGGER references_added AFTER INSERT ON public.scheduler_attempt REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_attempt_added();

CREATE TRIGGER references_added AFTER INSERT ON public.scheduler_job REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_job_added();

CREATE TRIGGER references_added AFTER INSERT ON public.scheduler_jobevent REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_jobevent_added();

CREATE TRIGGER references_added AFTER INSERT ON public.scheduler_task REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_task_added();

CREATE TRIGGER request_in_array BEFORE INSERT ON public.scheduler_jobrequest FOR EACH ROW WHEN (((new.array_id IS NOT NULL) AND (new.array_number IS NULL))) EXECUTE FUNCTION public.scheduler_jobrequest_in_array();

CREATE TRIGGER request_names_reservation AFTER INSERT OR UPDATE OF reservation_id ON public.scheduler_jobrequest FOR EACH ROW WHEN ((new.reservation_id IS NOT NULL)) EXECUTE FUNCTION public.scheduler_reservation_named();

CREATE TRIGGER request_renamed AFTER UPDATE OF name ON public.scheduler_jobrequest FOR EACH ROW WHEN (((old.name)::text IS DISTINCT FROM (new.name)::text)) EXECUTE FUNCTION public.scheduler_jobrequest_renamed();

CREATE TRIGGER request_stays BEFORE UPDATE OF uuid, command, script, env, secrets, upload, job_type, array_id, array_index, created_at, submitted_via, array_number ON public.scheduler_jobrequest FOR EACH ROW WHEN (((((((((((((old.uuid IS DISTINCT FROM new.uuid) OR (old.command IS DISTINCT FROM new.command)) OR (old.script IS DISTINCT FROM new.script)) OR (old.env IS DISTINCT FROM new.env)) OR (old.secrets IS DISTINCT FROM new.secrets)) OR (old.upload IS DISTINCT FROM new.upload)) OR ((old.job_type)::text IS DISTINCT FROM (new.job_type)::text)) OR (old.array_id IS DISTINCT FROM new.array_id)) OR (old.array_index IS DISTINCT FROM new.array_index)) OR (old.created_at IS DISTINCT FROM new.created_at)) OR ((old.submitted_via)::text IS DISTINCT FROM (new.submitted_via)::text)) OR ((old.array_number IS NOT NULL) AND (new.array_number IS DISTINCT FROM old.array_number)))) EXECUTE FUNCTION public.scheduler_jobrequest_stays();

CREATE TRIGGER requests_named AFTER INSERT ON public.scheduler_jobrequest REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_jobrequest_named();

CREATE TRIGGER reservation_is_named BEFORE DELETE ON public.scheduler_reservation FOR EACH ROW EXECUTE FUNCTION public.scheduler_reservation_stays();

CREATE TRIGGER reservation_nodes_fit AFTER INSERT ON public.scheduler_reservation_nodes REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_reservation_added();

CREATE TRIGGER reservation_parts_fit AFTER INSERT ON public.scheduler_reservationpart REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_reservation_added();

CREATE TRIGGER reservation_parts_still_fit AFTER UPDATE ON public.scheduler_reservationpart REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_reservation_added();

CREATE TRIGGER reservation_still_fits AFTER UPDATE OF starts_at, ends_at, status, cancelled_at ON public.scheduler_reservation FOR EACH ROW WHEN ((((new.status)::text = 'approved'::text) AND (new.cancelled_at IS NULL))) EXECUTE FUNCTION public.scheduler_reservation_moved();

CREATE TRIGGER scheduler_attempt_job_id_gone AFTER DELETE ON public.scheduler_job REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_attempt_job_id_gone();

CREATE TRIGGER scheduler_attempt_job_id_moved AFTER UPDATE OF job_id ON public.scheduler_attempt FOR EACH ROW WHEN (((new.job_id IS DISTINCT FROM old.job_id) AND (new.job_id IS NOT NULL))) EXECUTE FUNCTION public.scheduler_attempt_job_id_moved();

CREATE TRIGGER scheduler_attempt_job_id_rekeyed AFTER UPDATE OF number ON public.scheduler_job FOR EACH ROW WHEN ((new.number IS DISTINCT FROM old.number)) EXECUTE FUNCTION public.scheduler_attempt_job_id_rekeyed();

CREATE TRIGGER scheduler_job_number_gone AFTER DELETE ON public.scheduler_jobrequest REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_job_number_gone();

CREATE TRIGGER scheduler_job_number_moved AFTER UPDATE OF number ON public.scheduler_job FOR EACH ROW WHEN (((new.number IS DISTINCT FROM old.number) AND (new.number IS NOT NULL))) EXECUTE FUNCTION public.scheduler_job_number_moved();

CREATE TRIGGER scheduler_job_number_rekeyed AFTER UPDATE OF number ON public.scheduler_jobrequest FOR EACH ROW WHEN ((new.number IS DISTINCT FROM old.number)) EXECUTE FUNCTION public.scheduler_job_number_rekeyed();

CREATE TRIGGER scheduler_job_project_id_gone AFTER DELETE ON public.accounts_project REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_job_project_id_gone();

CREATE TRIGGER scheduler_job_project_id_moved AFTER UPDATE OF project_id ON public.scheduler_job FOR EACH ROW WHEN (((new.project_id IS DISTINCT FROM old.project_id) AND (new.project_id IS NOT NULL))) EXECUTE FUNCTION public.scheduler_job_project_id_moved();

CREATE TRIGGER scheduler_job_project_id_rekeyed AFTER UPDATE OF id ON public.accounts_project FOR EACH ROW WHEN ((new.id IS DISTINCT FROM old.id)) EXECUTE FUNCTION public.scheduler_job_project_id_rekeyed();

CREATE TRIGGER scheduler_job_queue_id_gone AFTER DELETE ON public.scheduler_queue REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_job_queue_id_gone();

CREATE TRIGGER scheduler_job_queue_id_moved AFTER UPDATE OF queue_id ON public.scheduler_job FOR EACH ROW WHEN (((new.queue_id IS DISTINCT FROM old.queue_id) AND (new.queue_id IS NOT NULL))) EXECUTE FUNCTION public.scheduler_job_queue_id_moved();

CREATE TRIGGER scheduler_job_queue_id_rekeyed AFTER UPDATE OF id ON public.scheduler_queue FOR EACH ROW WHEN ((new.id IS DISTINCT FROM old.id)) EXECUTE FUNCTION public.scheduler_job_queue_id_rekeyed();

CREATE TRIGGER scheduler_job_user_id_gone AFTER DELETE ON public.accounts_user REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_job_user_id_gone();

CREATE TRIGGER scheduler_job_user_id_moved AFTER UPDATE OF user_id ON public.scheduler_job FOR EACH ROW WHEN (((new.user_id IS DISTINCT FROM old.user_id) AND (new.user_id IS NOT NULL))) EXECUTE FUNCTION public.scheduler_job_user_id_moved();

CREATE TRIGGER scheduler_job_user_id_rekeyed AFTER UPDATE OF id ON public.accounts_user FOR EACH ROW WHEN ((new.id IS DISTINCT FROM old.id)) EXECUTE FUNCTION public.scheduler_job_user_id_rekeyed();

CREATE TRIGGER scheduler_jobevent_actor_id_gone AFTER DELETE ON public.accounts_user REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_jobevent_actor_id_gone();

CREATE TRIGGER scheduler_jobevent_actor_id_moved AFTER UPDATE OF actor_id ON public.scheduler_jobevent FOR EACH ROW WHEN (((new.actor_id IS DISTINCT FROM old.actor_id) AND (new.actor_id IS NOT NULL))) EXECUTE FUNCTION public.scheduler_jobevent_actor_id_moved();

CREATE TRIGGER scheduler_jobevent_actor_id_rekeyed AFTER UPDATE OF id ON public.accounts_user FOR EACH ROW WHEN ((new.id IS DISTINCT FROM old.id)) EXECUTE FUNCTION public.scheduler_jobevent_actor_id_rekeyed();

CREATE TRIGGER scheduler_jobevent_job_id_gone AFTER DELETE ON public.scheduler_job REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_jobevent_job_id_gone();

CREATE TRIGGER scheduler_jobevent_job_id_moved AFTER UPDATE OF job_id ON public.scheduler_jobevent FOR EACH ROW WHEN (((new.job_id IS DISTINCT FROM old.job_id) AND (new.job_id IS NOT NULL))) EXECUTE FUNCTION public.scheduler_jobevent_job_id_moved();

CREATE TRIGGER scheduler_jobevent_job_id_rekeyed AFTER UPDATE OF number ON public.scheduler_job FOR EACH ROW WHEN ((new.number IS DISTINCT FROM old.number)) EXECUTE FUNCTION public.scheduler_jobevent_job_id_rekeyed();

CREATE TRIGGER scheduler_task_attempt_id_gone AFTER DELETE ON public.scheduler_attempt REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_task_attempt_id_gone();

CREATE TRIGGER scheduler_task_attempt_id_moved AFTER UPDATE OF attempt_id ON public.scheduler_task FOR EACH ROW WHEN (((new.attempt_id IS DISTINCT FROM old.attempt_id) AND (new.attempt_id IS NOT NULL))) EXECUTE FUNCTION public.scheduler_task_attempt_id_moved();

CREATE TRIGGER scheduler_task_attempt_id_rekeyed AFTER UPDATE OF id ON public.scheduler_attempt FOR EACH ROW WHEN ((new.id IS DISTINCT FROM old.id)) EXECUTE FUNCTION public.scheduler_task_attempt_id_rekeyed();

CREATE TRIGGER scheduler_task_node_id_gone AFTER DELETE ON public.scheduler_node REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.scheduler_task_node_id_gone();

CREATE TRIGGER scheduler_task_node_id_moved AFTER UPDATE OF node_id ON public.scheduler_task FOR EACH ROW WHEN (((new.node_id IS DISTINCT FROM old.node_id) AND (new.node_id IS NOT NULL))) EXECUTE FUNCTION public.scheduler_task_node_id_moved();

CREATE TRIGGER scheduler_task_node_id_rekeyed AFTER UPDATE OF id ON public.scheduler_node FOR EACH ROW WHEN ((new.id IS DISTINCT FROM old.id)) EXECUTE FUNCTION public.scheduler_task_node_id_rekeyed();

ALTER TABLE ONLY public.accounts_apitoken
    ADD CONSTRAINT accounts_apitoken_project_id_16ebf865_fk_accounts_project_id FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.accounts_apitoken
    ADD CONSTRAINT accounts_apitoken_user_id_bbee13e0_fk_accounts_user_id FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.accounts_membership
    ADD CONSTRAINT accounts_membership_project_id_e3530d11_fk_accounts_project_id FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.accounts_membership
    ADD CONSTRAINT accounts_membership_user_id_487fb39e_fk_accounts_user_id FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.accounts_organization
    ADD CONSTRAINT accounts_organizatio_parent_id_fe6d2ff2_fk_accounts_ FOREIGN KEY (parent_id) REFERENCES public.accounts_organization(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.accounts_project
    ADD CONSTRAINT accounts_project_organization_id_e10581a6_fk_accounts_ FOREIGN KEY (organization_id) REFERENCES public.accounts_organization(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.accounts_secret
    ADD CONSTRAINT accounts_secret_project_id_c2c216d2_fk_accounts_project_id FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.accounts_secret
    ADD CONSTRAINT accounts_secret_set_by_id_0742756d_fk_accounts_user_id FOREIGN KEY (set_by_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.accounts_secret
    ADD CONSTRAINT accounts_secret_user_id_46eb1d40_fk_accounts_user_id FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.accounts_user
    ADD CONSTRAINT accounts_user_default_project_id_29956eeb_fk_accounts_ FOREIGN KEY (default_project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.accounts_user_groups
    ADD CONSTRAINT accounts_user_groups_group_id_bd11a704_fk_auth_group_id FOREIGN KEY (group_id) REFERENCES public.auth_group(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.accounts_user_groups
    ADD CONSTRAINT accounts_user_groups_user_id_52b62117_fk_accounts_user_id FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.accounts_user_user_permissions
    ADD CONSTRAINT accounts_user_user_p_permission_id_113bb443_fk_auth_perm FOREIGN KEY (permission_id) REFERENCES public.auth_permission(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.accounts_user_user_permissions
    ADD CONSTRAINT accounts_user_user_p_user_id_e4f0a161_fk_accounts_ FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.auth_group_permissions
    ADD CONSTRAINT auth_group_permissio_permission_id_84c5c92e_fk_auth_perm FOREIGN KEY (permission_id) REFERENCES public.auth_permission(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.auth_group_permissions
    ADD CONSTRAINT auth_group_permissions_group_id_b120cbf9_fk_auth_group_id FOREIGN KEY (group_id) REFERENCES public.auth_group(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.auth_permission
    ADD CONSTRAINT auth_permission_content_type_id_2f476e4b_fk_django_co FOREIGN KEY (content_type_id) REFERENCES public.django_content_type(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.django_admin_log
    ADD CONSTRAINT django_admin_log_content_type_id_c4bce8eb_fk_django_co FOREIGN KEY (content_type_id) REFERENCES public.django_content_type(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.django_admin_log
    ADD CONSTRAINT django_admin_log_user_id_c564eba6_fk_accounts_user_id FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.django_celery_beat_periodictask
    ADD CONSTRAINT django_celery_beat_p_clocked_id_47a69f82_fk_django_ce FOREIGN KEY (clocked_id) REFERENCES public.django_celery_beat_clockedschedule(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.django_celery_beat_periodictask
    ADD CONSTRAINT django_celery_beat_p_crontab_id_d3cba168_fk_django_ce FOREIGN KEY (crontab_id) REFERENCES public.django_celery_beat_crontabschedule(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.django_celery_beat_periodictask
    ADD CONSTRAINT django_celery_beat_p_interval_id_a8ca27da_fk_django_ce FOREIGN KEY (interval_id) REFERENCES public.django_celery_beat_intervalschedule(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.django_celery_beat_periodictask
    ADD CONSTRAINT django_celery_beat_p_solar_id_a87ce72c_fk_django_ce FOREIGN KEY (solar_id) REFERENCES public.django_celery_beat_solarschedule(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.notifications_endpoint
    ADD CONSTRAINT notifications_endpoi_created_by_id_b1996cbf_fk_accounts_ FOREIGN KEY (created_by_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.notifications_endpoint
    ADD CONSTRAINT notifications_endpoi_project_id_f2c66618_fk_accounts_ FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.notifications_endpoint
    ADD CONSTRAINT notifications_endpoint_user_id_e5ae0cfc_fk_accounts_user_id FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.notifications_mail
    ADD CONSTRAINT notifications_mail_notification_id_31df3752_fk_notificat FOREIGN KEY (notification_id) REFERENCES public.notifications_notification(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.notifications_message
    ADD CONSTRAINT notifications_messag_endpoint_id_14ecb67e_fk_notificat FOREIGN KEY (endpoint_id) REFERENCES public.notifications_endpoint(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.notifications_message
    ADD CONSTRAINT notifications_messag_project_id_6b82e101_fk_accounts_ FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.notifications_message
    ADD CONSTRAINT notifications_message_user_id_89f939e6_fk_accounts_user_id FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.notifications_notification
    ADD CONSTRAINT notifications_notifi_project_id_5c1059d6_fk_accounts_ FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.notifications_notification
    ADD CONSTRAINT notifications_notification_user_id_b5e8c0ff_fk_accounts_user_id FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.notifications_preference
    ADD CONSTRAINT notifications_preference_user_id_c839c2d6_fk_accounts_user_id FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_alert
    ADD CONSTRAINT quotas_alert_organization_id_0b1dc11f_fk_accounts_ FOREIGN KEY (organization_id) REFERENCES public.accounts_organization(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_alert
    ADD CONSTRAINT quotas_alert_project_id_2d586e53_fk_accounts_project_id FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_budget
    ADD CONSTRAINT quotas_budget_organization_id_d1ff7247_fk_accounts_ FOREIGN KEY (organization_id) REFERENCES public.accounts_organization(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_budget
    ADD CONSTRAINT quotas_budget_project_id_a1502ff6_fk_accounts_project_id FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_budgetperiod
    ADD CONSTRAINT quotas_budgetperiod_budget_id_dd91a439_fk_quotas_budget_id FOREIGN KEY (budget_id) REFERENCES public.quotas_budget(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_driftfinding
    ADD CONSTRAINT quotas_driftfinding_project_id_6fb49a7b_fk_accounts_project_id FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_fairsharerules
    ADD CONSTRAINT quotas_fairsharerule_changed_by_id_287ca270_fk_accounts_ FOREIGN KEY (changed_by_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_grant
    ADD CONSTRAINT quotas_grant_asked_by_id_1a23a90f_fk_accounts_user_id FOREIGN KEY (asked_by_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_grant
    ADD CONSTRAINT quotas_grant_budget_id_e8455075_fk_quotas_budget_id FOREIGN KEY (budget_id) REFERENCES public.quotas_budget(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_grant
    ADD CONSTRAINT quotas_grant_decided_by_id_f3c1229f_fk_accounts_user_id FOREIGN KEY (decided_by_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_grant
    ADD CONSTRAINT quotas_grant_project_id_bb19f46f_fk_accounts_project_id FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_grant
    ADD CONSTRAINT quotas_grant_renews_id_6aa927c5_fk_quotas_grant_id FOREIGN KEY (renews_id) REFERENCES public.quotas_grant(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_grant
    ADD CONSTRAINT quotas_grant_seconded_by_id_0d3c1c52_fk_accounts_user_id FOREIGN KEY (seconded_by_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_notice_alerts
    ADD CONSTRAINT quotas_notice_alerts_alert_id_fd24a49e_fk_quotas_alert_id FOREIGN KEY (alert_id) REFERENCES public.quotas_alert(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_notice_alerts
    ADD CONSTRAINT quotas_notice_alerts_notice_id_30ff5c39_fk_quotas_notice_id FOREIGN KEY (notice_id) REFERENCES public.quotas_notice(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_notice
    ADD CONSTRAINT quotas_notice_user_id_09a578e5_fk_accounts_user_id FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_providerallocation
    ADD CONSTRAINT quotas_provideralloc_project_id_a0f7323e_fk_accounts_ FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_providerstate
    ADD CONSTRAINT quotas_providerstate_project_id_e8fffda0_fk_accounts_project_id FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_quota
    ADD CONSTRAINT quotas_quota_organization_id_5df9b129_fk_accounts_ FOREIGN KEY (organization_id) REFERENCES public.accounts_organization(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_quota
    ADD CONSTRAINT quotas_quota_project_id_0cc09c1a_fk_accounts_project_id FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_quota
    ADD CONSTRAINT quotas_quota_user_id_2619c9cb_fk_accounts_user_id FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_refusedstart
    ADD CONSTRAINT quotas_refusedstart_project_id_310279ea_fk_accounts_project_id FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_shareusage
    ADD CONSTRAINT quotas_shareusage_project_id_0d5ad3db_fk_accounts_project_id FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.quotas_shareusage
    ADD CONSTRAINT quotas_shareusage_user_id_36753abd_fk_accounts_user_id FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_artifact
    ADD CONSTRAINT scheduler_artifact_job_id_03c4dc7e_fk_scheduler_job_number FOREIGN KEY (job_id) REFERENCES public.scheduler_job(number) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_artifactupload
    ADD CONSTRAINT scheduler_artifactup_job_id_08e844ed_fk_scheduler FOREIGN KEY (job_id) REFERENCES public.scheduler_job(number) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_attemptusage
    ADD CONSTRAINT scheduler_attemptusa_attempt_id_65d6af55_fk_scheduler FOREIGN KEY (attempt_id) REFERENCES public.scheduler_attempt(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_checkpoint
    ADD CONSTRAINT scheduler_checkpoint_job_id_fd13ecbf_fk_scheduler_job_number FOREIGN KEY (job_id) REFERENCES public.scheduler_job(number) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_checkpoint
    ADD CONSTRAINT scheduler_checkpoint_node_id_9826e67a_fk_scheduler_node_id FOREIGN KEY (node_id) REFERENCES public.scheduler_node(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_checkpoint
    ADD CONSTRAINT scheduler_checkpoint_removed_by_id_8be73bcd_fk_accounts_user_id FOREIGN KEY (removed_by_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_cluster
    ADD CONSTRAINT scheduler_cluster_profile_id_a1ae8554_fk_scheduler FOREIGN KEY (profile_id) REFERENCES public.scheduler_schedulerprofile(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_cycle
    ADD CONSTRAINT scheduler_cycle_cluster_id_76507646_fk_scheduler_cluster_id FOREIGN KEY (cluster_id) REFERENCES public.scheduler_cluster(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_dataset
    ADD CONSTRAINT scheduler_dataset_declared_by_id_c42331bd_fk_accounts_user_id FOREIGN KEY (declared_by_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_dataset
    ADD CONSTRAINT scheduler_dataset_project_id_f5a1a71c_fk_accounts_project_id FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_device
    ADD CONSTRAINT scheduler_device_node_id_fbcee070_fk_scheduler_node_id FOREIGN KEY (node_id) REFERENCES public.scheduler_node(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_elementend
    ADD CONSTRAINT scheduler_elementend_job_id_f4f9a364_fk_scheduler_job_number FOREIGN KEY (job_id) REFERENCES public.scheduler_job(number) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_fairqueueturn
    ADD CONSTRAINT scheduler_fairqueuet_cluster_id_7753cf65_fk_scheduler FOREIGN KEY (cluster_id) REFERENCES public.scheduler_cluster(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_folderupload
    ADD CONSTRAINT scheduler_folderuplo_held_to_id_bc994a49_fk_accounts_ FOREIGN KEY (held_to_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_folderupload
    ADD CONSTRAINT scheduler_folderupload_user_id_3535a533_fk_accounts_user_id FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_forecastoutcome
    ADD CONSTRAINT scheduler_forecastou_cluster_id_04589492_fk_scheduler FOREIGN KEY (cluster_id) REFERENCES public.scheduler_cluster(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_forecastrun
    ADD CONSTRAINT scheduler_forecastru_cluster_id_162fa381_fk_scheduler FOREIGN KEY (cluster_id) REFERENCES public.scheduler_cluster(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_idempotencykey
    ADD CONSTRAINT scheduler_idempotencykey_user_id_7a69afd3_fk_accounts_user_id FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_jobdependency
    ADD CONSTRAINT scheduler_jobdependency_job_id_d9727774_fk_scheduler_job_number FOREIGN KEY (job_id) REFERENCES public.scheduler_job(number) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_jobdependency
    ADD CONSTRAINT scheduler_jobdependency_on_id_456fb793_fk_scheduler_job_number FOREIGN KEY (on_id) REFERENCES public.scheduler_job(number) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_jobelements
    ADD CONSTRAINT scheduler_jobelements_job_id_e855b1dc_fk_scheduler_job_number FOREIGN KEY (job_id) REFERENCES public.scheduler_job(number) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_jobmove
    ADD CONSTRAINT scheduler_jobmove_asked_by_id_d8416282_fk_accounts_user_id FOREIGN KEY (asked_by_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_jobmove
    ADD CONSTRAINT scheduler_jobmove_job_id_56e7da6b_fk_scheduler_job_number FOREIGN KEY (job_id) REFERENCES public.scheduler_job(number) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_jobmove
    ADD CONSTRAINT scheduler_jobmove_target_id_28fdc45d_fk_scheduler_node_id FOREIGN KEY (target_id) REFERENCES public.scheduler_node(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_jointoken
    ADD CONSTRAINT scheduler_jointoken_cluster_id_3004864a_fk_scheduler_cluster_id FOREIGN KEY (cluster_id) REFERENCES public.scheduler_cluster(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_keptresult
    ADD CONSTRAINT scheduler_keptresult_job_id_6f14670f_fk_scheduler_job_number FOREIGN KEY (job_id) REFERENCES public.scheduler_job(number) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_keptresult
    ADD CONSTRAINT scheduler_keptresult_node_id_bf7221cd_fk_scheduler_node_id FOREIGN KEY (node_id) REFERENCES public.scheduler_node(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_keptresult
    ADD CONSTRAINT scheduler_keptresult_user_id_698422d6_fk_accounts_user_id FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_logchunk
    ADD CONSTRAINT scheduler_logchunk_task_id_69e8ce94_fk_scheduler_task_id FOREIGN KEY (task_id) REFERENCES public.scheduler_task(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_node
    ADD CONSTRAINT scheduler_node_cluster_id_5b5a025d_fk_scheduler_cluster_id FOREIGN KEY (cluster_id) REFERENCES public.scheduler_cluster(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_node_partitions
    ADD CONSTRAINT scheduler_node_parti_partition_id_7438e75e_fk_scheduler FOREIGN KEY (partition_id) REFERENCES public.scheduler_partition(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_node_partitions
    ADD CONSTRAINT scheduler_node_partitions_node_id_e5fdc740_fk_scheduler_node_id FOREIGN KEY (node_id) REFERENCES public.scheduler_node(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_nodeheartbeat
    ADD CONSTRAINT scheduler_nodeheartbeat_node_id_215a3a54_fk_scheduler_node_id FOREIGN KEY (node_id) REFERENCES public.scheduler_node(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_nodeoutage
    ADD CONSTRAINT scheduler_nodeoutage_node_id_603570e8_fk_scheduler_node_id FOREIGN KEY (node_id) REFERENCES public.scheduler_node(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_nodescore
    ADD CONSTRAINT scheduler_nodescore_node_id_400d40fe_fk_scheduler_node_id FOREIGN KEY (node_id) REFERENCES public.scheduler_node(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_partition
    ADD CONSTRAINT scheduler_partition_cluster_id_d7f94248_fk_scheduler_cluster_id FOREIGN KEY (cluster_id) REFERENCES public.scheduler_cluster(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_policychoice
    ADD CONSTRAINT scheduler_policychoi_cluster_id_cc7c16c2_fk_scheduler FOREIGN KEY (cluster_id) REFERENCES public.scheduler_cluster(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_policyfault
    ADD CONSTRAINT scheduler_policyfaul_cluster_id_98850890_fk_scheduler FOREIGN KEY (cluster_id) REFERENCES public.scheduler_cluster(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_predictionaccuracy
    ADD CONSTRAINT scheduler_prediction_cluster_id_d8b74ae6_fk_scheduler FOREIGN KEY (cluster_id) REFERENCES public.scheduler_cluster(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_priorityclass_preempts
    ADD CONSTRAINT scheduler_prioritycl_from_priorityclass_i_0ab6142b_fk_scheduler FOREIGN KEY (from_priorityclass_id) REFERENCES public.scheduler_priorityclass(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_priorityclass_preempts
    ADD CONSTRAINT scheduler_prioritycl_to_priorityclass_id_961151ef_fk_scheduler FOREIGN KEY (to_priorityclass_id) REFERENCES public.scheduler_priorityclass(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_queue
    ADD CONSTRAINT scheduler_queue_cluster_id_88622e40_fk_scheduler_cluster_id FOREIGN KEY (cluster_id) REFERENCES public.scheduler_cluster(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_queue_partitions
    ADD CONSTRAINT scheduler_queue_part_partition_id_aa218b3b_fk_scheduler FOREIGN KEY (partition_id) REFERENCES public.scheduler_partition(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_queue_partitions
    ADD CONSTRAINT scheduler_queue_part_queue_id_5b80b9b1_fk_scheduler FOREIGN KEY (queue_id) REFERENCES public.scheduler_queue(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_queue
    ADD CONSTRAINT scheduler_queue_profile_id_3abc6989_fk_scheduler FOREIGN KEY (profile_id) REFERENCES public.scheduler_schedulerprofile(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_queue
    ADD CONSTRAINT scheduler_queue_project_id_893723a7_fk_accounts_project_id FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_reservation
    ADD CONSTRAINT scheduler_reservatio_cluster_id_b4482f37_fk_scheduler FOREIGN KEY (cluster_id) REFERENCES public.scheduler_cluster(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_reservation
    ADD CONSTRAINT scheduler_reservatio_created_by_id_0223232b_fk_accounts_ FOREIGN KEY (created_by_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_reservation
    ADD CONSTRAINT scheduler_reservatio_decided_by_id_410637e3_fk_accounts_ FOREIGN KEY (decided_by_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_reservation_nodes
    ADD CONSTRAINT scheduler_reservatio_node_id_734168f5_fk_scheduler FOREIGN KEY (node_id) REFERENCES public.scheduler_node(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_reservation
    ADD CONSTRAINT scheduler_reservatio_project_id_87a1e240_fk_accounts_ FOREIGN KEY (project_id) REFERENCES public.accounts_project(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_reservationpart
    ADD CONSTRAINT scheduler_reservatio_reservation_id_03045f00_fk_scheduler FOREIGN KEY (reservation_id) REFERENCES public.scheduler_reservation(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_reservation_users
    ADD CONSTRAINT scheduler_reservatio_reservation_id_26a5a911_fk_scheduler FOREIGN KEY (reservation_id) REFERENCES public.scheduler_reservation(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_reservation_nodes
    ADD CONSTRAINT scheduler_reservatio_reservation_id_b1d732b4_fk_scheduler FOREIGN KEY (reservation_id) REFERENCES public.scheduler_reservation(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_reservation_users
    ADD CONSTRAINT scheduler_reservatio_user_id_13ce9d86_fk_accounts_ FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_reservation
    ADD CONSTRAINT scheduler_reservation_job_id_d7bebc45_fk_scheduler_job_number FOREIGN KEY (job_id) REFERENCES public.scheduler_job(number) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_reservationpart
    ADD CONSTRAINT scheduler_reservationpart_node_id_f6fd32a5_fk_scheduler_node_id FOREIGN KEY (node_id) REFERENCES public.scheduler_node(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_runtimeprediction
    ADD CONSTRAINT scheduler_runtimepre_cluster_id_465ad729_fk_scheduler FOREIGN KEY (cluster_id) REFERENCES public.scheduler_cluster(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_runtimeprediction
    ADD CONSTRAINT scheduler_runtimepre_user_id_b9783f2b_fk_accounts_ FOREIGN KEY (user_id) REFERENCES public.accounts_user(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_shadowcycle
    ADD CONSTRAINT scheduler_shadowcycle_run_id_4d1310e1_fk_scheduler_shadowrun_id FOREIGN KEY (run_id) REFERENCES public.scheduler_shadowrun(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_shadowjob
    ADD CONSTRAINT scheduler_shadowjob_run_id_5e76a7ca_fk_scheduler_shadowrun_id FOREIGN KEY (run_id) REFERENCES public.scheduler_shadowrun(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_shadowrun
    ADD CONSTRAINT scheduler_shadowrun_cluster_id_4a8c3a46_fk_scheduler_cluster_id FOREIGN KEY (cluster_id) REFERENCES public.scheduler_cluster(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_shadowrun
    ADD CONSTRAINT scheduler_shadowrun_profile_id_e4cf82f7_fk_scheduler FOREIGN KEY (profile_id) REFERENCES public.scheduler_schedulerprofile(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_shadowrun
    ADD CONSTRAINT scheduler_shadowrun_queue_id_842899dd_fk_scheduler_queue_id FOREIGN KEY (queue_id) REFERENCES public.scheduler_queue(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_startforecast
    ADD CONSTRAINT scheduler_startforecast_job_id_ff6baeb6_fk_scheduler_job_number FOREIGN KEY (job_id) REFERENCES public.scheduler_job(number) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_suspension
    ADD CONSTRAINT scheduler_suspension_attempt_id_e8aa7880_fk_scheduler FOREIGN KEY (attempt_id) REFERENCES public.scheduler_attempt(id) DEFERRABLE INITIALLY DEFERRED;

ALTER TABLE ONLY public.scheduler_unknowntask
    ADD CONSTRAINT scheduler_unknowntask_node_id_add4017d_fk_scheduler_node_id FOREIGN KEY (node_id) REFERENCES public.scheduler_node(id) DEFERRABLE INITIALLY DEFERRED;

