//! Tests of calls whose tool starts its work before the job is accepted.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};

use toolgate_contract::{ToolFuture, ToolId, ToolOutput, ToolSpec};

use super::*;
use crate::CallRateLimit;

/// Tool that starts its work in the check before a call. The work runs until it is cancelled.
struct EarlyStartTool {
    spec: ToolSpec,
    /// Number of started work items of the tool that have not been dropped.
    alive: Arc<AtomicUsize>,
}

/// Work that a tool has started. Dropping this value decrements the counter of running work.
struct CountedToolWork(Arc<AtomicUsize>);

impl Drop for CountedToolWork {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl AnyTool for EarlyStartTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn has_prepare(&self) -> bool {
        true
    }

    fn prepare<'a>(&'a self, ctx: &'a ToolContext, _: &'a Value) -> ToolFuture<'a, ()> {
        Box::pin(async {
            if !ctx.started_work.has_work() {
                self.alive.fetch_add(1, Ordering::AcqRel);
                ctx.started_work.put(CountedToolWork(self.alive.clone()));
            }
            Ok(())
        })
    }

    fn run<'a>(&'a self, ctx: &'a ToolContext, _: Value) -> ToolFuture<'a, ToolOutput> {
        Box::pin(async {
            let _begun = ctx.started_work.take::<CountedToolWork>();
            ctx.cancel.cancelled().await;
            Err(ToolError::canceled())
        })
    }
}

fn add_early_start_tool(parts: &mut TestHostParts) -> Arc<AtomicUsize> {
    let alive = Arc::<AtomicUsize>::default();
    let id = ToolId::new("t.begins").expect("an id");
    let spec = ToolSpec::new(id, "Begins", "", Effects::Reads);
    parts.tools.push(Arc::new(EarlyStartTool { spec, alive: alive.clone() }));
    alive
}

fn wanted() -> HostRequest {
    let tool = "t.begins".to_owned();
    let input = json!({});
    HostRequest::StartJob { tool, input, terms: JobOptions::default() }
}

#[tokio::test]
async fn work_begun_for_a_job_is_dropped_if_the_job_is_refused_or_never_runs() {
    let mut parts = TestHostParts::new();
    let alive = add_early_start_tool(&mut parts);
    let test_host = parts.build();
    let mut last = None;
    // 4 jobs run, and 16 wait.
    for _ in 0..20 {
        last = Some(job(test_host.ask(wanted()).await).id.to_string());
    }
    assert_eq!(alive.load(Ordering::Acquire), 20);
    assert!(matches!(test_host.ask(wanted()).await, Err(CallError::Limited { .. })));
    assert_eq!(alive.load(Ordering::Acquire), 20);
    let last = last.expect("a job");
    test_host.ask(cancel_request(&last)).await.map(drop).expect("it is cancelled");
    test_host.ended(&last).await;
    assert_eq!(alive.load(Ordering::Acquire), 19);
}

#[tokio::test]
async fn no_work_begins_for_a_job_beyond_the_rate_limit() {
    let mut parts = TestHostParts::new();
    let alive = add_early_start_tool(&mut parts);
    let hour = Duration::from_secs(3600);
    let rate = CallRateLimit { tools: "t.*".to_owned(), calls: NonZeroU32::MIN, per: hour };
    parts.limits = parts.limits.with_rates(&[rate]).expect("a sound rule");
    let test_host = parts.build();
    test_host.ask(wanted()).await.map(drop).expect("the first is accepted");
    assert!(matches!(test_host.ask(wanted()).await, Err(CallError::Limited { .. })));
    assert_eq!(alive.load(Ordering::Acquire), 1);
}

#[tokio::test]
async fn a_waiting_job_whose_work_a_stopped_server_began_ends_as_interrupted() {
    let parts = || {
        let mut parts = TestHostParts::new();
        add_early_start_tool(&mut parts);
        parts.jobs.running_max = 1;
        parts
    };
    let first = parts();
    let folder = first.folder.clone();
    let test_host = first.build();
    test_host.ask(wanted()).await.map(drop).expect("it is accepted");
    let waiting = job(test_host.ask(wanted()).await).id.to_string();
    test_host.host.stop_jobs().await;
    drop(test_host);

    let test_host = TestHostParts { folder, ..parts() }.build();
    let tending = async {
        let ended = test_host.ended(&waiting).await;
        assert!(matches!(ended.outcome, Some(Err(CallError::Interrupted))), "{ended:?}");
        test_host.host.stop_jobs().await;
    };
    tokio::join!(test_host.host.maintain_jobs(), tending);
}
