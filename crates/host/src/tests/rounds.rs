//! Requests that end with questions and are made again, and what a person is asked before.

use toolgate_contract::{BoxFuture, CallMetadata, QuestionSender};

use super::*;

/// One request with what came with it; the questions and the state it ends with, or what it shows.
async fn round(
    house: &House,
    request: HostRequest,
    given: ClientAnswers,
    state: Option<String>,
) -> Result<String, (Vec<String>, String)> {
    let asker = Asker::on_repeat(form_alone(), given);
    let answer = house.host.answer(IncomingRequest { asker, state, ..asked(request) }).await;
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
async fn two_rounds_are_asked_one_after_the_other_and_the_answers_of_the_first_are_remembered() {
    let house = Plan::new().build();
    let request = || asks(&[&["one"], &["two"]]);
    let (open, state) =
        round(&house, request(), ClientAnswers::new(), None).await.expect_err("it asks");
    assert_eq!(open, ["one"]);
    let told = given([("one", accepted("1"))]);
    let (open, next) =
        round(&house, request(), told, Some(state.clone())).await.expect_err("again");
    assert_eq!(open, ["two"]);
    assert_ne!(next, state);
    let told = given([("two", accepted("2"))]);
    let shown = round(&house, request(), told, Some(next)).await.expect("it ends");
    assert_eq!(shown, r#"one="1" two="2""#);
    assert_eq!(house.records(), ["t.asks asks", "t.asks asks", "t.asks ok"]);
}

#[tokio::test]
async fn a_missing_answer_is_asked_for_again_and_one_to_nothing_is_ignored() {
    let house = Plan::new().build();
    let request = || asks(&[&["one", "two"], &["three"]]);
    let (open, state) =
        round(&house, request(), ClientAnswers::new(), None).await.expect_err("it asks");
    assert_eq!(open, ["one", "two"]);
    // `three` was not asked yet, so this is no answer to it.
    let told = given([("one", accepted("1")), ("three", accepted("3"))]);
    let (open, state) = round(&house, request(), told, Some(state)).await.expect_err("it asks");
    assert_eq!(open, ["two"]);
    let wrong = given([("two", ClientAnswer::Roots(Vec::new()))]);
    let (open, state) = round(&house, request(), wrong, Some(state)).await.expect_err("it asks");
    assert_eq!(open, ["two"]);
    let told = given([("two", accepted("2"))]);
    let (open, _) = round(&house, request(), told, Some(state)).await.expect_err("it asks");
    assert_eq!(open, ["three"]);
}

#[tokio::test]
async fn who_knows_what_it_will_be_asked_may_answer_at_once() {
    let house = Plan::new().build();
    let told = given([("one", accepted("1")), ("other", accepted("2"))]);
    assert!(round(&house, asks(&[&["one"]]), told, None).await.is_ok());
}

#[tokio::test]
async fn a_state_that_is_tampered_with_or_anothers_is_refused() {
    let house = Plan::new().build();
    let request = || asks(&[&["one"]]);
    let (_, state) =
        round(&house, request(), ClientAnswers::new(), None).await.expect_err("it asks");
    let check = async |request, caller, state| {
        let asker = Asker::on_repeat(form_alone(), given([("one", accepted("1"))]));
        let again = IncomingRequest { asker, caller, state: Some(state), ..asked(request) };
        house.host.answer(again).await
    };
    let refused = |answer| matches!(answer, Err(CallError::Refused { code: -32602, .. }));
    assert!(refused(check(request(), ada(), format!("{state}-TAMPERED")).await));
    assert!(refused(check(request(), ada(), String::new()).await));
    assert!(refused(check(request(), Caller::with_key("bob"), state.clone()).await));
    assert!(refused(check(asks(&[&["one"], &[]]), ada(), state.clone()).await));
    assert!(check(request(), ada(), state).await.is_ok());
}

#[tokio::test]
async fn who_cannot_be_asked_is_told_so() {
    let house = Plan::new().build();
    let answer = house.ask(asks(&[&["one"]])).await;
    assert!(matches!(answer, Err(CallError::CannotAsk { .. })));
    assert_eq!(house.records(), ["t.asks cannot_ask"]);
}

/// Answers at once, or never.
struct Person(Option<ClientAnswer>);

impl QuestionSender for Person {
    fn ask(&self, questions: ClientQuestions) -> BoxFuture<'_, Result<ClientAnswers, ToolError>> {
        Box::pin(async move {
            match &self.0 {
                Some(told) => Ok(questions.into_keys().map(|key| (key, told.clone())).collect()),
                None => std::future::pending().await,
            }
        })
    }
}

fn person(told: Option<ClientAnswer>) -> Asker {
    Asker::during_call(form_alone(), Arc::new(Person(told)))
}

#[tokio::test(start_paused = true)]
async fn a_call_to_be_confirmed_is_done_only_if_a_person_agrees_in_time() {
    let mut plan = Plan::new();
    plan.confirm = vec!["t.looks".to_owned()];
    let house = plan.build();
    let check = async |asker| {
        let request = call("t.looks", json!({ "how": "not" }));
        house.host.answer(IncomingRequest { asker, ..asked(request) }).await.map(|_| ())
    };
    assert!(check(person(Some(agreed()))).await.is_ok());
    let declined = check(person(Some(ClientAnswer::Choice(PersonChoice::Declined)))).await;
    assert!(matches!(declined, Err(CallError::NotAllowed { .. })), "{declined:?}");
    let silent = check(person(None)).await;
    assert!(matches!(silent, Err(CallError::TimedOut { .. })), "{silent:?}");
    let nobody = check(Asker::none()).await.expect_err("it is refused");
    assert!(nobody.to_string().contains("tools.confirm"), "{nobody}");
    let outcomes = ["ok", "not_allowed", "timed_out", "not_allowed"];
    assert_eq!(house.records(), outcomes.map(|outcome| format!("t.looks {outcome}")));
}

/// Answers after a while.
struct Late(Duration);

impl QuestionSender for Late {
    fn ask(&self, questions: ClientQuestions) -> BoxFuture<'_, Result<ClientAnswers, ToolError>> {
        Box::pin(async move {
            tokio::time::sleep(self.0).await;
            Ok(questions.into_keys().map(|key| (key, accepted("x"))).collect())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn how_long_a_person_takes_is_not_held_against_a_call_within_reason() {
    let mut plan = Plan::new();
    plan.settings.deadline = Duration::from_secs(1);
    plan.settings.answer_wait = Duration::from_secs(10);
    let house = plan.build();
    let check = async |seconds| {
        let asker = Asker::during_call(form_alone(), Arc::new(Late(Duration::from_secs(seconds))));
        let request = asks(&[&["one"], &["two"]]);
        house.host.answer(IncomingRequest { asker, ..asked(request) }).await.map(|_| ())
    };
    // Twice, and the time left for the work is what it was.
    assert!(check(4).await.is_ok());
    let late = check(6).await;
    let eleven = Duration::from_secs(11);
    assert!(matches!(late, Err(CallError::TimedOut { after }) if after == eleven), "{late:?}");
}

#[tokio::test]
async fn a_call_to_be_confirmed_may_be_made_again_with_the_consent() {
    let mut plan = Plan::new();
    plan.confirm = vec!["t.*".to_owned()];
    let house = plan.build();
    let request = || call("t.looks", json!({ "how": "asks" }));
    let (open, state) =
        round(&house, request(), ClientAnswers::new(), None).await.expect_err("it asks");
    assert_eq!(open, ["toolgate.confirm"]);
    // Nobody was asked when these came.
    for unasked in [agreed(), accepted("x")] {
        let unasked = given([("toolgate.confirm", unasked)]);
        let asks = round(&house, request(), unasked, None).await.expect_err("it asks");
        assert_eq!(asks.0, ["toolgate.confirm"]);
    }
    let yes = given([("toolgate.confirm", agreed())]);
    let (open, state) = round(&house, request(), yes, Some(state)).await.expect_err("it asks");
    assert_eq!(open, ["sure"]);
    let told = given([("sure", accepted("x"))]);
    assert_eq!(round(&house, request(), told, Some(state)).await.expect("it ends"), "done");
}

#[tokio::test(start_paused = true)]
async fn looking_before_is_bounded_and_its_panic_is_an_error() {
    let house = Plan::new().build();
    let looks = |how: &str| call("t.looks", json!({ "how": how }));
    let answer = house.ask(looks("panics")).await;
    assert!(matches!(answer, Err(CallError::Failed { .. })));
    let answer = house.ask(looks("hangs")).await;
    assert!(matches!(answer, Err(CallError::TimedOut { .. })));
    let hangs = asked(looks("hangs"));
    let cancel = hangs.cancel.clone();
    let (answer, ()) = tokio::join!(house.host.answer(hangs), async { cancel.cancel() });
    assert!(matches!(answer, Err(CallError::Canceled)));
    let records = ["failed", "timed_out", "canceled"].map(|outcome| format!("t.looks {outcome}"));
    assert_eq!(house.records(), records);
}

#[tokio::test]
async fn headers_that_say_otherwise_than_the_arguments_are_refused() {
    let house = Plan::new().build();
    let check = async |said: Option<&[(&str, &str)]>| {
        let own = |(name, text): &(&str, &str)| ((*name).to_owned(), Ok((*text).to_owned()));
        let mirrored = said.map(|said| said.iter().map(own).collect());
        let beside = CallMetadata { header_params: mirrored, ..CallMetadata::default() };
        let request = call("t.mirrors", json!({ "region": "eu" }));
        house.host.answer(IncomingRequest { metadata: beside, ..asked(request) }).await.map(|_| ())
    };
    assert!(check(None).await.is_ok());
    assert!(check(Some(&[("region", "eu")])).await.is_ok());
    for said in [&[][..], &[("region", "us")], &[("region", "eu"), ("Region", "eu")]] {
        assert!(matches!(check(Some(said)).await, Err(CallError::Mismatch { .. })), "{said:?}");
    }
}
