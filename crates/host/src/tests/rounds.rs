//! Tests of requests that end with questions to the client and are repeated with answers, and of
//! confirmations.

use toolgate_contract::{CallMetadata, QuestionSender, ToolFuture};

use super::*;

/// Sends one request with the answers `given`. Returns the output. If the host asks questions
/// instead, returns the questions and the request state as the error.
async fn round(
    test_host: &TestHost,
    request: HostRequest,
    given: ClientAnswers,
    state: Option<String>,
) -> Result<String, (Vec<String>, String)> {
    let asker = QuestionAsker::on_repeat(form_alone(), given);
    let answer = test_host.host.answer(IncomingRequest { asker, state, ..asked(request) }).await;
    match answer {
        Ok(HostAnswer::Questions { questions, state }) => {
            Err((questions.into_keys().collect(), state))
        }
        other => Ok(text(other)),
    }
}

fn asks(rounds: &[&[&str]]) -> HostRequest {
    call("t.asks", json!({ "rounds": rounds }))
}

#[tokio::test]
async fn two_rounds_of_questions_are_asked_in_turn_and_the_first_answers_are_kept() {
    let test_host = TestHostParts::new().build();
    let request = || asks(&[&["one"], &["two"]]);
    let (open, state) =
        round(&test_host, request(), ClientAnswers::new(), None).await.expect_err("it asks");
    assert_eq!(open, ["one"]);
    let told = given([("one", accepted("1"))]);
    let (open, next) =
        round(&test_host, request(), told, Some(state.clone())).await.expect_err("again");
    assert_eq!(open, ["two"]);
    assert_ne!(next, state);
    let told = given([("two", accepted("2"))]);
    let shown = round(&test_host, request(), told, Some(next)).await.expect("it ends");
    assert_eq!(shown, r#"one="1" two="2""#);
    assert_eq!(test_host.records(), ["t.asks asks", "t.asks asks", "t.asks ok"]);
}

#[tokio::test]
async fn a_missing_answer_is_requested_again_and_an_unasked_one_is_ignored() {
    let test_host = TestHostParts::new().build();
    let request = || asks(&[&["one", "two"], &["three"]]);
    let (open, state) =
        round(&test_host, request(), ClientAnswers::new(), None).await.expect_err("it asks");
    assert_eq!(open, ["one", "two"]);
    // `three` was not asked yet, so its answer is ignored.
    let told = given([("one", accepted("1")), ("three", accepted("3"))]);
    let (open, state) = round(&test_host, request(), told, Some(state)).await.expect_err("it asks");
    assert_eq!(open, ["two"]);
    let wrong = given([("two", ClientAnswer::Roots(Vec::new()))]);
    let (open, state) =
        round(&test_host, request(), wrong, Some(state)).await.expect_err("it asks");
    assert_eq!(open, ["two"]);
    let told = given([("two", accepted("2"))]);
    let (open, _) = round(&test_host, request(), told, Some(state)).await.expect_err("it asks");
    assert_eq!(open, ["three"]);
}

#[tokio::test]
async fn a_client_may_answer_expected_questions_in_its_first_request() {
    let test_host = TestHostParts::new().build();
    let told = given([("one", accepted("1")), ("other", accepted("2"))]);
    assert!(round(&test_host, asks(&[&["one"]]), told, None).await.is_ok());
}

#[tokio::test]
async fn a_request_state_that_was_changed_or_belongs_to_another_is_refused() {
    let test_host = TestHostParts::new().build();
    let request = || asks(&[&["one"]]);
    let (_, state) =
        round(&test_host, request(), ClientAnswers::new(), None).await.expect_err("it asks");
    let check = async |request, caller, state| {
        let asker = QuestionAsker::on_repeat(form_alone(), given([("one", accepted("1"))]));
        let again = IncomingRequest { asker, caller, state: Some(state), ..asked(request) };
        test_host.host.answer(again).await
    };
    let refused = |answer| matches!(answer, Err(CallError::Refused { code: -32602, .. }));
    assert!(refused(check(request(), ada(), format!("{state}-TAMPERED")).await));
    assert!(refused(check(request(), ada(), String::new()).await));
    assert!(refused(check(request(), Caller::with_key("bob"), state.clone()).await));
    assert!(refused(check(asks(&[&["one"], &[]]), ada(), state.clone()).await));
    assert!(check(request(), ada(), state).await.is_ok());
}

#[tokio::test]
async fn a_question_to_a_client_that_cannot_ask_is_an_error() {
    let test_host = TestHostParts::new().build();
    let answer = test_host.ask(asks(&[&["one"]])).await;
    assert!(matches!(answer, Err(CallError::CannotAsk { .. })));
    assert_eq!(test_host.records(), ["t.asks cannot_ask"]);
}

/// Question sender with a simulated user, who gives a fixed answer at once, or never answers.
struct ScriptedQuestionSender(Option<ClientAnswer>);

impl QuestionSender for ScriptedQuestionSender {
    fn ask(&self, questions: ClientQuestions) -> ToolFuture<'_, ClientAnswers> {
        Box::pin(async move {
            match &self.0 {
                Some(answer) => {
                    Ok(questions.into_keys().map(|key| (key, answer.clone())).collect())
                }
                None => std::future::pending().await,
            }
        })
    }
}

