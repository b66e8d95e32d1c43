//! Tests of jobs that ask questions, and of jobs as resources.

use std::collections::BTreeMap;

use toolgate_contract::{
    CompletionRequest, CompletionTarget, JobEventKind, JobState, JobStreamItem, JobSupport,
    NoInput, ResourceContents, ResourceCursor, ResourceData, ServerChange,
};

use super::rounds::person;
use super::*;
use crate::job_tools;

fn answer(id: &str, given: ClientAnswers) -> HostRequest {
    HostRequest::AnswerJob { id: id.to_owned(), given }
}

fn open(job: &JobSnapshot) -> Vec<&str> {
    job.questions.keys().map(String::as_str).collect()
}

#[tokio::test]
async fn a_job_continues_once_all_its_questions_are_answered_in_any_number_of_parts() {
    let test_host = TestHostParts::new().build();
    let started = test_host.start("t.asks", json!({ "rounds": [["one", "two"], ["three"]] })).await;
    let id = started.id.to_string();
    let asks = test_host.wait_for(&id, |job| !job.questions.is_empty()).await;
    assert_eq!(open(&asks), ["one", "two"]);
    let part = given([("one", accepted("1")), ("three", accepted("early"))]);
    assert_eq!(open(&job(test_host.ask(answer(&id, part)).await)), ["two"]);
    let wrong = given([("one", accepted("again")), ("two", ClientAnswer::Roots(Vec::new()))]);
    assert_eq!(open(&job(test_host.ask(answer(&id, wrong)).await)), ["two"]);
    test_host
        .ask(answer(&id, given([("two", accepted("2"))])))
        .await
        .map(drop)
        .expect("it is answered");
    let asks = test_host.wait_for(&id, |job| job.questions.contains_key("three")).await;
    assert_eq!(open(&asks), ["three"]);
    test_host
        .ask(answer(&id, given([("three", accepted("3"))])))
        .await
        .map(drop)
        .expect("it is answered");
    let ended = test_host.ended(&id).await;
    let output = ended.outcome.expect("an outcome").expect("it succeeded");
    assert_eq!(output.content[0].as_text(), r#"one="1" two="2" three="3""#);
    assert!(ended.questions.is_empty());
    assert_eq!(test_host.records(), ["t.asks ok"]);
    // Each step is an event: two open, one, none, one, none.
    let (_, mut watch) =
        test_host.host.jobs().expect("jobs").watch(None, &id, 0).await.expect("it");
    let mut steps = Vec::new();
    while let Some(told) = watch.next().await {
        if let JobStreamItem::Event(event) = told
            && let JobEventKind::Asks { open } = event.kind
        {
            steps.push(open);
        }
    }
    assert_eq!(steps, [2, 1, 0, 1, 0]);
}

#[tokio::test]
async fn a_repeated_question_is_asked_once() {
    let test_host = TestHostParts::new().build();
    let started = test_host.start("t.asks", json!({ "rounds": [["go"], ["go"]] })).await;
    let id = started.id.to_string();
    test_host.wait_for(&id, |job| job.questions.contains_key("go")).await;
    test_host
        .ask(answer(&id, given([("go", accepted("1"))])))
        .await
        .map(drop)
        .expect("it is answered");

    let ended = test_host.ended(&id).await;
    let output = ended.outcome.expect("an outcome").expect("it succeeded");
    assert_eq!(output.content[0].as_text(), r#"go="1" go="1""#);
}

#[tokio::test]
async fn a_job_cancelled_during_a_question_ends_at_once_and_closes_the_question() {
    let mut parts = TestHostParts::new();
    parts.settings.cancel_grace = Duration::from_secs(3600);
    let test_host = parts.build();
    let started = test_host.start("t.asks", json!({ "rounds": [["one"]] })).await;
    let id = started.id.to_string();
    test_host.wait_for(&id, |job| !job.questions.is_empty()).await;
    let canceled = job(test_host.ask(cancel_request(&id)).await);
    assert_eq!((canceled.state, canceled.questions.len()), (JobState::Canceled, 0));
    let late = job(test_host.ask(answer(&id, given([("one", accepted("1"))]))).await);
    assert_eq!(late.state, JobState::Canceled);
    assert_eq!(test_host.records(), ["t.asks canceled"]);
}

#[tokio::test]
async fn a_question_is_closed_at_the_deadline_of_its_job() {
    let mut parts = TestHostParts::new();
    parts.settings.job_deadline = Duration::from_millis(200);
    let test_host = parts.build();
    let started = test_host.start("t.asks", json!({ "rounds": [["one"]] })).await;
    let ended = test_host.ended(&started.id.to_string()).await;
    assert!(matches!(ended.outcome, Some(Err(CallError::TimedOut { .. }))));
    assert!(ended.questions.is_empty());
}

#[tokio::test]
async fn answers_to_a_job_survive_its_server_and_are_not_asked_again() {
    let parts = TestHostParts::new();
    let folder = parts.folder.clone();
    let test_host = parts.build();
    let started = test_host.start("t.asks", json!({ "rounds": [["one", "two"]] })).await;
    let id = started.id.to_string();
    test_host.wait_for(&id, |job| !job.questions.is_empty()).await;
    test_host
        .ask(answer(&id, given([("one", accepted("1"))])))
        .await
        .map(drop)
        .expect("it is answered");
    test_host.host.stop_jobs().await;
    drop(test_host);

    let test_host = TestHostParts { folder, ..TestHostParts::new() }.build();
    let tending = async {
        let asks = test_host.wait_for(&id, |job| !job.questions.is_empty()).await;
        assert_eq!((open(&asks), asks.attempts), (vec!["two"], 2));
        test_host
            .ask(answer(&id, given([("two", accepted("2"))])))
            .await
            .map(drop)
            .expect("it is answered");
        let ended = test_host.ended(&id).await;
        let output = ended.outcome.expect("an outcome").expect("it succeeded");
        assert_eq!(output.content[0].as_text(), r#"one="1" two="2""#);
        test_host.host.stop_jobs().await;
    };
    tokio::join!(test_host.host.maintain_jobs(), tending);
}

/// Returns two hosts that share a job store, like two servers of one machine.
fn hosts_of_one_machine() -> [TestHost; 2] {
    let first = TestHostParts::new().build();
    let mut parts = TestHostParts::new();
    parts.jobs.folder = first.folder.path().join("jobs");
    [first, parts.build()]
}

#[tokio::test]
async fn a_job_is_answered_and_cancelled_at_a_server_that_does_not_run_it() {
    let [first, second] = hosts_of_one_machine();
    let started = first.start("t.asks", json!({ "rounds": [["one"], ["two"]] })).await;
    let id = started.id.to_string();
    let elsewhere = async {
        let asks = second.wait_for(&id, |job| !job.questions.is_empty()).await;
        assert_eq!(open(&asks), ["one"]);
        let wrong = given([("one", ClientAnswer::Roots(Vec::new())), ("two", accepted("early"))]);
        assert_eq!(open(&job(second.ask(answer(&id, wrong)).await)), ["one"]);
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
async fn a_server_that_awaits_a_job_of_another_passes_its_questions_on() {
    let [first, second] = hosts_of_one_machine();
    let started = first.start("t.asks", json!({ "rounds": [["one"], ["two"]] })).await;
    let id = started.id.to_string();
    let elsewhere = async {
        let asker = person(Some(accepted("x")));
        let request = HostRequest::AwaitJob { id: id.clone() };
        let awaited = second.host.answer(IncomingRequest { asker, ..asked(request) }).await;
        let output = job(awaited).outcome.expect("an outcome").expect("it succeeded");
        assert_eq!(output.content[0].as_text(), r#"one="x" two="x""#);
        first.host.stop_jobs().await;
    };
    tokio::join!(first.host.maintain_jobs(), elsewhere);
}

#[tokio::test]
async fn an_answer_outlives_the_server_that_did_not_fetch_it() {
    let [first, second] = hosts_of_one_machine();
    let started = first.start("t.asks", json!({ "rounds": [["one", "two"]] })).await;
    let id = started.id.to_string();
    // Nothing fulfils requests at the first server, as if it were frozen.
    second.wait_for(&id, |job| !job.questions.is_empty()).await;
    let kept = job(second.ask(answer(&id, given([("one", accepted("1"))]))).await);
    assert_eq!(kept.state, JobState::Running);
    first.host.stop_jobs().await;
    drop(first.host);
    let tending = async {
        let asks = second.wait_for(&id, |job| job.attempts == 2 && !job.questions.is_empty()).await;
        assert_eq!(open(&asks), ["two"]);
        second.host.stop_jobs().await;
    };
    tokio::join!(second.host.maintain_jobs(), tending);
}

#[tokio::test]
async fn questions_before_the_start_are_asked_before_the_job_exists() {
    let test_host = TestHostParts::new().build();
    let request = || HostRequest::StartJob {
        tool: "t.looks".to_owned(),
        input: json!({ "how": "asks" }),
        terms: JobOptions::default(),
    };
    let asker = QuestionAsker::on_repeat(form_alone(), ClientAnswers::new());
    let asks = test_host.host.answer(IncomingRequest { asker, ..asked(request()) }).await;
    let Ok(HostAnswer::Questions { state, .. }) = asks else { panic!("it asks") };
    let asker = QuestionAsker::on_repeat(form_alone(), given([("sure", accepted("x"))]));
    let again = IncomingRequest { asker, state: Some(state), ..asked(request()) };
    let started = job(test_host.host.answer(again).await);
    assert_eq!(test_host.ended(&started.id.to_string()).await.state, JobState::Succeeded);
    assert_eq!(test_host.records(), ["t.looks asks", "t.looks ok"]);
}

async fn contents(test_host: &TestHost, uri: &str) -> Result<ResourceContents, CallError> {
    match test_host.ask(read(uri)).await? {
        HostAnswer::Contents(mut all) => Ok(all.remove(0)),
        _ => panic!("the answer is of another kind"),
    }
}

#[tokio::test]
async fn only_its_caller_can_read_a_job_with_its_output_and_files() {
    let test_host = TestHostParts::new().build();
    let started = test_host.start("t.prints", json!({ "text": "line\n", "times": 3 })).await;
    let id = started.id.to_string();
    test_host.ended(&id).await;
    let own = format!("job://{id}");
    let told = contents(&test_host, &own).await.expect("it is read");
    let ResourceData::Text(json) = &told.held else { panic!("it is text") };
    let json: Value = serde_json::from_str(json).expect("JSON");
    assert_eq!((json["job_id"].as_str(), json["state"].as_str()), (Some(&*id), Some("succeeded")));
    let output = contents(&test_host, &format!("{own}/output")).await.expect("it is read");
    assert_eq!(output.held, ResourceData::Text("line\nline\nline\n".to_owned()));
    let notes = contents(&test_host, &format!("{own}/files/notes.txt")).await.expect("it is read");
    assert_eq!(
        (notes.media_type.as_deref(), notes.held),
        (Some("text/plain"), ResourceData::Text("done".into()))
    );
    let plot =
        contents(&test_host, &format!("{own}/files/a%20plot.png")).await.expect("it is read");
    assert_eq!(plot.media_type.as_deref(), Some("image/png"));
    let ResourceData::Bytes(bytes) = plot.held else { panic!("it is bytes") };
    assert_eq!(&*bytes.0, b"\x89PNG\0");
    for uri in [own.clone(), format!("{own}/output"), format!("{own}/files/notes.txt")] {
        let bobs = IncomingRequest { caller: Caller::with_key("bob"), ..asked(read(&uri)) };
        let refused = test_host.host.answer(bobs).await;
        assert!(matches!(refused, Err(CallError::NotFound { .. })), "{uri}");
    }
    for uri in [format!("{own}/files/other"), format!("{own}/else"), "job://7".to_owned()] {
        let refused = contents(&test_host, &uri).await;
        assert!(matches!(refused, Err(CallError::NotFound { .. })), "{uri}");
    }
}

#[tokio::test]
async fn long_output_of_a_job_is_cut_with_a_note_on_how_to_continue() {
    let test_host = TestHostParts::new().build();
    let text = "x".repeat(40_000);
    let started = test_host.start("t.prints", json!({ "text": text, "times": 20 })).await;
    let id = started.id.to_string();
    test_host.ended(&id).await;
    let output = contents(&test_host, &format!("job://{id}/output")).await.expect("it is read");
    let ResourceData::Text(printed) = output.held else { panic!("it is text") };
    assert!(printed.len() < 500_000, "{} bytes", printed.len());
    let after = printed.rsplit("`cursor`: ").next().and_then(|end| end.strip_suffix(")\n"));
    let after: u64 = after.expect("the note has the position").parse().expect("a number");
    let rest =
        test_host.host.jobs().expect("jobs").read_events(&ada(), &id, after, usize::MAX).await;
    let (_, rest) = rest.expect("the rest");
    let rest = rest.iter().map(|event| match &event.kind {
        JobEventKind::Output { text, .. } => text.len(),
        _ => 0,
    });
    let shown = printed.bytes().filter(|byte| *byte == b'x').count();
    assert_eq!(shown + rest.sum::<usize>(), 800_000);
}

#[tokio::test]
async fn jobs_are_listed_newest_first_with_their_files_and_ids_are_completed() {
    let mut parts = TestHostParts::new();
    parts.settings.page_size = 2;
    parts.deny = vec!["audit.*".to_owned()];
    let test_host = parts.build();
    let mut ids = Vec::new();
    let mut expected = Vec::new();
    for _ in 0..3 {
        let started = test_host.start("t.prints", json!({ "text": "x", "times": 1 })).await;
        let id = started.id.to_string();
        test_host.ended(&id).await;
        let files = ["", "/files/a%20plot.png", "/files/notes.txt"];
        expected.splice(0..0, files.map(|file| format!("job://{id}{file}")));
        ids.insert(0, id);
    }
    let mut all = Vec::new();
    let mut after: Option<ResourceCursor> = None;
    loop {
        let page = match test_host.ask(HostRequest::ListResources { after }).await {
            Ok(HostAnswer::Resources(page)) => page,
            Ok(_) | Err(_) => panic!("they are listed"),
        };
        all.extend(page.resources.into_iter().map(|one| one.uri));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(all, expected);
    let complete = async |template: &str, argument: &str, so_far: &str| {
        let others = BTreeMap::from([("id".to_owned(), ids[0].clone())]);
        let of = CompletionTarget::Template(template.to_owned());
        let argument = argument.to_owned();
        let so_far = so_far.to_owned();
        match test_host
            .ask(HostRequest::Complete(CompletionRequest {
                target: of,
                argument,
                prefix: so_far,
                other_arguments: others,
            }))
            .await
        {
            Ok(HostAnswer::Completion(completion)) => completion.values,
            Ok(_) | Err(_) => panic!("it is completed"),
        }
    };
    assert!(complete("job://{id}", "id", &ids[1][..8]).await.contains(&ids[1]));
    assert_eq!(complete("job://{id}/files/{name}", "name", "no").await, ["notes.txt"]);
}

#[tokio::test]
async fn watchers_are_notified_of_new_jobs_and_of_changes_of_a_job() {
    let test_host = TestHostParts::new().build();
    let interest = toolgate_contract::ChangeFilter { resources: true, ..Default::default() };
    let lists = test_host.host.watch_lists(&interest);
    let mut changes = test_host.host.subscribe();
    let next = async |changes: &mut tokio::sync::broadcast::Receiver<ServerChange>| {
        let told = tokio::time::timeout(Duration::from_secs(20), changes.recv()).await;
        told.expect("in time").expect("a change")
    };
    let input = json!({ "text": "x", "times": 1, "waits": true });
    let id = test_host.start("t.prints", input).await.id.to_string();
    assert_eq!(next(&mut changes).await, ServerChange::Resources);
    drop(lists);
    test_host.wait_for(&id, |job| !job.questions.is_empty()).await;
    let output = format!("job://{id}/output");
    let watch =
        async |uri: &str| match test_host.ask(HostRequest::WatchResource { uri: uri.into() }).await
        {
            Ok(HostAnswer::Watched { hold, .. }) => hold,
            Ok(_) | Err(_) => panic!("it is watched"),
        };
    let _own = watch(&format!("job://{id}")).await;
    let _output = watch(&output).await;
    test_host
        .ask(answer(&id, given([("go", accepted("x"))])))
        .await
        .map(drop)
        .expect("it is answered");
    test_host.ended(&id).await;
    let mut told = Vec::new();
    while told.len() < 2 {
        if let ServerChange::Resource(uri) = next(&mut changes).await
            && !told.contains(&uri)
        {
            told.push(uri);
        }
    }
    told.sort();
    assert_eq!(told, [format!("job://{id}").into(), output.into()]);
}

/// A tool that runs only as a job.
struct JobOnlyTool;

impl Tool for JobOnlyTool {
    const NAME: &'static str = "t.long";
    const TITLE: &'static str = "Long";
    const DESCRIPTION: &'static str = "Takes long.";
    const EFFECTS: Effects = Effects::Reads;
    const JOB: JobSupport = JobSupport::Required;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, _ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        Ok(UnstructuredResult::text("long"))
    }
}

#[tokio::test]
async fn a_direct_call_of_a_tool_that_runs_only_as_a_job_is_refused_and_recorded() {
    let mut parts = TestHostParts::new();
    parts.tools.push(erase_tool(JobOnlyTool));
    let test_host = parts.build();
    let called = test_host.ask(call("t.long", json!({}))).await;
    assert!(matches!(called, Err(CallError::NeedsJob { .. })));
    assert_eq!(test_host.records(), ["t.long needs_job"]);

    let policy = ToolPolicy::new(&["*".to_owned()], &[], Effects::Runs).expect("sound rules");
    let limits = CallLimits::new(1, 1, 1, Duration::from_secs(1));
    let audit = AuditLog::open(&AuditDestination::Off, false).expect("no log");
    let catalog = Catalog::new(vec![erase_tool(JobOnlyTool)]).expect("sound tools");
    let host = Host::new(Gate::new(catalog, policy, limits, audit, GateSettings::default()), None);
    let terms = JobOptions { answer_within: Some(Duration::ZERO), ..JobOptions::default() };
    let tool = "t.long".to_owned();
    let input = json!({});
    let started = host.answer(asked(HostRequest::StartJob { tool, input, terms })).await;
    assert!(matches!(started, Err(CallError::Unavailable { .. })));
}

#[tokio::test]
async fn the_content_of_an_unstructured_result_is_returned_by_jobs_get() {
    let mut parts = TestHostParts::new();
    parts.tools.extend(job_tools(&parts.handle));
    let test_host = parts.build();
    let started = test_host.start("t.prints", json!({ "text": "", "times": 0 })).await;
    let id = started.id.to_string();
    test_host.ended(&id).await;
    let answer = test_host.ask(call("jobs.get", json!({ "job_id": id }))).await;
    let Ok(HostAnswer::Output(output)) = answer else { panic!("jobs.get succeeds") };
    assert_eq!(output.value["result"], "printed");
}

/// A tool that never ends by itself.
struct EndlessTool;

impl Tool for EndlessTool {
    const NAME: &'static str = "t.waits";
    const TITLE: &'static str = "Waits";
    const DESCRIPTION: &'static str = "Waits.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        ctx.cancel.cancelled().await;
        Err(ToolError::canceled())
    }
}

/// Starts a job of `caller` that waits until it is cancelled.
async fn start_waiting(test_host: &TestHost, caller: &str) -> Result<String, CallError> {
    let terms = JobOptions::default();
    let request = HostRequest::StartJob { tool: "t.waits".to_owned(), input: json!({}), terms };
    let caller = Caller::with_key(caller);
    let started = test_host.host.answer(IncomingRequest { caller, ..asked(request) }).await?;
    Ok(job(Ok(started)).id.to_string())
}

/// Checks that a job was refused because the queue is full, and that the error has a retry time.
#[track_caller]
fn check_refusal(started: Result<String, CallError>, expected: &str) {
    match started {
        Err(CallError::Limited { message, retry_after }) => {
            assert!(message.contains(expected) && !retry_after.is_zero(), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn jobs_beyond_the_queue_limit_are_refused_with_a_retry_time_and_recorded() {
    let mut parts = TestHostParts::new();
    parts.tools.push(erase_tool(EndlessTool));
    parts.jobs = JobSettings { running_max: 1, queued_max: 2, ..parts.jobs };
    let test_host = parts.build();
    let running = start_waiting(&test_host, "ada").await.expect("it runs");
    test_host.wait_for(&running, |job| job.state == JobState::Running).await;
    let first = start_waiting(&test_host, "ada").await.expect("it waits");
    start_waiting(&test_host, "bob").await.expect("it waits");
    check_refusal(start_waiting(&test_host, "bob").await, "too many jobs are waiting (limit 2)");
    assert_eq!(test_host.records(), ["t.waits limited"]);
    let canceled = job(test_host.ask(cancel_request(&first)).await);
    assert_eq!(canceled.id.to_string(), first);
    test_host.ended(&first).await;
    start_waiting(&test_host, "bob").await.expect("there is a place");
}

#[tokio::test]
async fn queued_jobs_of_one_caller_leave_places_for_others() {
    let mut parts = TestHostParts::new();
    parts.tools.push(erase_tool(EndlessTool));
    parts.jobs = JobSettings { running_max: 1, queued_per_caller: 2, ..parts.jobs };
    let test_host = parts.build();
    let running = start_waiting(&test_host, "ada").await.expect("it runs");
    test_host.wait_for(&running, |job| job.state == JobState::Running).await;
    for _ in 0..2 {
        start_waiting(&test_host, "ada").await.expect("it waits");
    }
    let refused = start_waiting(&test_host, "ada").await;
    check_refusal(refused, "too many of your jobs are waiting (limit 2)");
    start_waiting(&test_host, "bob").await.expect("it waits");
}
