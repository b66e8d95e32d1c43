//! Tests of jobs whose tool needs the token of its caller.

use toolgate_contract::{
    BearerToken, ResultText, ToolFuture, ToolId, ToolOutput, ToolRunStatus, ToolSpec,
};

use super::*;

/// A tool that returns the token of its caller.
struct CallerTokenTestTool(ToolSpec);

impl AnyTool for CallerTokenTestTool {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn needs_caller_token(&self) -> bool {
        true
    }

    fn run<'a>(&'a self, ctx: &'a ToolContext, _: Value) -> ToolFuture<'a, ToolOutput> {
        Box::pin(async move {
            let token = ctx.caller.bearer.as_ref().map(BearerToken::as_str);
            Ok(ToolOutput::new(json!(token), ResultText::default(), ToolRunStatus::Done))
        })
    }
}

/// Returns a host with the tool `t.token` that runs at most `running_max` jobs at once.
fn token_host(running_max: usize) -> TestHost {
    let mut parts = TestHostParts::new();
    let id = ToolId::new("t.token").expect("an id");
    let spec = ToolSpec::new(id, "Token", "", Effects::Runs);
    parts.tools.push(Arc::new(CallerTokenTestTool(spec)));
    parts.jobs.running_max = running_max;
    parts.build()
}

/// Starts a job of `t.token` as a caller with a token. With `answer_within`, the host may answer
/// with the result instead of the job.
async fn start_job(
    test_host: &TestHost,
    answer_within: Option<Duration>,
) -> Result<HostAnswer, CallError> {
    let terms = JobOptions { answer_within, ..JobOptions::default() };
    let request = HostRequest::StartJob { tool: "t.token".to_owned(), input: json!({}), terms };
    let caller = Caller { bearer: Some(BearerToken::new("ada-token")), ..ada() };
    test_host.host.answer(IncomingRequest::without_client(request, caller, "test")).await
}

#[tokio::test]
async fn a_job_has_the_token_of_its_caller() {
    let test_host = token_host(4);
    let id = job(start_job(&test_host, None).await).id.to_string();
    let ended = test_host.ended(&id).await;
    let outcome = ended.outcome.expect("an outcome").expect("it succeeds");
    assert_eq!(outcome.value, json!("ada-token"));
}

#[tokio::test]
async fn a_server_without_jobs_refuses_a_job_that_needs_the_token_of_its_caller() {
    let test_host = token_host(0);
    match start_job(&test_host, None).await {
        Err(CallError::Unavailable { message }) => {
            assert!(message.contains("this server runs no jobs"), "{message}");
        }
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it is accepted"),
    }
    match start_job(&test_host, Some(Duration::from_secs(10))).await {
        Ok(HostAnswer::Output(output)) => assert_eq!(output.value, json!("ada-token")),
        Ok(_) => panic!("the answer is of another kind"),
        Err(err) => panic!("{err:?}"),
    }
}
