"""Settings and speed classes of all tests.

Every test has one of three speeds. `make quick` runs the fast ones, `make test` all but the
slow ones, and `make test-slow` the slow ones and, with more examples, all properties:

    fast     tests that no table below names
    medium   tests that MEDIUM_TESTS names: files whose tests take more than 0.08 s each
    slow     tests that SLOW_TESTS names, about 1.5 s or more each, all but the first cases of
             REPEATED_TESTS, and all tests that need PostgreSQL

A row is a folder or file with the beginnings of its tests, or "[" and the beginning of their
cases. Seconds are processor time. Examples of properties are not timed, because the machines they
run on are shared.

A shell that starts its tests in the background lets them and their processes ignore Ctrl-C, which
some tests use to stop a process.
"""

import functools
import gc
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

ALL_TESTS: Final = ("",)
SLOW_TESTS: Final[dict[str, tuple[str, ...]]] = {
    "tests/blindtally/commands/test_changes.py": ALL_TESTS,
    "tests/blindtally/commands/test_query.py": ALL_TESTS,
    "tests/blindtally/commands/test_stopping.py": ALL_TESTS,
    "tests/blindtally/commands/test_studies.py": (
        "test_an_answer_is_shown_and_exported",
        "test_a_study_of_strings_has_the_rounds_that_they_need_or_a_warning",
    ),
    "tests/blindtally/test_public_names.py": ("test_types_and_names_of_an_installed_wheel",),
    "tests/blindtally/planning/test_recommended_words.py": (
        "test_a_higher_goal",
        "test_short_strings",
    ),
    "tests/blindtally/planning/test_study_form_predictions.py": (
        "test_a_prepared_process_answers_and_one_that_is_not_used_ends",
        "test_a_prediction_ends_with_the_service",
        "test_a_study_that_finds_items_is_simulated",
        "test_the_memory_of_a_prediction_is_limited",
        "test_the_times_of_other_sums_are_predicted",
    ),
    "tests/blindtally/planning/test_plan.py": (
        "test_all_users_join_if_all_are_needed",
        "test_predictions_agree_with_simulated_studies",
        "test_strings_are_hashed_and_only_tracked_fetches_them",
        "test_ways_to_release_counts_are_compared",
        "test_the_question_is_the_one_that_finds_most",
        "test_the_table_names_the_words_for_each_goal_and_the_question",
        "test_the_cost_of_noise_in_a_sketch_is_stated",
        "test_the_range_is_from_long_strings_of_flat_counts_to_short_ones_of_steep_counts",
    ),
    "tests/blindtally/simulate/test_heavy.py": (
        "test_a_length_bounds_strings_and_longer_ones_are_counted",
        "test_heavy_items_are_found[prefix-extension",
    ),
    "tests/blindtally/simulate/test_triehh.py": (
        "test_a_trie_finds_the_most_common_words[sample-threshold",
        "test_a_trie_of_devices_that_join_by_coins_finds_the_same_words",
        "test_impossible_invitations_have_a_reason[args0",
        "test_numbers_have_quantiles[triehh",
        "test_the_same_seed_gives_the_same_and_dropouts_lower_the_counts",
    ),
    "tests/blindtally/test_demo.py": (
        "test_a_trusted_server_has_no_survivors_confirmed",
        "test_ctrl_c_stops_the_server_and_names_the_files_kept",
    ),
    "tests/blindtally/test_workers.py": (
        "test_a_task_that_runs_once_is_not_repeated[None",
        "test_a_scheduler_that_does_not_answer_is_reported",
        "test_a_task_that_kills_every_worker_is_reported",
        "test_a_task_that_runs_once_is_not_repeated[local",
        "test_results_do_not_depend_on_the_workers[2-None",
    ),
    "tests/blindtally/test_parallel_rounds.py": (
        "test_a_stop_does_not_wait_for_tasks",
        "test_a_worker_that_is_killed_in_mid_round_costs_no_result",
        "test_ctrl_c_keeps_a_partial_result",
        "test_simulate_has_workers_report",
    ),
    "tests/client/device/test_journal.py": ("test_of_many_processes_one_gives_its_vector",),
    "tests/client/device/test_private_studies.py": ALL_TESTS,
    "tests/client/fleet/test_shards.py": ALL_TESTS,
    "tests/compose/test_compose.py": ("test_a_replica_killed_in_mid_round_costs_no_sum",),
    "tests/paper/test_cdf.py": ALL_TESTS,
    "tests/paper/test_figures.py": (
        "test_a_figure_is_printed_written_and_drawn[fig1",
        "test_growth_and_rules_are_printed_and_written",
        "test_the_oracles_error_grows_with_the_root_of_r_and_the_tables_does_not",
        "test_a_figure_is_printed_written_and_drawn[fig2",
    ),
    "tests/paper/test_oracle_experiments.py": ALL_TESTS,
    "tests/protocol/mechanisms/central/test_trie_votes.py": ALL_TESTS,
    "tests/protocol/mechanisms/central/test_triehh.py": (
        "test_a_study_of_each_mode_finds_the_common_and_not_the_rare[both",
        "test_a_study_of_each_mode_finds_the_common_and_not_the_rare[noise",
        "test_noise_alone_shows_almost_no_cell",
        "test_coins_are_fresh_in_each_level_and_of_each_device",
    ),
    "tests/protocol/mechanisms/iblt/test_subsampled.py": ("test_theorem_1",),
    "tests/protocol/mechanisms/tracked/test_mechanism.py": (
        "test_a_vector_is_as_long_as_the_words_allow_and_no_longer[tight",
        "test_tight_tables_have_more_cells_and_find_as_much",
        "test_totals_cover_what_they_should",
    ),
    "tests/protocol/oracles/hsu2012/test_projection_oracle.py": (
        "test_counts_are_unbiased_and_of_the_variance_that_is_claimed",
    ),
    "tests/protocol/privacy/test_audit.py": (
        "test_choosing_a_study_by_earlier_results_reveals_more_than_each",
    ),
    "tests/protocol/privacy/test_pipeline_audit.py": ALL_TESTS,
    "tests/protocol/privacy/test_parameters_for_budget.py": (
        "test_the_smallest_thetas_of_sampled_tables",
        "test_no_theta_is_better_than_the_one_found",
    ),
    "tests/protocol/privacy/test_sample_threshold.py": (
        "test_the_worst_of_all_k_is_what_enumeration_of_all_k_gives",
    ),
    "tests/protocol/quantiles/test_distribution.py": (
        "test_numbers_are_asked_of_a_study[both",
        "test_numbers_are_asked_of_a_study[noise",
        "test_numbers_are_asked_of_a_study[sample-threshold",
        "test_prefixes_of_strings_have_frequencies",
        "test_strings_have_ranks_in_the_order_of_their_digits",
        "test_what_had_no_place_in_the_frontier_is_within_the_interval",
    ),
    "tests/protocol/sketches/test_vote_table.py": (
        "test_tables_fail_no_more_often_than_stated",
        "test_twins_are_as_frequent_as_stated",
    ),
    "tests/protocol/test_mechanism_laws.py": (
        "test_a_one_shot_sum_is_the_plain_sum",
        "[hierarchical-histogram, both",
        "[triehh, both",
        "test_the_secure_sum_decodes_as_the_plain_sum[triehh, in noise",
        "test_the_next_plan_asks_the_same_with_a_fresh_seed[None-hierarchical-histogram, both",
        "test_the_next_plan_asks_the_same_with_a_fresh_seed[None-triehh, both",
    ),
    "tests/secagg/test_security_proof.py": (
        "test_all_terms_are_small_at_any_size_and_rates",
        "test_the_terms_on_the_page_are_those_computed",
    ),
    "tests/server/api/test_contract.py": ALL_TESTS,
    "tests/server/api/test_idempotency.py": (
        "test_a_budget_that_holds_one_study_is_spent_once_by_one_key",
    ),
    "tests/server/pages/test_browser.py": ALL_TESTS,
    "tests/server/simulation": ALL_TESTS,
    "tests/server/telemetry/test_traces.py": (
        "test_a_service_that_traces_nothing_imports_nothing_for_it",
    ),
    "tests/server/test_populations.py": (
        "test_studies_spend_until_nothing_is_left",
        "test_tables_are_for_studies_of_no_population",
        "test_unbounded_loss_is_refused",
        "test_a_study_spends_when_it_begins_and_only_once",
        "test_a_stopped_histogram_pays_for_every_level_of_its_rounds",
    ),
    "tests/server/test_overload.py": (
        "test_of_a_reconnect_storm_after_a_restart_each_device_is_answered_with_pace_and_kept",
    ),
    "tests/server/test_process.py": ALL_TESTS,
    "tests/server/test_reports.py": (
        "test_a_mechanism_of_each_kind_finds_what_most_devices_hold[prefix-extension",
        "test_a_mechanism_of_each_kind_finds_what_most_devices_hold[ocms",
        "test_a_mechanism_of_each_kind_finds_what_most_devices_hold[jl-hh",
        "test_a_round_of_large_reports_is_read_batch_by_batch",
    ),
    "tests/server/test_tls.py": (
        "test_the_service_uses_https_with_clients_that_trust_its_certificate",
    ),
    "tests/test_examples.py": (
        "test_an_example",
        "test_the_quantiles",
    ),
    "tests/test_docs.py": (
        "test_the_sdk_page_is_one_program",
        "test_commands_in_the_documents_work[blindtally simulate tracked --data words --devices 10",
        "test_commands_in_the_documents_work[python -m paper",
        "test_commands_in_the_documents_work[blindtally plan --devices",
        "test_commands_in_the_documents_work[blindtally plan --mechanism triehh",
        "test_commands_in_the_documents_work[blindtally simulate prefix-extension",
    ),
    "tests/test_kill9.py": ALL_TESTS,
    "tests/test_kill9_one_shot.py": ALL_TESTS,
    "tests/test_notebook.py": ("test_the_notebook_runs_and_shows_what_is_kept_in_it",),
    "tests/blindtally/commands/test_fleet.py": (
        "test_a_fleet_makes_a_registrar_and_uses_it_again",
        "test_a_fleet_refuses_a_study_of_another_registrar_or_of_none",
        "test_devices_arrive_over_time_are_slow_and_drop_out_in_the_given_phases",
        "test_a_waiting_fleet_shows_the_missing_devices_and_at_the_end_the_page",
        "test_a_fleet_ends_with_a_study_that_reaches_its_goal",
        "test_members_of_other_processes_open_the_sums_of_a_new_study",
    ),
    "tests/client/fleet/test_fleet.py": (
        "test_devices_of_a_fleet_volunteer_for_the_committees_of_its_rounds",
        "test_a_fleet_with_the_keys_of_operators_opens_its_one_shot_sums",
        "test_a_fleet_goes_on_after_the_service_was_restored_to_an_earlier_round",
        "test_a_fleet_with_the_key_of_its_registrar_seats_its_rounds",
    ),
    "tests/blindtally/simulate/test_unequal_rounds.py": (
        "test_tracked_finds_as_much_in_rounds_of_any_sizes",
    ),
    "tests/protocol/mechanisms/central/test_trie_plan.py": (
        "test_the_cost_of_a_study_is_that_of_its_releases",
        "test_colluders_are_added_to_theta",
    ),
    "tests/protocol/mechanisms/central/test_join_probability.py": (
        "test_who_votes_is_an_independent_sample",
        "test_a_computed_vote_probability_is_below_the_join_probability",
    ),
    "tests/protocol/mechanisms/test_segments.py": (
        "test_totals_and_shares_of_sampled_items_are_within_their_intervals[tracked",
    ),
    "tests/server/api/test_events.py": (
        "test_many_streams_hold_no_connection_and_end_when_the_server_stops",
    ),
    "tests/test_service_capacity.py": (
        "test_the_model_and_the_simulation_agree[0.7-dropouts",
        "test_the_model_and_the_simulation_agree[0.7-idle",
    ),
    "tests/test_ledger_again.py": (
        "test_a_ledger_is_recomputed[events4",
        "test_a_ledger_is_recomputed[events0",
    ),
    "tests/secagg/test_sum.py": ("test_a_masked_vector_of_a_fixed_input_is_uniform_in_each_lane",),
    "tests/protocol/sketches/iblt/test_known_keys.py": (
        "test_a_quarter_more_keys_are_read_if_a_third_is_known",
        "test_forty_percent_more_are_read_if_half_is_known",
    ),
    "tests/protocol/mechanisms/tracked/test_past_sketch.py": (
        "test_sketches_reduce_errors_with_the_same_words",
    ),
    "tests/server/pages/test_studies.py": (
        "test_a_history_that_is_decoded_again_equals_the_earlier_estimates",
    ),
    "tests/client/device/test_committee_service.py": (
        "test_sixty_devices_of_which_some_serve_and_some_drop_out",
        "test_a_device_that_was_killed_goes_on_to_serve",
        "test_a_device_serves_no_round_that_protects_devices_less",
    ),
    "tests/client/device/test_take_part.py": (
        "test_who_cancels_a_device_leaves_nothing_behind_and_it_may_come_again",
    ),
    "tests/server/test_distributions.py": (
        "test_strings_have_frequencies_and_an_order",
        "test_numbers_have_quantiles_ranks_and_ranges",
    ),
    "tests/paper/test_method_comparison.py": ("test_tracking_needs_a_fraction_of_the_words",),
    "tests/protocol/oracles/test_statistics.py": (
        "test_equation_2_is_biased_where_hashing_is_imperfect_and_ours_is_not",
    ),
    "tests/blindtally/simulate/test_numbers.py": (
        "test_secure_sums_with_dropouts_give_means_per_segment",
    ),
    "tests/client/test_imports.py": (
        "test_a_device_without_extras_sends_what_a_device_with_all_of_them_sends",
    ),
    "tests/server/rounds/test_orchestrator.py": (
        "test_a_fault_while_summing_fails_that_cohort_and_no_other",
        "test_a_study_state_that_cannot_be_read_stops_its_study_and_no_other",
    ),
    "tests/server/test_mechanisms.py": (
        "test_a_sketch_over_its_capacity_is_undecoded_and_invents_no_key",
    ),
    "tests/blindtally/test_cli.py": ("test_a_narrow_terminal_shows_items_of_any_script",),
    "tests/server/pages/test_new_study.py": ("test_the_defaults_of_every_kind_make_a_study",),
    "tests/blindtally/commands/test_privacy.py": ("test_a_population_is_made_spent_and_shown",),
    "tests/blindtally/datasets/test_reader.py": ("test_a_file_is_not_held_whole",),
    "tests/protocol/privacy/test_ledger.py": (
        "test_a_refusal_suggests_parameters_that_meet_the_budget",
    ),
    "tests/secagg/test_split_view.py": ("test_an_isolated_device_can_be_left_out_of_the_one_sum",),
    "tests/protocol/mechanisms/test_frequency_sketches.py": (
        "test_estimates_under_noise_have_the_reported_variance",
    ),
    "tests/server/one_shot/test_sums.py": (
        "test_a_server_and_members_that_start_again_in_a_phase_finish_the_round[collecting",
        "test_a_server_and_members_that_start_again_in_a_phase_finish_the_round[agreeing",
        "test_a_server_and_members_that_start_again_in_a_phase_finish_the_round[checking",
        "test_a_server_and_members_that_start_again_in_a_phase_finish_the_round[releasing",
        "test_a_study_over_two_restarts_and_with_a_member_that_drops_out",
    ),
    "tests/server/one_shot/test_volunteers.py": (
        "test_a_server_that_starts_again_in_a_phase_finishes_the_round[collecting",
        "test_a_server_that_starts_again_in_a_phase_finishes_the_round[convening",
        "test_a_server_that_starts_again_in_a_phase_finishes_the_round[checking",
        "test_a_round_waits_for_all_volunteers_and_for_its_registrar",
    ),
    "tests/server/one_shot/test_attacks.py": ("test_sums_that_wait_do_not_fill_a_member",),
    "tests/server/one_shot/test_volunteer_attacks.py": (
        "test_devices_and_members_refuse_the_committee_of_an_older_round",
    ),
    "tests/server/pages/test_one_shot.py": (
        "test_a_study_of_volunteers_shows_their_draw_and_who_must_collude",
    ),
    "tests/protocol/simulation/test_study.py": (
        "test_a_one_shot_study_finds_the_counts_of_a_pairwise_study",
    ),
    "tests/protocol/mechanisms/iblt/test_approximate_histogram.py": (
        "test_below_the_root_of_r_everything_is_listed_exactly",
    ),
    "tests/server/one_shot/test_reserves.py": (
        "test_reserves_take_the_place_of_absent_operators[away0",
        "test_reserves_take_the_place_of_absent_operators[away2",
        "test_a_committee_that_drops_out_is_followed_by_one_of_other_members",
    ),
    "tests/server/test_seating.py": (
        "test_a_device_that_was_seated_in_other_studies_stops_no_round",
    ),
    "tests/server/test_backup_and_upgrade.py": (
        "test_devices_finish_a_round_at_a_service_that_was_restored[share-checking",
    ),
    "tests/protocol/sketches/iblt/test_tight.py": (
        "test_a_stuck_table_estimates_the_number_of_its_keys[1.25",
    ),
    "tests/protocol/mechanisms/reports/test_hsu2012.py": (
        "test_the_bytes_show_no_more_than_epsilon[glps-hh-pure",
        "test_the_bytes_show_no_more_than_epsilon[bucket-hh-pure",
    ),
    "tests/test_docs_site.py": ALL_TESTS,
}
MEDIUM_TESTS: Final[dict[str, tuple[str, ...]]] = {
    "tests/blindtally/commands": ALL_TESTS,
    "tests/blindtally/console/test_output_files.py": ALL_TESTS,
    "tests/blindtally/datasets/test_reader.py": ALL_TESTS,
    "tests/blindtally/planning": ALL_TESTS,
    "tests/blindtally/simulate": ALL_TESTS,
    "tests/blindtally/test_cli.py": ALL_TESTS,
    "tests/blindtally/test_demo.py": ALL_TESTS,
    "tests/blindtally/test_workers.py": ALL_TESTS,
    "tests/blindtally/test_parallel_rounds.py": ALL_TESTS,
    "tests/blindtally/test_process_pool.py": ALL_TESTS,
    "tests/client/device/test_participation.py": ALL_TESTS,
    "tests/client/device/test_exact_sum_limit.py": (
        "test_a_sketch_with_noise_spends_no_exact_study",
    ),
    "tests/client/device/test_refusals.py": ALL_TESTS,
    "tests/protocol/api/test_plan_check.py": (
        "test_a_release_",
        "test_fewer_devices_than_the_policys_threshold_reach_no_threshold",
        "test_a_threshold_of_exact_sums_is_not_below_the_policys",
        "test_a_device_joins_repeated_sums_without_noise_only_if_its_policy_allows_it",
    ),
    "tests/client/device/test_committee_service.py": ALL_TESTS,
    "tests/client/device/test_take_part.py": ALL_TESTS,
    "tests/client/fleet/test_fleet.py": ALL_TESTS,
    "tests/client/test_differencing.py": ALL_TESTS,
    "tests/client/test_invented_devices.py": (
        "test_a_pinned_registrar_shows_which_devices_are_invented",
        "test_the_server_reads_a_device_that_trusts_its_identities",
    ),
    "tests/blindtally/simulate/test_unequal_rounds.py": ALL_TESTS,
    "tests/client/test_registrar.py": ("test_draws_count_after_kill_9",),
    "tests/deploy": ALL_TESTS,
    "tests/paper": ALL_TESTS,
    "tests/protocol/mechanisms/central": ALL_TESTS,
    "tests/protocol/mechanisms/iblt/test_adaptive.py": ALL_TESTS,
    "tests/protocol/mechanisms/test_frequency_sketches.py": ALL_TESTS,
    "tests/protocol/mechanisms/iblt/test_approximate_histogram.py": ALL_TESTS,
    "tests/protocol/mechanisms/reports": ALL_TESTS,
    "tests/protocol/mechanisms/tracked/test_mechanism.py": ALL_TESTS,
    "tests/protocol/mechanisms/tracked/test_past_sketch.py": ALL_TESTS,
    "tests/protocol/mechanisms/iblt/test_subsampled.py": ALL_TESTS,
    "tests/protocol/mechanisms/test_lying_devices.py": ALL_TESTS,
    "tests/protocol/mechanisms/test_quality_goal.py": ALL_TESTS,
    "tests/protocol/mechanisms/test_rate_history.py": ALL_TESTS,
    "tests/protocol/oracles/hsu2012": ALL_TESTS,
    "tests/protocol/oracles/test_formulas.py": (
        "test_orders_of_fields_are_primes_and_powers_of_two",
    ),
    "tests/protocol/oracles/test_prefix_extension.py": ALL_TESTS,
    "tests/protocol/oracles/test_privacy.py": ALL_TESTS,
    "tests/protocol/oracles/test_statistics.py": ALL_TESTS,
    "tests/protocol/privacy": ALL_TESTS,
    "tests/protocol/quantiles/test_distribution.py": ALL_TESTS,
    "tests/protocol/simulation/test_study.py": ALL_TESTS,
    "tests/protocol/sketches/iblt/test_capacity.py": ALL_TESTS,
    "tests/protocol/sketches/iblt/test_known_keys.py": ALL_TESTS,
    "tests/protocol/sketches/iblt/test_table.py": ALL_TESTS,
    "tests/protocol/sketches/iblt/test_tight.py": ALL_TESTS,
    "tests/protocol/test_imports.py": ALL_TESTS,
    "tests/protocol/test_mechanism_laws.py": (
        "test_estimates_are_unbiased_with_the_reported_variance",
        "test_the_digests_of_plans_change_only_with_the_protocol",
        "[count-median, in noise",
        "[count-sketch, in noise",
    ),
    "tests/protocol/test_one_shot_costs.py": ALL_TESTS,
    "tests/protocol/test_report_laws.py": (
        "test_estimates_are_unbiased_with_the_reported_variance_and_intervals",
        "test_intervals_of_rare_items_reach_below_nothing_and_cover",
        "test_the_bytes_reveal_no_more_than_is_charged",
    ),
    "tests/secagg/oneshot/test_attacks.py": ALL_TESTS,
    "tests/secagg/oneshot/test_opening.py": ALL_TESTS,
    "tests/secagg/oneshot/test_sum.py": ALL_TESTS,
    "tests/secagg/test_attacks.py": ALL_TESTS,
    "tests/secagg/test_complaints.py": ALL_TESTS,
    "tests/secagg/test_graph.py": ALL_TESTS,
    "tests/secagg/test_graph_cuts.py": ALL_TESTS,
    "tests/secagg/test_liars.py": ALL_TESTS,
    "tests/secagg/test_split_view.py": ALL_TESTS,
    "tests/secagg/test_state_machine.py": ALL_TESTS,
    "tests/secagg/test_sum.py": ALL_TESTS,
    "tests/secagg/test_unmasking.py": (
        "test_with_any_false_shares_the_sum_is_exact_or_there_is_none",
    ),
    "tests/secagg/test_vectors.py": ("test_a_file_is_what_the_generator_writes",),
    "tests/server/api/test_changes.py": ALL_TESTS,
    "tests/server/api/test_events.py": ALL_TESTS,
    "tests/server/api/test_foreign.py": ALL_TESTS,
    "tests/server/api/test_interrupted_bodies.py": ALL_TESTS,
    "tests/server/api/test_joining.py": ALL_TESTS,
    "tests/server/api/test_questions.py": ALL_TESTS,
    "tests/server/api/test_rounds.py": ALL_TESTS,
    "tests/server/api/test_uploads.py": ALL_TESTS,
    "tests/server/http/test_access.py": ALL_TESTS,
    "tests/server/http/test_rate_limits.py": ALL_TESTS,
    "tests/server/pages": ALL_TESTS,
    "tests/server/rounds": ALL_TESTS,
    "tests/server/telemetry": ALL_TESTS,
    "tests/server/test_blame.py": ALL_TESTS,
    "tests/server/test_distributions.py": ALL_TESTS,
    "tests/server/test_goal.py": ALL_TESTS,
    "tests/server/test_invited.py": ALL_TESTS,
    "tests/server/test_mechanisms.py": ALL_TESTS,
    "tests/server/test_overload.py": ALL_TESTS,
    "tests/server/test_populations.py": ALL_TESTS,
    "tests/server/test_replicas.py": ALL_TESTS,
    "tests/server/test_reports.py": ALL_TESTS,
    "tests/server/pages/test_one_shot.py": ALL_TESTS,
    "tests/server/one_shot/test_sums.py": ALL_TESTS,
    "tests/server/one_shot/test_attacks.py": ALL_TESTS,
    "tests/server/one_shot/test_reserves.py": ALL_TESTS,
    "tests/server/one_shot/test_volunteer_attacks.py": ALL_TESTS,
    "tests/server/one_shot/test_volunteers.py": ALL_TESTS,
    "tests/server/test_seating.py": ALL_TESTS,
    "tests/server/test_service.py": ALL_TESTS,
    "tests/test_service_capacity.py": ALL_TESTS,
    "tests/test_docs.py": (
        "test_commands_in_the_documents_work",
        "test_the_python_of_the_readme_works",
        "test_the_sdk_page_is_one_program",
    ),
    "tests/test_ledger_again.py": ALL_TESTS,
}
# Laws with several examples of each mechanism: all but the first of each are slow.
LAW_FILES = ("tests/protocol/test_mechanism_laws.py", "tests/protocol/test_report_laws.py")
# Tests of many similar cases that take seconds together: all but the first CASES_KEPT are slow.
CASES_KEPT = 2
REPEATED_TESTS: Final[dict[str, tuple[str, ...]]] = {
    "tests/blindtally/simulate/test_triehh.py": ("test_impossible_studies_have_a_reason",),
    "tests/blindtally/simulate/test_unequal_rounds.py": (
        "test_tables_of_adaptive_rounds_of_any_sizes_are_read",
    ),
    "tests/protocol/mechanisms/iblt/test_approximate_histogram.py": (
        "test_errors_of_all_counts_stay_below_tau",
    ),
    "tests/protocol/mechanisms/reports/test_prefix_extension.py": (
        "test_an_impossible_question_is_refused",
    ),
    "tests/protocol/mechanisms/test_frequency_sketches.py": (
        "test_the_only_item_is_found_in_a_sketch_of_one_row",
    ),
    "tests/protocol/mechanisms/tracked/test_plan_history.py": (
        "test_an_honest_study_has_no_such_plan",
    ),
    "tests/protocol/oracles/hsu2012/test_hsu2012.py": ("test_the_heavy_hitter_is_named",),
    "tests/protocol/oracles/hsu2012/test_projection_oracle.py": (
        "test_simulated_states_are_distributed_as_real_ones",
    ),
    "tests/protocol/oracles/test_privacy.py": (
        "test_every_report_is_within_the_ratio_and_some_reach_it",
        "test_mean_votes_are_p_and_q_exactly_where_hashing_is",
        "test_reports_have_the_distribution_that_was_enumerated",
    ),
    "tests/protocol/oracles/test_statistics.py": (
        "test_estimates_are_unbiased_with_the_formulas_variance_and_intervals",
        "test_values_that_nobody_holds_are_rarely_above_their_threshold",
    ),
    "tests/protocol/quantiles/test_distribution.py": (
        "test_ranks_masses_and_quantiles_are_within_their_intervals",
    ),
    "tests/protocol/sketches/iblt/test_table.py": (
        "test_what_is_read_whole_is_exact_even_without_hash_digits",
    ),
    "tests/protocol/sketches/test_median_estimates.py": (
        "test_sums_of_sketches_have_no_bias_and_true_errors",
    ),
    "tests/protocol/test_mechanism_laws.py": (
        "test_a_vector_is_one_of_the_plans_ring",
        "test_estimates_are_unbiased_with_the_reported_variance",
    ),
    "tests/protocol/test_one_shot_costs.py": (
        "test_a_message_has_shares_of_the_vector_and_some_bytes_for_each_modulus",
        "test_prime_lanes_take_few_more_bytes_than_lanes_modulo_powers_of_two",
    ),
    "tests/protocol/test_report_laws.py": (
        "test_estimates_are_unbiased_with_the_reported_variance_and_intervals",
        "test_intervals_of_rare_items_reach_below_nothing_and_cover",
        "test_the_bytes_reveal_no_more_than_is_charged",
    ),
    "tests/secagg/test_graph_cuts.py": ("test_sizes_that_are_left_out_change_no_decision",),
    "tests/secagg/test_security_proof.py": (
        "test_all_terms_together_are_at_most_two_to_the_minus_sigma",
    ),
    "tests/secagg/test_shamir.py": ("test_the_largest_and_smallest_sums_do_not_overflow",),
    "tests/secagg/test_sum.py": ("test_the_allowed_dropouts_leave_the_sum_of_the_survivors_exact",),
    "tests/secagg/test_vectors.py": ("test_a_file_is_what_the_generator_writes",),
    "tests/server/pages/test_cloning.py": (
        "test_a_clone_of_a_study_from_the_form_is_the_same_study",
    ),
    "tests/server/pages/test_study_in_words.py": (
        "test_a_page_has_the_question_in_words_and_a_command",
    ),
    "tests/server/test_full_disk.py": ("test_devices_wait_while_the_disk_is_full",),
}
POSTGRES = {"postgres", "postgresql"}  # parameters of fixtures that choose a database

