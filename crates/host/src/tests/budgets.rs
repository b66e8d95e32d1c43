//! Tests of the limits on the bytes that each caller may write, and may send and receive.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use toolgate_contract::{
    CallError, Caller, Effects, HostAnswer, Tool, ToolContext, ToolError, UnstructuredResult,
    erase_tool,
};

use super::{TestHost, TestHostParts, asked, call};
use crate::{CallLimits, CallerByteRate, IncomingRequest};

/// Tool that reserves `written` bytes of its caller's write budget, and returns `answered` bytes.
/// Both numbers are in its input.
struct ByteBudgetTool;

#[derive(Deserialize, JsonSchema)]
struct ByteBudgetToolInput {
    #[serde(default)]
    written: u64,
    #[serde(default)]
    answered: usize,
}

impl Tool for ByteBudgetTool {
    const NAME: &'static str = "t.writes";
    const TITLE: &'static str = "Writes";
    const DESCRIPTION: &'static str = "Writes a number of bytes.";
    const EFFECTS: Effects = Effects::Changes;
    type Input = ByteBudgetToolInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        if input.written > 0 {
            ctx.write_budget.reserve(input.written)?;
        }
        Ok(UnstructuredResult::text("x".repeat(input.answered)))
    }
}

fn test_host(limit: impl FnOnce(CallLimits) -> CallLimits) -> TestHost {
    let mut parts = TestHostParts::new();
    parts.tools = vec![erase_tool(ByteBudgetTool)];
    parts.limits = limit(parts.limits);
    parts.build()
}

async fn write(
    test_host: &TestHost,
    caller: &str,
    written: u64,
    answered: usize,
) -> Result<(), CallError> {
    let request = call("t.writes", json!({ "written": written, "answered": answered }));
    let caller = Caller::with_key(caller);
    let answer = test_host.host.answer(IncomingRequest { caller, ..asked(request) }).await?;
    assert!(matches!(answer, HostAnswer::Output(_)));
    Ok(())
}

/// Checks that the caller exceeded a byte budget, and returns the time after which it may retry.
#[track_caller]
fn retry_time(answer: Result<(), CallError>, expected: &str) -> Duration {
    match answer {
        Err(err @ CallError::Limited { retry_after, .. }) => {
            assert!(err.to_string().contains(expected), "{err}");
            retry_after
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_caller_that_wrote_too_much_gets_a_retry_time_and_is_admitted_after_it() {
    let rate = CallerByteRate { at_once: 100_000, per_second: 50_000 };
    let test_host = test_host(|limits| limits.with_write_budget(rate));
    for _ in 0..2 {
        write(&test_host, "ada", 60_000, 0).await.expect("it fits");
    }
    let after = retry_time(write(&test_host, "ada", 1, 0).await, "written too many bytes recently");
    assert!(!after.is_zero() && after < Duration::from_millis(500), "{after:?}");
    // A call that writes nothing, and another caller, are not limited.
    write(&test_host, "ada", 0, 0).await.expect("it writes nothing");
    write(&test_host, "bob", 60_000, 0).await.expect("his first");
    tokio::time::sleep(after).await;
    write(&test_host, "ada", 1, 0).await.expect("the budget has refilled");
    assert_eq!(test_host.records().iter().filter(|record| record.ends_with("limited")).count(), 1);
}

#[tokio::test]
async fn a_caller_that_received_too_much_gets_a_retry_time_and_others_are_not_limited() {
    let rate = CallerByteRate { at_once: 100_000, per_second: 50_000 };
    let test_host = test_host(|limits| limits.with_traffic_budget(rate));
    for _ in 0..2 {
        write(&test_host, "ada", 0, 80_000).await.expect("it fits");
    }
    let after = retry_time(
        write(&test_host, "ada", 0, 1).await,
        "sent and received too many bytes recently",
    );
    assert!(!after.is_zero() && after < Duration::from_secs(2), "{after:?}");
    write(&test_host, "bob", 0, 1).await.expect("his first");
    tokio::time::sleep(after).await;
    write(&test_host, "ada", 0, 1).await.expect("the budget has refilled");
}
