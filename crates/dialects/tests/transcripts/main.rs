//! Replays every transcript to the real dialect and compares the output.
//!
//! `transcripts/README.md` explains the format. `UPDATE_TRANSCRIPTS=1` records the current output;
//! read the difference before you accept it.

#![allow(clippy::disallowed_methods, reason = "a test reads and writes its own transcripts")]

mod replay;
mod format;
mod parse;
mod parse_answers;
mod random;
mod random_zyra;
mod random_envelope;
mod random_mira;
mod random_synesthetic;
mod random_workstation;

use std::fs;
use std::path::{Path, PathBuf};

use replay::replay;

#[test]
fn a_session_of_2024_11_05_has_only_names_and_texts() {
    check("mcp/2024-11-05.txt");
}

#[test]
fn a_session_of_2025_03_26_has_annotations_and_batches() {
    check("mcp/2025-03-26.txt");
}

#[test]
fn a_session_of_2025_06_18_has_structured_results() {
    check("mcp/2025-06-18.txt");
}

#[test]
fn a_session_of_2025_11_25_reports_invalid_arguments_to_the_model() {
    check("mcp/2025-11-25.txt");
}

#[test]
fn a_request_of_2026_07_28_needs_no_session() {
    check("mcp/2026-07-28.txt");
}

#[test]
fn stateless_http_answers_each_post_independently() {
    check("mcp/http-stateless.txt");
}

#[test]
fn http_sessions_are_identified_by_a_header() {
    check("mcp/http-sessions.txt");
}

#[test]
fn the_members_of_a_request_decide_its_era() {
    check("mcp/eras.txt");
}

#[test]
fn headers_that_differ_from_the_body_are_refused() {
    check("mcp/headers.txt");
}

#[test]
fn lists_are_continued_by_cursor() {
    check("mcp/cursors.txt");
}

#[test]
fn a_listed_tool_has_only_members_of_the_revision() {
    check("mcp/schemas.txt");
}

#[test]
fn every_error_is_encoded_for_every_revision() {
    check("mcp/refusals.txt");
}

#[test]
fn parameters_of_the_wrong_shape_are_refused_by_name() {
    check("mcp/parameters.txt");
}

#[test]
fn progress_only_grows() {
    check("mcp/progress.txt");
}

#[test]
fn log_lines_are_sent_from_the_requested_level() {
    check("mcp/logging.txt");
}

#[test]
fn a_cancelled_request_is_not_answered() {
    check("mcp/cancellation.txt");
}

#[test]
fn only_2025_03_26_supports_batches() {
    check("mcp/batches.txt");
}

#[test]
fn an_id_is_returned_unchanged() {
    check("mcp/ids.txt");
}

#[test]
fn malformed_frames_are_refused_and_notifications_never_answered() {
    check("mcp/malformed.txt");
}

#[test]
fn transport_refusals_are_json_rpc_errors() {
    check("mcp/rejected-frames.txt");
}

#[test]
fn zyra_discovery_is_served_at_every_path_of_its_clients() {
    check("zyra/discovery.txt");
}

#[test]
fn a_zyra_call_returns_the_output_of_a_command_line() {
    check("zyra/calls.txt");
}

#[test]
fn every_error_is_encoded_for_zyra() {
    check("zyra/refusals.txt");
}

#[test]
fn a_malformed_zyra_message_is_refused_and_the_next_is_read() {
    check("zyra/malformed.txt");
}

#[test]
fn a_zyra_job_is_returned_at_its_path() {
    check("zyra/jobs.txt");
}

#[test]
fn a_zyra_job_is_reported_by_server_sent_events() {
    check("zyra/progress.txt");
}

#[test]
fn a_zyra_job_is_reported_on_the_socket_that_started_it() {
    check("zyra/websocket.txt");
}

#[test]
fn a_zyra_job_is_reported_on_its_own_socket() {
    check("zyra/job-socket.txt");
}

#[test]
fn a_synesthetic_method_calls_a_tool_and_returns_its_output() {
    check("synesthetic/calls.txt");
}

#[test]
fn a_synesthetic_id_is_returned_unchanged() {
    check("synesthetic/ids.txt");
}

#[test]
fn a_malformed_synesthetic_request_is_refused_and_the_next_is_read() {
    check("synesthetic/malformed.txt");
}

#[test]
fn every_error_is_encoded_for_synesthetic() {
    check("synesthetic/refusals.txt");
}

#[test]
fn synesthetic_over_http_answers_each_post() {
    check("synesthetic/http.txt");
}

#[test]
fn the_four_methods_of_mira_call_tools_with_its_own_parameters() {
    check("mira/calls.txt");
}

#[test]
fn a_connected_mira_client_receives_program_output() {
    check("mira/streaming.txt");
}

