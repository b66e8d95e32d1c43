//! Tests that a person confirms programs, and that programs receive the trace context.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value, json};
use toolgate_contract::{
    ClientAnswer, ClientAnswers, ClientQuestion, ClientQuestions, ElicitationAnswer, QuestionAsker,
    QuestionSender, QuestionSupport, ToolContext, ToolErrorKind, ToolFuture, TraceContext,
};

use super::{ExecTestBench, ctx};
use crate::exec::ExecSettings;

/// A simulated person who gives every question the same answer.
struct ConstantAnswerSender {
    choice: ElicitationAnswer,
    asked: Mutex<Vec<(String, String)>>,
}

impl QuestionSender for ConstantAnswerSender {
    fn ask(&self, questions: ClientQuestions) -> ToolFuture<'_, ClientAnswers> {
        let answers = questions.into_iter().map(|(key, question)| {
            let ClientQuestion::Form { message, .. } = question else {
                panic!("not a form: {question:?}")
            };
            self.asked.lock().unwrap().push((key.clone(), message));
            (key, ClientAnswer::Choice(self.choice.clone()))
        });
        let answers: ClientAnswers = answers.collect();
        Box::pin(async move { Ok(answers) })
    }
}

fn person(choice: ElicitationAnswer) -> (Arc<ConstantAnswerSender>, ToolContext) {
    let person = Arc::new(ConstantAnswerSender { choice, asked: Mutex::default() });
    let support = QuestionSupport { form: true, ..QuestionSupport::default() };
    let asker = QuestionAsker::during_call(support, person.clone());
    (person, ToolContext { asker, ..ctx() })
}

fn yes() -> ElicitationAnswer {
    ElicitationAnswer::Accepted(Map::new())
}

fn bench(confirm: &[&str]) -> ExecTestBench {
    let confirm = confirm.iter().map(|&pattern| pattern.to_owned()).collect();
    ExecTestBench::with(&ExecSettings { confirm, ..ExecSettings::default() })
}

/// Returns the number of questions that a call with `input` asks, if the setting `exec.confirm` is
/// `confirm`.
async fn question_count(confirm: &[&str], input: Value) -> usize {
    let (person, ctx) = person(yes());
    bench(confirm).call("exec.run", &ctx, input).await.expect("it runs");
    person.asked.lock().unwrap().len()
}

