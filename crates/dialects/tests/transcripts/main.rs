//! Tells every transcript again to the real dialect and compares what it says.
//!
//! `transcripts/README.md` says how one is written. `UPDATE_TRANSCRIPTS=1` writes down what the
//! dialect says now; read the difference before you accept it.

#![allow(clippy::disallowed_methods, reason = "a test reads and writes its own transcripts")]

mod stage;
mod telling;
mod words;
mod shelf;
mod chance;
mod chance_zyra;
mod chance_envelope;
mod chance_mira;
mod chance_synesthetic;
mod chance_workstation;

use std::fs;
use std::path::{Path, PathBuf};

use stage::retell;

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
fn a_session_of_2025_11_25_tells_the_model_what_is_wrong_with_its_arguments() {
    check("mcp/2025-11-25.txt");
}

#[test]
fn a_request_of_2026_07_28_carries_all_it_needs() {
    check("mcp/2026-07-28.txt");
}

#[test]
fn stateless_http_answers_each_post_on_its_own() {
    check("mcp/http-stateless.txt");
}

#[test]
fn sessions_over_http_are_named_by_a_header() {
    check("mcp/http-sessions.txt");
}

#[test]
fn what_a_request_carries_decides_its_era() {
    check("mcp/eras.txt");
}

#[test]
fn headers_that_differ_from_the_body_are_refused() {
    check("mcp/headers.txt");
}

#[test]
fn a_cursor_names_a_place_in_the_list() {
    check("mcp/cursors.txt");
}

#[test]
fn a_tool_is_listed_as_far_as_the_revision_has_words_for_it() {
    check("mcp/schemas.txt");
}

