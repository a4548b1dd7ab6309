"""What people report of local model managers, row by row, and the tests that show how ft behaves.

A row whose case cannot occur here says why instead. That every test named here is one is held by
tests/architecture/test_failures_table.py; `python -m tests.failures` prints the table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One case. says: what must hold. tests: "path/below/tests/test_x.py::test_name".

    reason: why it cannot occur, or which part of it cannot be shown here.
    """

    name: str
    says: str
    tests: tuple[str, ...] = ()
    reason: str = ""


FAULTS = "e2e/faults/"
PULL = "ftman/pull/"
SUPERVISOR = "ftman/supervisor/"
GATEWAY = "ftman/gateway/"
CLI = "ftman/cli/"

DOWNLOADS = (
    Row("partial-kept", "a restart keeps what was fetched; only age or a wish removes it", (
        f"{FAULTS}test_f05_manager_killed_in_pull.py::test_a_clean_stop_in_a_pull_fetches_nothing_twice",
        f"{PULL}test_jobs.py::test_old_partials_are_swept_and_young_ones_kept",
    )),
    Row("bar-forward", "progress counts durable bytes and never runs back", (
        f"{PULL}test_public_reports.py::test_a_bar_never_runs_back_however_often_a_server_hangs_up",
    )),
    Row("slow-link", "only tries without progress count; a stalled range has its own timer", (
        f"{PULL}test_download.py::test_slow_ranges_finish_when_there_is_no_other_mirror",
        f"{FAULTS}test_f12_bad_mirrors.py::test_a_lone_bad_mirror_ends_in_one_typed_error_or_in_the_file",
    )),
    Row("wrong-chunk", "other bytes cost one piece and the mirror's trust, not the file", (
        f"{FAULTS}test_f13_lying_mirrors.py::test_right_bytes_come_from_whoever_has_them_and_liars_are_put_aside",
    )),
    Row("no-ranges", "a server that ignores Range is read from the start", (
        f"{PULL}test_download.py::test_a_server_without_ranges_is_taken_in_one_stream",
    )),
    Row("two-writers", "one partial has one writer, even where every lock succeeds", (
        f"{FAULTS}test_f16_stale_locks.py::test_of_several_at_once_one_wins_even_where_every_lock_succeeds",
        f"{PULL}test_pull.py::test_another_process_at_the_same_pull_is_refused",
    )),
    Row("half-model", "a model shows when it is whole and committed, not before", (
        f"{FAULTS}test_f05_manager_killed_in_pull.py::test_a_killed_pull_loses_little_and_shows_nothing_half",
        f"{FAULTS}test_f12_bad_mirrors.py::test_the_store_shows_what_is_whole_and_nothing_else",
    )),
    Row("list-survives", "list and rm work whatever lies about", (
        "ftman/catalog/test_catalog.py::test_unreadable_manifests_are_skipped_and_can_be_deleted",
        "ftman/catalog/test_verify.py::test_a_removed_folder_is_damage_not_an_error",
    )),
    Row("web-page", "a login page is no model", (
        f"{PULL}test_download.py::test_trouble_that_stays_ends_in_one_clear_error",
        f"{FAULTS}test_f23_bad_models.py::test_files_that_are_no_models_are_not_installed",
    )),
    Row("torn-manifest", "a manifest is old or new", (
        "ftman/catalog/test_crashes.py::test_kill_during_commit_leaves_old_or_new_state",
        f"{FAULTS}test_f07_power_loss.py::test_the_store_is_whole_and_remembers_what_it_promised",
    )),
    Row("cut-weights", "sizes are looked at before a load; the third failure opens the breaker", (
        f"{FAULTS}test_f10_blob_damaged.py::test_another_size_is_seen_at_once_and_repaired_by_a_pull",
        f"{SUPERVISOR}test_policy.py::test_third_failed_start_within_a_minute_opens_the_breaker",
    )),
    Row("repair", "damage is found and mended by a command", (
        f"{PULL}test_repair.py::test_a_flipped_byte_is_named_and_mended_from_the_hub",
        f"{PULL}test_repair.py::test_small_files_and_cut_weights_come_back",
    )),
    Row("odd-tag", "names are judged before the first byte", (
        f"{PULL}test_pull.py::test_hostile_names_are_refused_and_leave_nothing",
        f"{FAULTS}test_f22_bad_names.py::test_every_route_refuses_every_name",
    )),
    Row("done-is-done", "success is said after the commit was read back", (
        f"{PULL}test_ollama_registry.py::test_lies_of_a_registry_are_caught",
        f"{PULL}test_pull.py::test_a_lie_in_a_window_is_caught_before_the_model_is_visible",
    )),
    Row("old-error", "a job that goes well keeps no old error", (
        f"{PULL}test_public_reports.py::test_an_error_is_gone_from_the_job_once_the_pull_goes_well",
    )),
)  # fmt: skip
STORE = (
    Row("disk-filled", "a pull stops at the reserve; its part is kept, and can be removed", (
        f"{FAULTS}test_f09_disk_full.py::test_a_full_disk_stops_the_pull_and_nothing_else",
        f"{PULL}test_download.py::test_the_reserve_stops_the_download_and_keeps_the_partial",
        f"{CLI}test_every_day.py::test_gc_explains_what_it_would_do",
    )),
    Row("relative-folder", "a folder that depends on where one stands is refused", (
        "ftman/test_config.py::test_folders_that_depend_on_where_one_stands_are_refused",
        "ftman/test_config.py::test_a_relative_folder_in_the_settings_file_is_refused",
    )),
    Row("import-copies", "what is kept of a file on this disk is a second name, not a copy", (
        f"{PULL}test_offline.py::test_the_kept_source_is_a_second_name_for_the_blob",
        f"{PULL}test_pull.py::test_a_local_file_is_read_in_place_and_stays",
    )),
    Row("split-file", "a set of parts is one model; a missing part is named", (
        f"{PULL}test_resolve.py::test_a_split_gguf_is_taken_whole_or_not_at_all",
        f"{FAULTS}test_f11_source_shards.py::test_a_damaged_checkpoint_is_refused_by_the_name_of_the_shard",
    )),
    Row("rm-loaded", "removal unloads first, and leaves what an engine still reads", (
        f"{CLI}test_commands.py::test_rm_unloads_first_and_stops_at_the_first_error",
        f"{FAULTS}test_f17_two_managers.py::test_removal_in_a_pull_and_in_an_answer_harms_neither",
    )),
    Row("disk-numbers", "need, have and what frees some, with an exit code of its own", (
        f"{FAULTS}test_f09_disk_full.py::test_a_full_disk_in_the_last_steps_keeps_what_was_fetched",
        f"{CLI}test_main.py::test_statuses_become_exit_codes",
    )),
    Row("engine-upgrade", "an upgrade never leaves nothing that runs", (),
        "ft does not upgrade itself: engine and manager are one package, and pip changes it while "
        "a running manager keeps the modules it has loaded"),
)  # fmt: skip
PROCESSES = (
    Row("old-server", "another version that answers is told", (
        f"{CLI}test_every_day.py::test_version_tells_of_a_manager_of_another_one",
        f"{SUPERVISOR}test_client.py::test_hello_of_another_major_version_names_both",
    )),
    Row("orphan", "an engine ends with its manager, or is taken over", (
        f"{FAULTS}test_f06_manager_killed_in_stream.py::test_the_client_sees_a_broken_answer_and_the_next_manager_is_right",
        f"{SUPERVISOR}test_adopt.py::test_without_adoption_the_engine_dies_with_its_manager",
    )),
    Row("deaf-engine", "SIGTERM, a grace, SIGKILL, and nothing left", (
        f"{SUPERVISOR}test_supervisor.py::test_close_leaves_no_process_and_no_file",
    )),
    Row("memory-late", "the next load waits until the last one's memory is back", (
        f"{SUPERVISOR}test_device_memory.py::test_the_next_load_waits_for_the_memory_of_the_last_engine",
        f"{FAULTS}test_f30_gpu_probes.py::test_less_memory_each_time_is_waited_for_once_and_then_said",
    )),
    Row("stopping-for-ever", "each state has an end", (
        f"{SUPERVISOR}test_supervisor.py::test_close_leaves_no_process_and_no_file",
        f"{SUPERVISOR}test_supervisor.py::test_load_without_progress_is_given_up",
        f"{SUPERVISOR}test_supervisor.py::test_wedged_engine_is_replaced_and_its_request_gets_a_typed_error",
    )),
    Row("keep-alive", "what stays and what goes follows one rule, and is shown", (
        f"{SUPERVISOR}test_policy.py::test_keep_alive_table",
        f"{FAULTS}test_f14_clock_jumps.py::test_nothing_is_unloaded_before_its_time_or_after",
        f"{CLI}test_tables.py::test_ps_has_processor_context_and_until",
    )),
    Row("loaded-twice", "one engine for a model and its settings, however many ask", (
        f"{SUPERVISOR}test_supervisor.py::test_eight_leases_at_once_share_one_engine",
    )),
    Row("loading-victim", "what is being loaded makes room for nobody", (
        f"{SUPERVISOR}test_policy_model.py::test_random_orders_keep_the_rules",
        f"{SUPERVISOR}test_policy.py::test_who_waits_is_told_for_what",
    )),
    Row("two-loads", "of two loads at once each gets its answer", (
        f"{SUPERVISOR}test_supervisor.py::test_two_specs_on_one_slot_take_turns",
        f"{SUPERVISOR}test_policy_model.py::test_every_order_of_three_requests_on_one_slot_with_a_crash_at_any_step",
    )),
    Row("dead-scheduler", "a scheduler that stands still is seen from outside", (
        f"{GATEWAY}test_health.py::test_a_scheduler_that_stands_still_is_503",
        "ftman/autostart/test_notify.py::test_a_standstill_is_logged_and_not_fed",
        f"{SUPERVISOR}test_policy_model.py::test_random_orders_keep_the_rules",
    )),
    Row("one-bad-model", "a model that fails spoils no other", (
        f"{FAULTS}test_f28_versions.py::test_manifests_of_another_time_spoil_only_their_own_model",
        f"{SUPERVISOR}test_policy.py::test_failed_start_answers_all_who_wait_for_it_with_its_cause",
    )),
    Row("other-model", "no other model ever answers", (
        "ftman/catalog/test_catalog.py::test_a_given_tag_is_never_replaced_by_another",
        f"{SUPERVISOR}test_supervisor.py::test_two_specs_on_one_slot_take_turns",
    )),
    Row("make-room", "room is made first, then loaded", (
        f"{SUPERVISOR}test_policy.py::test_memory_short_for_both_evicts",
        f"{SUPERVISOR}test_policy.py::test_second_model_evicts_the_idle_first_on_one_slot",
    )),
    Row("pile-up", "after any number of loads and deaths nothing is left over", (
        f"{FAULTS}test_kills.py::test_engines_killed_at_random_break_no_invariant",
    )),
)  # fmt: skip
ENGINES = (
    Row("wedged", "no step while there is work: 503, then another engine", (
        f"{GATEWAY}test_health.py::test_a_stuck_engine_is_503_until_it_is_replaced",
        f"{FAULTS}test_f02_engine_stopped.py::test_a_stopped_engine_is_replaced_and_answers_nobody_later",
    )),
    Row("exit-code", "an end that nobody asked for is no code 0", (
        "ftengine/server/test_process.py::test_broken_model_says_why_on_health_and_exits_nonzero",
        f"{FAULTS}test_f15_port_taken.py::test_of_many_managers_on_one_port_one_wins_and_the_others_say_why",
    ), "an engine's death ends no manager, which goes on and starts another"),
    Row("known-state", "after any failure there is a known state", (
        f"{FAULTS}test_kills.py::test_engines_killed_at_random_break_no_invariant",
        f"{FAULTS}test_f03_engine_exits.py::test_every_end_names_its_cause_and_the_next_request_is_served",
    )),
    Row("too-little", "an allocation that fails is one clear error with both numbers", (
        "ftengine/experts/test_races.py::test_allocation_failure_at_load_is_one_clear_error",
        "ftengine/gpu/test_engine.py::test_a_model_too_large_is_refused_with_both_numbers",
    ), "no second try with smaller caches: they are cut from what is free at the load"),
    Row("too-careful", "each part of the sum is told, and one may insist", (
        f"{CLI}test_fit.py::test_what_does_not_fit_says_why_and_ends_with_3",
        f"{CLI}test_pull_plan.py::test_insisting_pulls_it_all_the_same",
    )),
    Row("cache-first", "context and prefill come before a cache of experts", (
        "ftengine/experts/test_elastic.py::test_context_comes_before_experts",
    )),
    Row("wont-fit", "what cannot run here is said before it is fetched", (
        f"{CLI}test_pull_plan.py::test_what_cannot_run_here_is_not_fetched_unasked",
    )),
    Row("killed-silently", "the need is known before a load; an end for memory is said to be one", (
        f"{FAULTS}test_f25_memory.py::test_a_load_that_cannot_fit_is_refused_with_its_numbers",
        f"{FAULTS}test_f25_memory.py::test_an_engine_ended_for_memory_is_said_to_be",
    )),
    Row("missing-option", "no option has to be given for experts to be divided", (
        f"{SUPERVISOR}test_launcher.py::test_settings_at_their_defaults_are_left_out",
        "ftengine/experts/test_tiers.py::test_short_memory_chooses_the_disk_by_itself",
    )),
    Row("locked-memory", "locks are taken within their limit, and refusals said", (
        "ftengine/experts/test_hot.py::test_refusal_is_told_once_and_harms_nothing",
        "ftengine/experts/test_hot.py::test_room_for_locks_is_a_part_of_what_is_left",
        "ftengine/gpu/test_driver.py::test_refused_pinning_is_an_error_with_the_function",
    )),
    Row("slow-load", "a load may take long while it moves, and a failed one is tried again", (
        f"{SUPERVISOR}test_supervisor.py::test_slow_load_that_makes_progress_is_not_given_up",
        f"{SUPERVISOR}test_policy.py::test_breaker_backs_off_doubling_to_five_minutes",
    )),
    Row("idle-while-loading", "a load is no idle time", (
        f"{SUPERVISOR}test_policy.py::test_a_load_longer_than_the_keep_alive_is_no_idle_time",
    )),
    Row("first-cause", "the first cause is kept and told", (
        f"{SUPERVISOR}test_supervisor.py::test_three_failed_starts_open_the_breaker_with_the_first_cause",
        f"{FAULTS}test_f03_engine_exits.py::test_three_failed_starts_are_refused_at_once_with_the_first_cause",
    )),
)  # fmt: skip
MACHINES = (
    Row("after-sleep", "a GPU that is gone is an error with advice; every load asks anew", (
        f"{FAULTS}test_f30_gpu_probes.py::test_a_driver_that_was_late_is_seen_the_next_time",
        "ftengine/gpu/test_driver.py::test_lost_device_is_a_typed_error",
        f"{FAULTS}test_f14_clock_jumps.py::test_nothing_is_unloaded_before_its_time_or_after",
    ), "no GPU was lost in a real sleep: the driver is played"),
    Row("driver-mismatch", "a driver that does not fit is named, and no CPU is taken in silence", (
        f"{FAULTS}test_f30_gpu_probes.py::test_a_driver_in_trouble_is_named_in_time_and_never_passed_over",
        "ftengine/gpu/test_engine.py::test_no_gpu_is_one_clear_message",
    )),
    Row("driver-old", "what is missing in an old driver is named", (
        "ftengine/gpu/test_driver.py::test_too_old_library_names_the_symbol",
    )),
    Row("driver-late", "a driver that comes late is found", (
        f"{FAULTS}test_f30_gpu_probes.py::test_a_driver_that_was_late_is_seen_the_next_time",
    )),
    Row("wsl", "a slow disk and WSL's share of memory are named", (
        "ftman/doctor/test_checks.py::test_a_full_and_a_slow_disk_are_told",
    )),
    Row("shell-and-service", "settings that differ are told with their origin", (
        f"{FAULTS}test_f29_environments.py::test_commands_say_the_same_in_every_environment",
        f"{CLI}test_every_day.py::test_settings_name_their_origin_and_where_the_manager_differs",
    )),
    Row("upgrade-keeps", "settings and models survive an upgrade", (
        f"{FAULTS}test_f28_versions.py::test_a_newer_state_is_refused_by_name_and_left_alone",
    ), "all of it lies in FT_HOME and in the units of autostart, where no installation writes"),
    Row("silent-exit", "a code other than 0 comes with a line", (
        f"{CLI}test_main.py::test_a_verb_that_fails_says_so_in_a_line",
    )),
    Row("tool-on-path", "no tool is taken from the PATH unasked", (
        f"{PULL}test_wheel.py::test_pip_gets_the_hash_and_our_folder",
        f"{FAULTS}test_f29_environments.py::test_commands_say_the_same_in_every_environment",
    )),
)  # fmt: skip
CHATS = (
    Row("front-dropped", "too long is refused with both numbers, or cut and said", (
        f"{GATEWAY}test_native.py::test_too_long_is_cut_and_said_or_refused",
        f"{GATEWAY}test_openai.py::test_too_long_is_refused_with_the_code_clients_look_for",
    )),
    Row("agent-window", "an agent is told the window that is in force", (
        f"{CLI}test_launch.py::test_a_small_context_is_warned_of",
        f"{CLI}test_launch.py::test_no_agent_asks_for_more_output_than_a_quarter_of_the_context",
    )),
    Row("no-template", "a template comes from the file or there is none; each end token ends", (
        "ftman/chat/test_render.py::test_without_any_template_the_prompt_stands_alone",
        "ftengine/convert/test_plan.py::test_end_ids_are_the_union_of_what_ends_a_turn",
    )),
    Row("template-converted", "a template is used as it is, or is an error", (
        "ftman/chat/test_go_template.py::test_mistakes_are_one_error_with_the_line",
    ), "templates are not converted: Jinja and Go templates are both rendered as written"),
    Row("template-refuses", "a template's own refusal is a 400 with its words", (
        "ftman/chat/test_template.py::test_a_refusal_carries_the_templates_own_words",
        "ftman/chat/test_render.py::test_a_refused_conversation_is_offered_in_simpler_forms",
        f"{FAULTS}test_f23_bad_models.py::test_templates_with_a_payload_spoil_only_their_own_requests",
    )),
    Row("template-broken", "a broken template is an error with its place, and ends nothing", (
        "ftman/chat/test_template.py::test_attacks_and_mistakes_end_as_one_clear_error",
        f"{FAULTS}test_f21_bad_files.py::test_modelfiles_are_refused_with_the_place_and_nothing_is_made",
    )),
    Row("tool-shapes", "calls have each dialect's own shape", (
        "ftman/gateway/ollama/test_thinking_tools.py::test_each_call_is_one_chunk_with_object_arguments_before_the_last",
        "ftman/gateway/openai/test_chat.py::test_streamed_calls_come_in_the_order_that_clients_need",
    )),
    Row("client-gone", "an answer nobody reads ends within a second, in every phase", (
        f"{FAULTS}test_f19_client_gone.py::test_nothing_is_kept_for_clients_that_left",
        f"{GATEWAY}test_faults.py::test_leaving_during_prefill_frees_the_engine",
        f"{GATEWAY}test_faults.py::test_leaving_while_queued_leaves_the_queue",
    )),
    Row("queue-limit", "one queue with a limit; a full one says when to come again", (
        f"{SUPERVISOR}test_policy.py::test_queue_overflow_is_refused_in_the_words_clients_know",
        f"{GATEWAY}test_faults.py::test_leaving_while_queued_leaves_the_queue",
        f"{GATEWAY}test_metrics.py::test_the_queue_tells_place_wait_and_reason",
    )),
    Row("hangs-after-hours", "nothing grows and nothing waits for ever", (
        f"{FAULTS}test_kills.py::test_engines_killed_at_random_break_no_invariant",
        f"{FAULTS}test_memory.py::test_a_big_tokenizer_is_gone_soon_after_its_model",
        f"{FAULTS}test_f14_clock_jumps.py::test_a_request_that_waits_is_served_whatever_the_clock_says",
    ), "hours are not spent in a test; growth is measured after hundreds of faults instead"),
    Row("field-ignored", "a shape that is asked for is kept, or refused by name", (
        "ftman/gateway/openai/test_chat.py::test_formats_become_constraints",
        "ftman/gateway/openai/test_fields.py::test_a_field_has_its_effect_or_its_error",
        "ftman/gateway/ollama/test_every_field.py::test_the_field_acts_or_is_refused",
    )),
)  # fmt: skip
NETWORK = (
    Row("proxy", "a proxy is used for other machines and never for this one", (
        f"{PULL}test_public_reports.py::test_a_proxy_is_used_for_other_machines_and_never_for_this_one",
        f"{CLI}test_manager.py::test_a_proxy_never_sees_talk_with_our_own_manager",
    )),
    Row("own-authority", "a company's authority is believed when it is named", (
        f"{PULL}test_public_reports.py::test_an_authority_of_ones_own_is_believed_when_it_is_named",
        "ftman/doctor/test_checks.py::test_a_certificate_authority_that_is_not_there_is_a_problem",
    )),
    Row("offline", "a model travels in a folder", (
        f"{PULL}test_offline.py::test_a_model_travels_in_a_folder",
        f"{PULL}test_index.py::test_a_web_registry_is_cached_and_serves_offline",
    )),
    Row("open-port", "this machine only, unless there is a key", (
        f"{GATEWAY}test_access.py::test_open_bind_needs_a_key_or_insistence",
        "e2e/test_process.py::test_an_open_bind_is_refused",
    )),
    Row("pull-by-others", "a pull needs the right to manage", (
        f"{GATEWAY}test_access.py::test_every_route_asks_for_its_right",
        f"{FAULTS}test_f24_access.py::test_no_route_is_forgotten",
    ), "no list of allowed hosts: who may manage may name a source, and https is asked for"),
    Row("rebinding", "the Host header is always judged", (
        f"{FAULTS}test_f24_access.py::test_no_route_is_forgotten",
        f"{GATEWAY}test_access.py::test_no_route_escapes_host_origin_and_key",
    )),
    Row("web-pages", "a foreign page is refused, with or without a preflight", (
        f"{GATEWAY}test_access.py::test_origins",
        f"{FAULTS}test_f24_access.py::test_no_route_is_forgotten",
    )),
    Row("offsets", "no offset of a file leads outside of it", (
        f"{FAULTS}test_f23_bad_models.py::test_mutated_headers_are_refused_in_little_time_and_memory",
        "ftengine/loader/test_ftw.py::test_mutated_indexes_are_refused_or_read",
    )),
    Row("bombs", "counts, depths and expansions have limits", (
        "ftengine/loader/test_headers.py::test_hostile_gguf_counts_cost_nothing",
        f"{GATEWAY}test_encoding.py::test_a_bomb_is_refused_before_it_unfolds",
        f"{GATEWAY}test_body.py::test_deep_nesting_is_an_error_not_a_crash",
    )),
    Row("trigger-template", "a template changes words, runs no code, and is what was published", (
        "ftman/chat/test_template.py::test_attacks_and_mistakes_end_as_one_clear_error",
    ), "a template is part of the pinned files, so there is no second original to compare it with; "
       "ft show --template prints it"),
    Row("pickles", "nothing that runs code when it is read is read", (
        f"{FAULTS}test_f23_bad_models.py::test_files_that_are_no_models_are_not_installed",
    )),
    Row("stray-token", "a token goes to its own host and nowhere else", (
        f"{PULL}test_download.py::test_redirects_keep_the_range_and_drop_the_secret",
        f"{PULL}test_ollama_registry.py::test_a_realm_on_another_host_gets_no_signature",
    )),
    Row("updater", "no package is taken unproved", (),
        "there is no updater: nothing is fetched that would be run"),
    Row("numbers", "each number is judged where it comes in", (
        f"{GATEWAY}test_fuzz.py::test_random_json_is_never_our_fault",
        "ftman/gateway/openai/test_mutations.py::test_a_broken_value_is_an_answer_or_a_clear_error",
        "ftman/test_service.py::test_sampling_refuses_by_name",
    )),
    Row("bad-image", "no image ends an engine", (
        "ftman/gateway/openai/test_chat.py::test_what_cannot_be_done_is_named",
    ), "images are not built: they are refused before anything is decoded"),
    Row("exposed", "an address that others reach is told to be one", (
        "ftman/doctor/test_checks.py::test_an_open_address_without_a_key_says_what_to_do",
    )),
)  # fmt: skip
TABLE = {
    "downloads": DOWNLOADS,
    "store": STORE,
    "processes": PROCESSES,
    "engines": ENGINES,
    "machines": MACHINES,
    "chats": CHATS,
    "network": NETWORK,
}


def lines() -> list[str]:
    """The table as text."""
    found = []
    for part, rows in TABLE.items():
        found.append(f"{part}:")
        for row in rows:
            found.append(f"  {row.name:<20} {row.says}")
            found += [f"  {'':<20}   {test}" for test in row.tests]
            if row.reason:
                found.append(f"  {'':<20}   ({row.reason})")
    return found


if __name__ == "__main__":
    print("\n".join(lines()))  # noqa: T201