/// Returns a question asker with a simulated user, who gives `answer` to every question, or never
/// answers if it is `None`.
pub(super) fn person(answer: Option<ClientAnswer>) -> QuestionAsker {
    QuestionAsker::during_call(form_alone(), Arc::new(ScriptedQuestionSender(answer)))
}

#[tokio::test(start_paused = true)]
async fn a_call_that_needs_confirmation_runs_only_if_a_person_agrees_in_time() {
    let mut parts = TestHostParts::new();
    parts.confirm = vec!["t.looks".to_owned()];
    let test_host = parts.build();
    let check = async |asker| {
        let request = call("t.looks", json!({ "how": "not" }));
        test_host.host.answer(IncomingRequest { asker, ..asked(request) }).await.map(|_| ())
    };
    assert!(check(person(Some(agreed()))).await.is_ok());
    let declined = check(person(Some(ClientAnswer::Choice(ElicitationAnswer::Declined)))).await;
    assert!(matches!(declined, Err(CallError::NotAllowed { .. })), "{declined:?}");
    let silent = check(person(None)).await;
    assert!(matches!(silent, Err(CallError::TimedOut { .. })), "{silent:?}");
    let nobody = check(QuestionAsker::none()).await.expect_err("it is refused");
    assert!(nobody.to_string().contains("tools.confirm"), "{nobody}");
    let outcomes = ["ok", "not_allowed", "timed_out", "not_allowed"];
    assert_eq!(test_host.records(), outcomes.map(|outcome| format!("t.looks {outcome}")));
}

/// Question sender with a simulated user, who answers each question after a delay.
struct SlowQuestionSender(Duration);