#[test]
fn every_refusal_is_spelled_in_every_revision() {
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
fn log_lines_are_sent_from_the_level_that_was_asked_for() {
    check("mcp/logging.txt");
}

#[test]
fn a_cancelled_request_is_not_answered() {
    check("mcp/cancellation.txt");
}

#[test]
fn only_2025_03_26_takes_batches() {
    check("mcp/batches.txt");
}

#[test]
fn an_id_comes_back_as_it_was_sent() {
    check("mcp/ids.txt");
}

#[test]
fn malformed_frames_are_refused_and_notifications_never_answered() {
    check("mcp/malformed.txt");
}

#[test]
fn what_the_server_turns_away_is_told_in_json_rpc() {
    check("mcp/turned-away.txt");
}

#[test]
fn zyra_is_discovered_under_every_path_its_clients_try() {
    check("zyra/discovery.txt");
}

#[test]
fn a_zyra_call_is_answered_as_a_command_line_would() {
    check("zyra/calls.txt");
}

#[test]
fn every_refusal_is_spelled_in_zyra() {
    check("zyra/refusals.txt");
}

#[test]
fn what_is_no_message_of_zyra_is_refused_and_the_next_is_read() {
    check("zyra/malformed.txt");
}

#[test]
fn a_zyra_job_is_asked_for_by_its_path() {
    check("zyra/jobs.txt");
}

#[test]
fn a_zyra_job_is_told_as_server_sent_events() {
    check("zyra/progress.txt");
}

#[test]
fn a_zyra_job_is_told_on_the_socket_that_started_it() {
    check("zyra/websocket.txt");
}

#[test]
fn a_zyra_job_is_watched_on_a_socket_of_its_own() {
    check("zyra/job-socket.txt");
}

#[test]
fn a_synesthetic_method_is_a_tool_and_its_output_the_result() {
    check("synesthetic/calls.txt");
}

#[test]
fn a_synesthetic_id_comes_back_to_the_byte() {
    check("synesthetic/ids.txt");
}

#[test]
fn what_is_no_request_of_synesthetic_is_refused_and_the_next_is_read() {
    check("synesthetic/malformed.txt");
}

#[test]
fn every_refusal_is_spelled_in_synesthetic() {
    check("synesthetic/refusals.txt");
}

#[test]
fn synesthetic_over_http_is_a_request_and_its_answer() {
    check("synesthetic/http.txt");
}

#[test]
fn the_four_methods_of_mira_s_contract_are_tools_in_its_own_words() {
    check("mira/calls.txt");
}

#[test]
fn a_mira_client_that_stays_connected_is_told_what_a_program_prints() {
    check("mira/streaming.txt");
}

#[test]
fn mira_s_tools_are_listed_with_its_keys_and_no_others() {
    check("mira/listing.txt");
}

#[test]
fn what_is_no_request_of_mira_is_refused_and_the_next_is_read() {
    check("mira/malformed.txt");
}

#[test]
fn a_mira_answer_over_http_has_status_200_whatever_it_says() {
    check("mira/http.txt");
}

#[test]
fn every_refusal_is_spelled_in_mira() {
    check("mira/refusals.txt");
}

#[test]
fn an_envelope_is_asked_for_by_path_or_by_method() {
    check("envelope/asked.txt");
}

#[test]
fn every_refusal_is_enveloped() {
    check("envelope/refusals.txt");
}

#[test]
fn what_cannot_be_read_over_http_is_refused_in_an_envelope() {
    check("envelope/bodies.txt");
}

#[test]
fn what_is_no_message_is_refused_in_an_envelope_and_the_next_is_read() {
    check("envelope/malformed.txt");
}

#[test]
fn the_workstation_contract_has_nineteen_tools_and_answers_in_text() {
    check("workstation/contract.txt");
}

#[test]
fn every_refusal_is_spelled_in_the_workstation_contract() {
    check("workstation/refusals.txt");
}

#[test]
fn a_client_of_mcp_is_given_blocks_by_the_workstation_contract() {
    check("workstation/mcp.txt");
}

#[test]
fn the_workstation_contract_has_two_paths_to_look_at() {
    check("workstation/places.txt");
}

#[test]
fn what_is_no_message_of_the_workstation_contract_is_refused_and_the_next_is_read() {
    check("workstation/malformed.txt");
}

#[test]
fn a_task_of_2025_11_25_is_asked_for_with_a_parameter() {
    check("mcp/tasks-2025-11-25.txt");
}

#[test]
fn a_task_of_2026_07_28_is_for_clients_that_declare_the_extension() {
    check("mcp/tasks-2026-07-28.txt");
}

#[test]
fn a_revision_without_tasks_knows_nothing_of_them() {
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
fn prompts_are_listed_made_and_completed() {
    check("mcp/prompts.txt");
}

#[test]
fn skills_are_for_the_newest_revision() {
    check("mcp/skills.txt");
}

#[test]
fn what_is_shown_is_told_in_the_words_a_revision_has() {
    check("mcp/content.txt");
}

#[test]
fn a_client_is_asked_while_it_waits_or_asks_again() {
    check("mcp/asking.txt");
}

#[test]
fn a_client_that_listens_is_told_of_changes() {
    check("mcp/listening.txt");
}

#[test]
fn what_comes_beside_a_call_is_passed_on() {
    check("mcp/beside.txt");
}

#[test]
fn no_transcript_is_forgotten() {
    let tests = include_str!("main.rs");
    for dialect in ["mcp", "zyra", "synesthetic", "mira", "envelope", "workstation"] {
        for entry in fs::read_dir(folder().join(dialect)).expect("the folder of transcripts") {
            let name = entry.expect("an entry").file_name();
            let call = format!("check(\"{dialect}/{}\")", name.to_string_lossy());
            assert!(tests.contains(&call), "no test tells {dialect}/{name:?}");
        }
    }
}

/// Checks that the dialect still says what the transcript `file` records.
fn check(file: &str) {
    let path = folder().join(file);
    let recorded = fs::read_to_string(&path).expect("a transcript");
    let (name, _) = file.split_once('/').expect("the dialect's folder");
    let told = retell(&recorded, name);
    if std::env::var_os("UPDATE_TRANSCRIPTS").is_some() {
        fs::write(&path, told).expect("the transcript is writable");
    } else if let Some(difference) = difference(&recorded, &told) {
        panic!("{file}:{difference}");
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts")
}

/// Where two texts first differ.
fn difference(recorded: &str, told: &str) -> Option<String> {
    let mut was = recorded.lines();
    let mut is = told.lines();
    for number in 1.. {
        match (was.next(), is.next()) {
            (None, None) => return None,
            (was, is) if was == is => {}
            (was, is) => {
                let [was, is] = [was, is].map(|line| line.unwrap_or("the end"));
                let same = was.chars().zip(is.chars()).take_while(|(a, b)| a == b).count();
                let near = |line: &str| {
                    line.chars().skip(same.saturating_sub(60)).take(200).collect::<String>()
                };
                return Some(format!("{number}\nrecorded: {}\n     now: {}", near(was), near(is)));
            }
        }
    }
    None
}
