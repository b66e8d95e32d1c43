//! Compares the store with a simple list in memory.

use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use toolgate_contract::{
    CallError, Caller, ClientQuestions, JobEvent, JobEventKind, JobId, JobOutputText, JobSnapshot,
    JobState, LogLevel, OutputStreamKind,
};

use super::{TestStoreLocation, adopt_all, at, end, id, job, shut_down};
use crate::jobs::store::{JobStore, NewJob, TimedJobEvent};

/// Model of a job for tests, with its events and internal data.
struct ModeledJob {
    job: JobSnapshot,
    input: serde_json::Value,
    events: Vec<JobEvent>,
    ended: Option<Timestamp>,
}

/// Model of a job store for tests: all jobs, in the order in which they were accepted.
#[derive(Default)]
struct JobStoreModel(Vec<ModeledJob>);

/// Operation that a test makes on the job store and on its model.
#[derive(Debug, Clone)]
enum JobStoreModelOperation {
    Accept { key: u128, caller: &'static str, keep: u64 },
    Begin(u128),
    Requeue(u128),
    Append(u128, Vec<JobEventKind>),
    Finish { key: u128, state: JobState, before: Vec<JobEventKind>, artefacts: bool },
    Forget { ended_max: usize },
    Reopen,
}

fn ops() -> impl Strategy<Value = Vec<JobStoreModelOperation>> {
    let key = || 1..7_u128;
    let callers = prop::sample::select(vec!["ada", "bob"]);
    let states =
        prop::sample::select(vec![JobState::Succeeded, JobState::Failed, JobState::Canceled]);
    let op = prop_oneof![
        5 => (key(), callers, 0..20_u64)
            .prop_map(|(key, caller, keep)| JobStoreModelOperation::Accept { key, caller, keep }),
        4 => key().prop_map(JobStoreModelOperation::Begin),
        2 => key().prop_map(JobStoreModelOperation::Requeue),
        5 => (key(), events_up_to(5)).prop_map(|(key, events)| JobStoreModelOperation::Append(key, events)),
        4 => (key(), states, events_up_to(3), any::<bool>())
            .prop_map(|(key, state, before, artefacts)| JobStoreModelOperation::Finish { key, state, before, artefacts }),
        2 => (0..6_usize).prop_map(|ended_max| JobStoreModelOperation::Forget { ended_max }),
        1 => Just(JobStoreModelOperation::Reopen),
    ];
    prop::collection::vec(op, 1..60)
}

fn events_up_to(max: usize) -> impl Strategy<Value = Vec<JobEventKind>> {
    let text = || "[a-z\\x00\"\u{1F980}\n]{0,8}";
    let one = prop_oneof![
        (0..=8_u8, prop::option::of(text())).prop_map(|(eighths, message)| {
            JobEventKind::Progress { fraction: f64::from(eighths) / 8.0, message }
        }),
        text().prop_map(|text| JobEventKind::Output { stream: OutputStreamKind::Stderr, text }),
        text().prop_map(|message| JobEventKind::Log { level: LogLevel::Warning, message }),
    ];
    prop::collection::vec(one, 0..max)
}

impl JobStoreModel {
    fn find_job(&mut self, key: u128) -> Option<&mut ModeledJob> {
        self.0.iter_mut().find(|entry| entry.job.id == id(key))
    }

    /// Returns the model of the job `key`, if the job has not ended.
    fn live(&mut self, key: u128) -> Option<&mut ModeledJob> {
        self.find_job(key).filter(|entry| entry.ended.is_none())
    }