#[tokio::test]
async fn a_confirmed_program_runs_exactly_as_the_question_shows_it() {
    let (person, ctx) = person(yes());
    let input = json!({ "command": "echo", "args": ["a b", "\u{202e}x\n\""], "stdin": "in" });
    let ran = bench(&["echo"]).call("exec.run", &ctx, input).await.expect("it runs");
    assert_eq!(ran.stdout(), "a b \u{202e}x\n\"\n");
    let asked = person.asked.lock().unwrap();
    let [(key, message)] = &asked[..] else { panic!("asked {asked:?}") };
    assert!(key.starts_with("exec.confirm."), "{key}");
    assert!(message.contains(r#"echo" "a b" "\u{202e}x\n\"""#), "{message}");
    assert!(message.contains(r#"Its standard input has 2 bytes: "in""#), "{message}");
}

#[tokio::test]
async fn the_question_names_the_directory_and_the_workspace() {
    let bench = bench(&["true"]);
    std::fs::create_dir(bench.workspace.path().join("a\u{202e}b")).unwrap();
    let root = std::fs::canonicalize(bench.workspace.path()).unwrap();
    let workspace = format!("the workspace {:?} ({root:?})?", root.file_name().unwrap());
    let question = async |input: Value| {
        let (person, ctx) = person(yes());
        bench.call("exec.run", &ctx, input).await.expect("it runs");
        let asked = person.asked.lock().unwrap();
        asked[0].1.lines().next().unwrap().to_owned()
    };
    let at_root = question(json!({ "command": "true" })).await;
    assert_eq!(at_root, format!("Run this in {workspace}"));
    let in_folder = question(json!({ "command": "true", "cwd": "a\u{202e}b" })).await;
    assert_eq!(in_folder, format!(r#"Run this in "a\u{{202e}}b" of {workspace}"#));
}

#[tokio::test]
async fn a_question_asked_by_prepare_is_not_asked_again_by_run() {
    let bench = bench(&["true"]);
    let (person, ctx) = person(yes());
    let tool = bench.tools.iter().find(|tool| tool.spec().id.as_str() == "exec.run").unwrap();
    assert!(tool.has_prepare());
    let input = json!({ "command": "true" });
    tool.prepare(&ctx, &input).await.expect("the person accepts");
    tool.run(&ctx, input).await.expect("it runs");
    assert_eq!(person.asked.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_program_does_not_run_if_the_person_declines_or_cancels() {
    for choice in [ElicitationAnswer::Declined, ElicitationAnswer::Canceled] {
        let bench = bench(&["touch"]);
        let (_, ctx) = person(choice);
        let input = json!({ "command": "touch", "args": ["made"] });
        let err = bench.call("exec.run", &ctx, input).await.expect_err("it is refused");
        assert_eq!(err.fault, ToolErrorKind::NotAllowed);
        assert!(err.message.contains("exec.confirm"), "{}", err.message);
        assert!(!bench.workspace.path().join("made").exists());
    }
}

#[tokio::test]
async fn a_program_does_not_run_if_nobody_can_be_asked() {
    let bench = bench(&["touch"]);
    let input = json!({ "command": "touch", "args": ["made"] });
    let err = bench.run(input).await.expect_err("it is refused");
    assert_eq!(err.fault, ToolErrorKind::NotAllowed);
    assert!(err.message.contains("cannot ask anyone") && err.message.contains("exec.confirm"));
    assert!(!bench.workspace.path().join("made").exists());
    bench.run(json!({ "command": "true" })).await.expect("others run");
}

#[tokio::test]
async fn a_program_runs_only_once_a_client_that_repeats_calls_has_the_answer() {
    let bench = bench(&["touch"]);
    let support = QuestionSupport { form: true, ..QuestionSupport::default() };
    let later =
        ToolContext { asker: QuestionAsker::on_repeat(support, ClientAnswers::new()), ..ctx() };
    let input = json!({ "command": "touch", "args": ["made"] });
    let err = bench.call("exec.run", &later, input.clone()).await.expect_err("it asks");
    let ToolErrorKind::Asks(questions) = err.fault else { panic!("{err:?}") };
    assert!(!bench.workspace.path().join("made").exists());
    let given: ClientAnswers =
        questions.into_keys().map(|key| (key, ClientAnswer::Choice(yes()))).collect();
    let again = ToolContext { asker: QuestionAsker::on_repeat(support, given), ..ctx() };
    bench.call("exec.run", &again, input).await.expect("it runs");
    assert!(bench.workspace.path().join("made").exists());
}

#[tokio::test]
async fn a_pattern_matches_a_program_and_its_first_arguments() {
    let echo = |args: Value| json!({ "command": "echo", "args": args });
    assert_eq!(question_count(&["echo push"], echo(json!(["push", "--force"]))).await, 1);
    assert_eq!(question_count(&["echo push"], echo(json!(["pull"]))).await, 0);
    assert_eq!(question_count(&["echo push"], echo(json!([]))).await, 0);
    assert_eq!(question_count(&["echo push"], echo(json!(["push it"]))).await, 0);
    assert_eq!(question_count(&["ech", "", "  "], echo(json!(["push"]))).await, 0);
    let sh = json!({ "command": "true", "shell": true });
    assert_eq!(question_count(&["sh"], sh.clone()).await, 1);
    assert_eq!(question_count(&["true"], sh).await, 0);
}

#[tokio::test]
async fn a_program_under_another_name_needs_the_same_confirmation() {
    let bench = bench(&["tool"]);
    bench.put("tool", "#!/bin/sh\n");
    symlink("tool", bench.workspace.path().join("other")).unwrap();
    for command in ["./tool", "./other", "./../../../../../..{}/tool"] {
        let command = command.replace("{}", bench.workspace.path().to_str().unwrap());
        let err = bench.run(json!({ "command": command })).await.expect_err("it is refused");
        assert_eq!(err.fault, ToolErrorKind::NotAllowed, "{command}: {err:?}");
    }
}

#[tokio::test]
async fn a_command_line_too_long_for_the_question_is_not_run() {
    let (person, ctx) = person(yes());
    let input = json!({ "command": "echo", "args": ["x".repeat(9000)] });
    let err = bench(&["echo"]).call("exec.run", &ctx, input).await.expect_err("it is refused");
    assert_eq!(err.fault, ToolErrorKind::NotAllowed);
    assert!(person.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_program_gets_the_trace_context_of_its_call() {
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let traced = |state: Option<&str>| {
        let trace = TraceContext::parse(PARENT, state, Some("user=ada"));
        ToolContext { trace: Some(trace.expect("it is well-formed")), ..ctx() }
    };
    let bench = ExecTestBench::new();
    let lines = async |ctx: &ToolContext, env: Value| {
        let input = json!({ "command": "env", "env": env });
        let ran = bench.call("exec.run", ctx, input).await.expect("env runs");
        let is_trace = |line: &&str| line.contains("TRACE") || line.contains("BAGGAGE");
        ran.stdout().lines().filter(is_trace).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let parent = format!("TRACEPARENT={PARENT}");
    let set = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(
        lines(&traced(Some("a=1")), json!({})).await,
        set(&[&parent, "TRACESTATE=a=1", "BAGGAGE=user=ada"])
    );
    assert_eq!(lines(&traced(None), json!({})).await, set(&[&parent, "BAGGAGE=user=ada"]));
    assert_eq!(
        lines(&traced(None), json!({ "TRACEPARENT": "mine" })).await,
        set(&["TRACEPARENT=mine", "BAGGAGE=user=ada"])
    );
    assert_eq!(lines(&ctx(), json!({})).await, set(&[]));
}

#[tokio::test]
async fn the_question_names_the_target_of_a_symlink_and_another_target_needs_another_answer() {
    let bench = bench(&["touch", "rm"]);
    let link = bench.workspace.path().join("tool");
    let point_link_to = |program: &str| {
        let _ = std::fs::remove_file(&link);
        symlink(program, &link).unwrap();
    };
    point_link_to("/usr/bin/touch");
    let input = json!({ "command": "./tool", "args": ["made"] });
    let support = QuestionSupport { form: true, ..QuestionSupport::default() };
    let ask = async |given: ClientAnswers| {
        let ctx = ToolContext { asker: QuestionAsker::on_repeat(support, given), ..ctx() };
        let err = bench.call("exec.run", &ctx, input.clone()).await.expect_err("it asks");
        let ToolErrorKind::Asks(questions) = err.fault else { panic!("{err:?}") };
        questions.into_iter().next().expect("a question")
    };
    let (key, question) = ask(ClientAnswers::new()).await;
    let ClientQuestion::Form { message, .. } = question else { panic!("not a form") };
    let real = std::fs::canonicalize("/usr/bin/touch").unwrap();
    assert!(message.contains(&format!("The program is {real:?}")), "{message}");
    std::fs::write(bench.workspace.path().join("made"), "").unwrap();
    point_link_to("/usr/bin/rm");
    let (other, _) = ask(ClientAnswers::from([(key.clone(), ClientAnswer::Choice(yes()))])).await;
    assert_ne!(other, key);
    assert!(bench.workspace.path().join("made").exists());
}