for _profile, _examples in (("quick", 3), ("test", 6), ("slow", 100)):
    settings.register_profile(_profile, deadline=None, max_examples=_examples)
settings.load_profile("test")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out whole files without importing them, which takes seconds in every worker."""
    path, left_out = collection_path.relative_to(config.rootpath).as_posix(), config.option.markexpr
    slow = "not slow" in left_out and SLOW_TESTS.get(path) == ALL_TESTS
    medium = "not medium" in left_out and MEDIUM_TESTS.get(path) == ALL_TESTS
    return slow or medium or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its speed."""
    tried = Counter[tuple[str, ...]]()
    for item in items:
        path, _, test = item.nodeid.partition("::")
        name, _, case = test.partition("[")
        mechanism = case.partition(",")[0]
        is_repeated = path in LAW_FILES and tried[path, name, mechanism] > 0
        if name in REPEATED_TESTS.get(path, ()):
            is_repeated |= tried[path, name] >= CASES_KEPT
        if is_repeated or _needs_postgres(item) or _is("slow", path, test):
            item.add_marker("slow")
            continue
        tried.update([(path, name), (path, name, mechanism)])
        if _is("medium", path, test):
            item.add_marker("medium")


def pytest_collection_finish() -> None:
    """Leave modules and tests, which stay until the end, out of every search for garbage.

    Searches are also rarer than by default: they took a tenth of the time of the server's tests.
    """
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)


def _is(speed: str, path: str, test: str) -> bool:
    """Return whether the table of `speed` names `test`, or a folder or file that it is in."""
    begins = _begins(speed, path)
    case = test[test.find("[") :] if "[" in test else ""
    return test.startswith(begins) or case.startswith(begins)


@functools.cache
def _begins(speed: str, path: str) -> tuple[str, ...]:
    """Return the beginnings of the tests of `speed` in a file."""
    rows = {"slow": SLOW_TESTS, "medium": MEDIUM_TESTS}[speed].items()
    return tuple(b for part, begins in rows if f"{path}/".startswith(f"{part}/") for b in begins)


def _needs_postgres(item: pytest.Item) -> bool:
    chosen = (
        item.callspec.params.values()
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else ()
    )
    kinds = {value for value in chosen if isinstance(value, str)}
    return "postgres_server" in getattr(item, "fixturenames", ()) or bool(POSTGRES & kinds)


def pytest_xdist_auto_num_workers() -> int:
    """Return the workers of `--numprocesses auto`: one more than cores, because tests wait."""
    return (os.cpu_count() or 1) + 1