impl QuestionSender for SlowQuestionSender {
    fn ask(&self, questions: ClientQuestions) -> ToolFuture<'_, ClientAnswers> {
        Box::pin(async move {
            tokio::time::sleep(self.0).await;
            Ok(questions.into_keys().map(|key| (key, accepted("x"))).collect())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_person_does_not_count_against_the_deadline_up_to_a_limit() {
    let mut parts = TestHostParts::new();
    parts.settings.deadline = Duration::from_secs(1);
    parts.settings.answer_wait = Duration::from_secs(10);
    let test_host = parts.build();
    let check = async |seconds| {
        let asker = QuestionAsker::during_call(
            form_alone(),
            Arc::new(SlowQuestionSender(Duration::from_secs(seconds))),
        );
        let request = asks(&[&["one"], &["two"]]);
        test_host.host.answer(IncomingRequest { asker, ..asked(request) }).await.map(|_| ())
    };
    // Two waits of 4 s are within the limit of 10 s.
    assert!(check(4).await.is_ok());
    let late = check(6).await;
    let eleven = Duration::from_secs(11);
    assert!(matches!(late, Err(CallError::TimedOut { after }) if after == eleven), "{late:?}");
}

#[tokio::test]
async fn a_call_that_needs_confirmation_runs_when_it_is_repeated_with_the_consent() {
    let mut parts = TestHostParts::new();
    parts.confirm = vec!["t.*".to_owned()];
    let test_host = parts.build();
    let request = || call("t.looks", json!({ "how": "asks" }));
    let (open, state) =
        round(&test_host, request(), ClientAnswers::new(), None).await.expect_err("it asks");
    assert_eq!(open, ["toolgate.confirm"]);
    // These answers came before the question.
    for unasked in [agreed(), accepted("x")] {
        let unasked = given([("toolgate.confirm", unasked)]);
        let asks = round(&test_host, request(), unasked, None).await.expect_err("it asks");
        assert_eq!(asks.0, ["toolgate.confirm"]);
    }
    let yes = given([("toolgate.confirm", agreed())]);
    let (open, state) = round(&test_host, request(), yes, Some(state)).await.expect_err("it asks");
    assert_eq!(open, ["sure"]);
    let told = given([("sure", accepted("x"))]);
    assert_eq!(round(&test_host, request(), told, Some(state)).await.expect("it ends"), "done");
}

#[tokio::test]
async fn a_confirmation_that_cannot_be_recorded_for_other_servers_does_nothing() {
    let mut parts = TestHostParts::new();
    parts.confirm = vec!["t.looks".to_owned()];
    std::fs::write(parts.folder.path().join("jobs"), "").expect("a file instead of the folder");
    let test_host = parts.build();
    test_host.host.share_request_states(b"a secret");
    let request = || call("t.looks", json!({ "how": "not" }));
    let (_, state) =
        round(&test_host, request(), ClientAnswers::new(), None).await.expect_err("it asks");
    let asker = QuestionAsker::on_repeat(form_alone(), given([("toolgate.confirm", agreed())]));
    let again = IncomingRequest { asker, state: Some(state), ..asked(request()) };
    let answer = test_host.host.answer(again).await.map(|_| ());
    assert!(matches!(answer, Err(CallError::Unavailable { .. })), "{answer:?}");
    assert_eq!(test_host.records(), ["t.looks asks", "t.looks unavailable"]);
}

#[tokio::test(start_paused = true)]
async fn the_check_before_a_call_is_bounded_and_its_panic_is_an_error() {
    let test_host = TestHostParts::new().build();
    let looks = |how: &str| call("t.looks", json!({ "how": how }));
    let answer = test_host.ask(looks("panics")).await;
    assert!(matches!(answer, Err(CallError::Failed { .. })));
    let answer = test_host.ask(looks("hangs")).await;
    assert!(matches!(answer, Err(CallError::TimedOut { .. })));
    let hangs = asked(looks("hangs"));
    let cancel = hangs.cancel.clone();
    let (answer, ()) = tokio::join!(test_host.host.answer(hangs), async { cancel.cancel() });
    assert!(matches!(answer, Err(CallError::Canceled)));
    let records = ["failed", "timed_out", "canceled"].map(|outcome| format!("t.looks {outcome}"));
    assert_eq!(test_host.records(), records);
}

#[tokio::test]
async fn headers_that_differ_from_the_arguments_are_refused() {
    let test_host = TestHostParts::new().build();
    let check = async |headers: Option<&[(&str, &str)]>| {
        let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), Ok((*text).to_owned()));
        let mirrored = headers.map(|headers| headers.iter().map(owned).collect());
        let metadata = CallMetadata { header_params: mirrored, ..CallMetadata::default() };
        let request = call("t.mirrors", json!({ "region": "eu" }));
        test_host.host.answer(IncomingRequest { metadata, ..asked(request) }).await.map(|_| ())
    };
    assert!(check(None).await.is_ok());
    assert!(check(Some(&[("region", "eu")])).await.is_ok());
    for headers in [&[][..], &[("region", "us")], &[("region", "eu"), ("Region", "eu")]] {
        assert!(
            matches!(check(Some(headers)).await, Err(CallError::Mismatch { .. })),
            "{headers:?}"
        );
    }
}