    fn accept(&mut self, new: &NewJob) -> bool {
        if self.0.iter().any(|entry| entry.job.id == new.id) {
            return false;
        }
        let job = JobSnapshot {
            id: new.id,
            tool: new.tool.clone(),
            caller: new.caller.clone(),
            state: JobState::Queued,
            created: new.created,
            updated: new.created,
            started: None,
            attempts: 0,
            progress: 0.0,
            message: None,
            keep_for: new.keep,
            last_event: 0,
            artefacts: vec![],
            questions: ClientQuestions::new(),
            outcome: None,
            printed: JobOutputText::default(),
        };
        let mut entry = ModeledJob { job, input: new.input.clone(), events: vec![], ended: None };
        entry.add(new.created, vec![JobEventKind::Queued]);
        self.0.push(entry);
        true
    }

    fn forget(&mut self, now: Timestamp, ended_max: usize) -> Vec<JobId> {
        let mut ended: Vec<(Timestamp, &JobSnapshot)> =
            self.0.iter().filter_map(|entry| Some((entry.ended?, &entry.job))).collect();
        ended.sort_by_key(|(at, _)| *at);
        let beyond = ended.len().saturating_sub(ended_max);
        // Number of jobs of the same caller that ended no earlier.
        let later = |at: usize| {
            let caller = &ended[at].1.caller;
            ended[at..].iter().filter(|(_, job)| job.caller == *caller).count()
        };
        let mut order: Vec<usize> = (0..ended.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(later(*at)));
        let mut due: Vec<JobId> = order[..beyond].iter().map(|at| ended[*at].1.id).collect();
        due.extend(self.0.iter().filter_map(|entry| {
            let ago = now.duration_since(entry.ended?).unsigned_abs();
            (ago > entry.job.keep_for).then_some(entry.job.id)
        }));
        due.sort_unstable();
        due.dedup();
        self.0.retain(|entry| !due.contains(&entry.job.id));
        due
    }
}

impl ModeledJob {
    /// Adds events to the job and returns the number of the first one.
    fn add(&mut self, at: Timestamp, happened: Vec<JobEventKind>) -> u64 {
        let first = self.job.last_event + 1;
        for kind in happened {
            if let JobEventKind::Progress { fraction, message } = &kind {
                self.job.progress = *fraction;
                self.job.message.clone_from(message);
            }
            self.job.updated = at;
            self.job.last_event += 1;
            self.events.push(JobEvent { seq: self.job.last_event, at, kind });
        }
        first
    }
}

fn stamped(at: Timestamp, happened: &[JobEventKind]) -> Vec<TimedJobEvent> {
    happened.iter().map(|kind| (at, kind.clone())).collect()
}

/// Applies `op` to the store and to its model, and compares the results.
async fn step(
    store: &dyn JobStore,
    model: &mut JobStoreModel,
    now: Timestamp,
    op: JobStoreModelOperation,
) {
    match op {
        JobStoreModelOperation::Accept { key, caller, keep } => {
            let caller = Caller::with_key(caller);
            let keep = Duration::from_secs(keep);
            let new = NewJob { caller, keep, created: now, ..job(key) };
            assert_eq!(store.accept(new.clone()).await.is_ok(), model.accept(&new));
        }
        JobStoreModelOperation::Begin(key) => {
            let begun = store.begin(id(key), now).await.expect("an answer");
            let queued = model.live(key).filter(|entry| entry.job.state == JobState::Queued);
            let expected = queued.map(|entry| {
                entry.job.state = JobState::Running;
                entry.job.started = Some(now);
                entry.job.attempts += 1;
                let attempt = entry.job.attempts;
                (
                    attempt,
                    entry.add(now, vec![JobEventKind::Started { attempt }]),
                    entry.input.clone(),
                )
            });
            assert_eq!(
                begun.map(|begun| (begun.attempt, begun.start_event, begun.input)),
                expected
            );
        }
        JobStoreModelOperation::Requeue(key) => {
            store.requeue(id(key), now).await.expect("an answer");
            let running = model.live(key).filter(|entry| entry.job.state == JobState::Running);
            if let Some(entry) = running {
                (entry.job.state, entry.job.updated) = (JobState::Queued, now);
            }
        }
        JobStoreModelOperation::Append(key, happened) => {
            let first = store.append_events(id(key), stamped(now, &happened)).await;
            assert_eq!(first.ok(), model.live(key).map(|entry| entry.add(now, happened)));
        }
        JobStoreModelOperation::Finish { key, state, before, artefacts } => {
            let mut end = end(7, stamped(now, &before));
            (end.at, end.state) = (now, state);
            if !artefacts {
                end.artefacts.clear();
            }
            if state != JobState::Succeeded {
                let cause = "because".to_owned();
                end.outcome = Err(CallError::Failed { message: "no".to_owned(), cause });
            }
            let first = store.finish(id(key), end.clone()).await.expect("an answer");
            let expected = model.live(key).map(|entry| {
                let first = entry.add(now, before);
                entry.add(now, vec![JobEventKind::Finished { state }]);
                (entry.job.state, entry.ended) = (state, Some(now));
                (entry.job.outcome, entry.job.artefacts) = (Some(end.outcome), end.artefacts);
                first
            });
            assert_eq!(first, expected);
        }
        JobStoreModelOperation::Forget { ended_max } => {
            let mut forgotten = store.remove_expired(now, ended_max).await.expect("an answer");
            forgotten.sort_unstable();
            assert_eq!(forgotten, model.forget(now, ended_max));
        }
        JobStoreModelOperation::Reopen => {
            let adopted = adopt_all(store).await.expect("it adopts").jobs;
            let live = model.0.iter().filter(|entry| entry.ended.is_none());
            let expected: Vec<_> = live.map(|entry| (entry.job.id, entry.job.state)).collect();
            let adopted: Vec<_> = adopted.iter().map(|orphan| (orphan.id, orphan.state)).collect();
            assert_eq!(adopted, expected);
        }
    }
}

/// Compares all visible data of the store and the model.
async fn compare(store: &dyn JobStore, model: &JobStoreModel) {
    for key in 1..7 {
        let job = store.job(id(key)).await.expect("an answer");
        let events = store.events(id(key), 0, usize::MAX).await.expect("events");
        let expected = model.0.iter().find(|entry| entry.job.id == id(key));
        assert_eq!(format!("{job:?}"), format!("{:?}", expected.map(|entry| &entry.job)));
        assert_eq!(events, expected.map(|entry| entry.events.clone()).unwrap_or_default());
    }
    for caller in [None, Some(Caller::with_key("ada")), Some(Caller::with_key("bob"))] {
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = store.list(caller.clone(), after, 2).await.expect("a page");
            seen.extend(page.jobs.iter().map(|job| format!("{job:?}")));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let theirs =
            |entry: &&ModeledJob| caller.as_ref().is_none_or(|caller| *caller == entry.job.caller);
        let all = model.0.iter().rev().filter(theirs);
        let expected: Vec<String> = all
            .map(|entry| format!("{:?}", JobSnapshot { outcome: None, ..entry.job.clone() }))
            .collect();
        assert_eq!(seen, expected);
    }
}

/// Runs random operations on a new, empty store of the same engine as `place`, and compares the
/// store with the model after each operation.
pub(in crate::jobs) fn check<P: TestStoreLocation>(place: &P) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let config = ProptestConfig {
        cases: P::MODEL_RUNS,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(&ops(), |ops| {
        runtime.block_on(run(&place.another(), ops));
        Ok(())
    });
    outcome.unwrap_or_else(|err| panic!("{err}"));
}

async fn run(place: &impl TestStoreLocation, ops: Vec<JobStoreModelOperation>) {
    let mut store = place.open().await;
    let mut model = JobStoreModel::default();
    for (second, op) in (1..).zip(ops) {
        if let JobStoreModelOperation::Reopen = op {
            shut_down(store).await;
            store = place.open().await;
        }
        step(&*store, &mut model, at(second), op).await;
        compare(&*store, &model).await;
    }
}
