//! Tests that every job store must pass, whatever its engine is.
//!
//! The tests of an engine call [`job_store_tests`] with a folder or database in which its stores
//! keep jobs.

pub(in crate::jobs) mod basic;
pub(in crate::jobs) mod several_servers;
pub(in crate::jobs) mod model;

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use toolgate_contract::{
    BoxFuture, Caller, ClientAnswer, ClientAnswers, ElicitationAnswer, JobArtefact, JobEventKind,
    JobId, JobState, OutputStreamKind, ResultText, ToolId, ToolOutput, ToolRunStatus,
};

use super::store::{
    JobEnd, JobQuestionState, JobStore, JobStoreError, NewJob, TakenOverJobs, TimedJobEvent,
};

/// A folder or a database with a job store that several servers may open, for tests.
pub(in crate::jobs) trait TestStoreLocation {
    /// Number of random runs of operations that are compared with the model of a job store.
    const MODEL_RUNS: u32;

    /// Opens the job store at this location as one more server.
    fn open(&self) -> BoxFuture<'_, Box<dyn JobStore>>;

    /// Returns a new location of the same kind (a folder or a database) that contains no job store
    /// yet.
    fn another(&self) -> Self;
}

/// Defines a test function for each test of a job store. The expression `$place` creates a
/// [`TestStoreLocation`] that contains no job store yet.
macro_rules! job_store_tests {
    ($place:expr) => {
        $crate::jobs::store_tests::job_store_tests! { $place;
            basic::a_job_begins_once_and_ends_once,
            basic::events_are_numbered_without_gaps,
            basic::only_expired_jobs_are_removed,
            basic::beyond_the_limit_the_oldest_jobs_of_the_caller_with_most_are_removed,
            several_servers::each_job_of_a_dead_server_is_adopted_by_one_server,
            several_servers::jobs_of_a_live_server_are_not_adopted,
            several_servers::a_job_that_one_server_may_not_adopt_is_left_for_another,
            several_servers::answers_survive_a_restart_and_the_first_answer_wins,
            several_servers::a_job_keeps_the_kind_scopes_and_roles_of_its_caller,
            several_servers::requests_reach_the_owner_of_a_job_and_cancellations_stay_until_its_end,
            several_servers::requests_about_a_job_go_to_the_server_that_took_it_over,
            several_servers::only_the_owner_of_a_job_writes_about_its_run,
            several_servers::every_server_sees_the_open_questions_of_a_running_job,
            several_servers::a_confirmation_is_used_once_by_all_servers_until_its_record_expires,
        }

        #[test]
        fn the_store_behaves_like_a_list_in_memory() {
            $crate::jobs::store_tests::model::check(&$place);
        }
    };
    ($place:expr; $($module:ident::$name:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::jobs::store_tests::$module::$name(&$place).await;
            }
        )*
    };
}
pub(in crate::jobs) use job_store_tests;

/// Closes a server's job store as a regular stop does.
pub(in crate::jobs) async fn shut_down(store: Box<dyn JobStore>) {
    store.leave().await;
    drop(store);
}

/// Adopts all jobs of dead servers. Skips the step that ends leftover programs of these servers.
pub(in crate::jobs) async fn adopt_all(
    store: &dyn JobStore,
) -> Result<TakenOverJobs, JobStoreError> {
    let mut adopted = store.adopt(std::sync::Arc::new(|_| true)).await?;
    std::mem::replace(&mut adopted.forget_servers, Box::new(|| ()))();
    Ok(adopted)
}

/// Returns client answers that decline the question of each key in `keys`.
pub(in crate::jobs) fn given(keys: &[&str]) -> ClientAnswers {
    keys.iter()
        .map(|key| ((*key).to_owned(), ClientAnswer::Choice(ElicitationAnswer::Declined)))
        .collect()
}

pub(in crate::jobs) fn at(second: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(second) * 1_000_000_000 + 123_456_789).expect("a time")
}

pub(in crate::jobs) fn id(number: u128) -> JobId {
    JobId::from_bits(number << 64 | number)
}

pub(in crate::jobs) fn job(number: u128) -> NewJob {
    NewJob {
        id: id(number),
        tool: ToolId::new("exec.run").expect("an id"),
        input: json!({ "number": u64::try_from(number).expect("small") }),
        caller: Caller::with_key("ada"),
        dialect: "test".into(),
        priority: 3,
        created: at(0),
        keep: Duration::from_secs(60),
        answers: JobQuestionState::default(),
        lane: Some("exec.run@1".to_owned()),
    }
}

pub(in crate::jobs) fn printed(text: &str) -> JobEventKind {
    JobEventKind::Output { stream: OutputStreamKind::Stdout, text: text.to_owned() }
}

pub(in crate::jobs) fn end(second: i64, before: Vec<TimedJobEvent>) -> JobEnd {
    let output = ToolOutput::new(json!(1), ResultText::from_body("one"), ToolRunStatus::Done);
    let artefacts = vec![JobArtefact {
        name: "a.png".to_owned(),
        path: "out/a.png".to_owned(),
        bytes: 3,
        modified: at(second),
        media_type: "image/png".to_owned(),
    }];
    JobEnd {
        at: at(second),
        state: JobState::Succeeded,
        outcome: Ok(output),
        artefacts,
        last_events: before,
    }
}