#[test]
fn mira_tools_are_listed_with_only_the_keys_of_the_contract() {
    check("mira/listing.txt");
}

#[test]
fn a_malformed_mira_request_is_refused_and_the_next_is_read() {
    check("mira/malformed.txt");
}

#[test]
fn every_mira_answer_over_http_has_status_200() {
    check("mira/http.txt");
}

#[test]
fn every_error_is_encoded_for_mira() {
    check("mira/refusals.txt");
}

#[test]
fn envelope_requests_are_made_by_path_or_by_method() {
    check("envelope/requests.txt");
}

#[test]
fn every_error_has_an_envelope() {
    check("envelope/refusals.txt");
}

#[test]
fn an_unreadable_http_request_is_refused_in_an_envelope() {
    check("envelope/bodies.txt");
}

#[test]
fn a_malformed_message_is_refused_in_an_envelope_and_the_next_is_read() {
    check("envelope/malformed.txt");
}

#[test]
fn the_nineteen_tools_of_the_workstation_contract_answer_in_text() {
    check("workstation/contract.txt");
}

#[test]
fn every_error_is_encoded_for_the_workstation_contract() {
    check("workstation/refusals.txt");
}

#[test]
fn an_mcp_client_receives_blocks_from_the_workstation_contract() {
    check("workstation/mcp.txt");
}

#[test]
fn the_workstation_contract_has_two_more_http_paths() {
    check("workstation/places.txt");
}

#[test]
fn a_malformed_workstation_message_is_refused_and_the_next_is_read() {
    check("workstation/malformed.txt");
}

#[test]
fn a_task_of_2025_11_25_is_requested_by_a_parameter() {
    check("mcp/tasks-2025-11-25.txt");
}

#[test]
fn a_task_of_2026_07_28_requires_the_declared_extension() {
    check("mcp/tasks-2026-07-28.txt");
}

#[test]
fn revisions_before_tasks_refuse_task_methods() {
    check("mcp/tasks-before.txt");
}

#[test]
fn resources_are_listed_and_read() {
    check("mcp/resources.txt");
}

#[test]
fn a_session_subscribes_to_resources_by_method() {
    check("mcp/resources-sessions.txt");
}

#[test]
fn prompts_are_listed_rendered_and_completed() {
    check("mcp/prompts.txt");
}

#[test]
fn skill_methods_exist_only_in_the_newest_revision() {
    check("mcp/skills.txt");
}

#[test]
fn content_is_encoded_for_each_revision() {
    check("mcp/content.txt");
}

#[test]
fn a_client_is_asked_during_a_call_or_on_its_repeat() {
    check("mcp/questions.txt");
}

#[test]
fn a_subscribed_client_is_notified_of_changes() {
    check("mcp/subscriptions.txt");
}

#[test]
fn the_metadata_of_a_call_is_passed_on() {
    check("mcp/metadata.txt");
}

#[test]
fn every_transcript_has_a_test() {
    let tests = include_str!("main.rs");
    for dialect in ["mcp", "zyra", "synesthetic", "mira", "envelope", "workstation"] {
        for entry in fs::read_dir(folder().join(dialect)).expect("the folder of transcripts") {
            let name = entry.expect("an entry").file_name();
            let call = format!("check(\"{dialect}/{}\")", name.to_string_lossy());
            assert!(tests.contains(&call), "no test replays {dialect}/{name:?}");
        }
    }
}

/// Checks that the dialect's output is that of the transcript `file`.
fn check(file: &str) {
    let path = folder().join(file);
    let recorded = fs::read_to_string(&path).expect("a transcript");
    let (name, _) = file.split_once('/').expect("the dialect's folder");
    let current = replay(&recorded, name);
    if std::env::var_os("UPDATE_TRANSCRIPTS").is_some() {
        fs::write(&path, current).expect("the transcript is writable");
    } else if let Some(difference) = difference(&recorded, &current) {
        panic!("{file}:{difference}");
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts")
}

/// Describes the first difference between two texts, if there is one.
fn difference(recorded: &str, current: &str) -> Option<String> {
    let mut recorded = recorded.lines();
    let mut current = current.lines();
    for number in 1.. {
        match (recorded.next(), current.next()) {
            (None, None) => return None,
            (old, new) if old == new => {}
            (old, new) => {
                let [old, new] = [old, new].map(|line| line.unwrap_or("the end"));
                let same = old.chars().zip(new.chars()).take_while(|(a, b)| a == b).count();
                let excerpt = |line: &str| {
                    line.chars().skip(same.saturating_sub(60)).take(200).collect::<String>()
                };
                let (old, new) = (excerpt(old), excerpt(new));
                return Some(format!("{number}\nrecorded: {old}\n     now: {new}"));
            }
        }
    }
    None
}
