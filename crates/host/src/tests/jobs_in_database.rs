//! Tests of two hosts that share their jobs in a database, like servers of two machines.

use toolgate_contract::JobState;
use toolgate_postgres::{DatabasePassword, PostgresAddress};

use super::*;
use crate::database_server::PostgresServerProcess;
use crate::{FleetServerProfile, PostgresStoreSettings};

/// Returns two hosts whose folders differ and whose jobs are in the database of `server`.
fn hosts_of_two_machines(server: &PostgresServerProcess) -> [TestHost; 2] {
    [(); 2].map(|()| {
        let address =
            PostgresAddress::parse(&server.url(), "PGPASSWORD", &DatabasePassword::default());
        let mut parts = TestHostParts::new();
        parts.jobs.place = JobStoreKind::Postgres(Box::new(PostgresStoreSettings {
            address: address.expect("an address"),
            workspace: "workspace".to_owned(),
            lease: Duration::from_secs(30),
            lost_after: Duration::from_secs(300),
            files: None,
            profile: FleetServerProfile::default(),
        }));
        parts.build()
    })
}

fn answer(id: &str, given: ClientAnswers) -> HostRequest {
    HostRequest::AnswerJob { id: id.to_owned(), given }
}

fn open(job: &JobSnapshot) -> Vec<&str> {
    job.questions.keys().map(String::as_str).collect()
}

#[tokio::test]
async fn a_job_is_answered_and_cancelled_at_a_server_of_another_machine() {
    let server = PostgresServerProcess::start();
    let [first, second] = hosts_of_two_machines(&server);
    let started = first.start("t.asks", json!({ "rounds": [["one"], ["two"]] })).await;
    let id = started.id.to_string();
    let elsewhere = async {
        let asks = second.wait_for(&id, |job| !job.questions.is_empty()).await;
        assert_eq!(open(&asks), ["one"]);
        let answered = job(second.ask(answer(&id, given([("one", accepted("1"))]))).await);
        assert!(!answered.questions.contains_key("one"), "{answered:?}");
        let asks = second.wait_for(&id, |job| job.questions.contains_key("two")).await;
        assert_eq!(open(&asks), ["two"]);
        let canceled = job(second.ask(cancel_request(&id)).await);
        assert_eq!((canceled.state, canceled.questions.len()), (JobState::Canceled, 0));
        first.host.stop_jobs().await;
    };
    tokio::join!(first.host.maintain_jobs(), elsewhere);
    assert_eq!(first.records(), ["t.asks canceled"]);
}

#[tokio::test]
async fn a_stopped_server_leaves_its_jobs_to_another_machine_at_once() {
    let server = PostgresServerProcess::start();
    let [first, second] = hosts_of_two_machines(&server);
    let started = first.start("t.asks", json!({ "rounds": [["one"]] })).await;
    let id = started.id.to_string();
    first.wait_for(&id, |job| !job.questions.is_empty()).await;
    first.host.stop_jobs().await;
    let elsewhere = async {
        let asks = second.wait_for(&id, |job| job.attempts == 2 && !job.questions.is_empty()).await;
        assert_eq!(open(&asks), ["one"]);
        second
            .ask(answer(&id, given([("one", accepted("1"))])))
            .await
            .map(drop)
            .expect("it is answered");
        let ended = second.ended(&id).await;
        let output = ended.outcome.expect("an outcome").expect("it succeeded");
        assert_eq!(output.content[0].as_text(), r#"one="1""#);
        second.host.stop_jobs().await;
    };
    tokio::join!(second.host.maintain_jobs(), elsewhere);
}
