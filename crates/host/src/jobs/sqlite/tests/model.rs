//! The store against a list in memory, which is too simple to be wrong.

use proptest::prelude::*;

use super::*;

/// A job, what happened to it, and what only the store knows of it.
struct Kept {
    job: JobSnapshot,
    input: serde_json::Value,
    events: Vec<JobEvent>,
    ended: Option<Timestamp>,
}

/// All jobs, in the order in which they were accepted.
#[derive(Default)]
struct Model(Vec<Kept>);

#[derive(Debug, Clone)]
enum Op {
    Accept { key: u128, caller: &'static str, keep: u64 },
    Begin(u128),
    Requeue(u128),
    Append(u128, Vec<JobEventKind>),
    Finish { key: u128, state: JobState, before: Vec<JobEventKind>, artefacts: bool },
    Forget { ended_max: usize },
    Reopen,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = || 1..7_u128;
    let callers = prop::sample::select(vec!["ada", "bob"]);
    let states =
        prop::sample::select(vec![JobState::Succeeded, JobState::Failed, JobState::Canceled]);
    let op = prop_oneof![
        5 => (key(), callers, 0..20_u64)
            .prop_map(|(key, caller, keep)| Op::Accept { key, caller, keep }),
        4 => key().prop_map(Op::Begin),
        2 => key().prop_map(Op::Requeue),
        5 => (key(), said(5)).prop_map(|(key, said)| Op::Append(key, said)),
        4 => (key(), states, said(3), any::<bool>())
            .prop_map(|(key, state, before, artefacts)| Op::Finish { key, state, before, artefacts }),
        2 => (0..6_usize).prop_map(|ended_max| Op::Forget { ended_max }),
        1 => Just(Op::Reopen),
    ];
    prop::collection::vec(op, 1..60)
}

fn said(max: usize) -> impl Strategy<Value = Vec<JobEventKind>> {
    let text = || "[a-z\\x00\"\u{1F980}\n]{0,8}";
    let one = prop_oneof![
        (0..=8_u8, prop::option::of(text())).prop_map(|(eighths, message)| {
            JobEventKind::Progress { fraction: f64::from(eighths) / 8.0, message }
        }),
        text().prop_map(|text| JobEventKind::Output { stream: OutputStream::Stderr, text }),
        text().prop_map(|message| JobEventKind::Log { level: LogLevel::Warning, message }),
    ];
    prop::collection::vec(one, 0..max)
}

impl Model {
    fn of(&mut self, key: u128) -> Option<&mut Kept> {
        self.0.iter_mut().find(|kept| kept.job.id == id(key))
    }

    /// The job, if it has not ended.
    fn live(&mut self, key: u128) -> Option<&mut Kept> {
        self.of(key).filter(|kept| kept.ended.is_none())
    }

    fn accept(&mut self, new: &NewJob) -> bool {
        if self.0.iter().any(|kept| kept.job.id == new.id) {
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
            questions: toolgate_contract::ClientQuestions::new(),
            outcome: None,
        };
        let mut kept = Kept { job, input: new.input.clone(), events: vec![], ended: None };
        kept.add(new.created, vec![JobEventKind::Queued]);
        self.0.push(kept);
        true
    }

    fn forget(&mut self, now: Timestamp, ended_max: usize) -> Vec<JobId> {
        let mut ended: Vec<(Timestamp, &JobSnapshot)> =
            self.0.iter().filter_map(|kept| Some((kept.ended?, &kept.job))).collect();
        ended.sort_by_key(|(at, _)| *at);
        let beyond = ended.len().saturating_sub(ended_max);
        // How many of its caller's ended no earlier.
        let later = |at: usize| {
            let caller = &ended[at].1.caller;
            ended[at..].iter().filter(|(_, job)| job.caller == *caller).count()
        };
        let mut order: Vec<usize> = (0..ended.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(later(*at)));
        let mut due: Vec<JobId> = order[..beyond].iter().map(|at| ended[*at].1.id).collect();
        due.extend(self.0.iter().filter_map(|kept| {
            let ago = now.duration_since(kept.ended?).unsigned_abs();
            (ago > kept.job.keep_for).then_some(kept.job.id)
        }));
        due.sort_unstable();
        due.dedup();
        self.0.retain(|kept| !due.contains(&kept.job.id));
        due
    }
}

impl Kept {
    /// Adds what happened and gives the number of the first.
    fn add(&mut self, at: Timestamp, happened: Vec<JobEventKind>) -> u64 {
        let first = self.job.last_event + 1;
        for what in happened {
            if let JobEventKind::Progress { fraction, message } = &what {
                self.job.progress = *fraction;
                self.job.message.clone_from(message);
            }
            self.job.updated = at;
            self.job.last_event += 1;
            self.events.push(JobEvent { seq: self.job.last_event, at, kind: what });
        }
        first
    }
}

fn stamped(at: Timestamp, happened: &[JobEventKind]) -> Vec<TimedEvent> {
    happened.iter().map(|what| (at, what.clone())).collect()
}

/// Does `op` to both and compares what they answer.
async fn step(store: &SqliteStore, model: &mut Model, now: Timestamp, op: Op) {
    match op {
        Op::Accept { key, caller, keep } => {
            let caller = Caller::with_key(caller);
            let keep = Duration::from_secs(keep);
            let new = NewJob { caller, keep, created: now, ..job(key) };
            assert_eq!(store.accept(new.clone()).await.is_ok(), model.accept(&new));
        }
        Op::Begin(key) => {
            let begun = store.begin(id(key), now).await.expect("an answer");
            let queued = model.live(key).filter(|kept| kept.job.state == JobState::Queued);
            let expected = queued.map(|kept| {
                kept.job.state = JobState::Running;
                kept.job.started = Some(now);
                kept.job.attempts += 1;
                let attempt = kept.job.attempts;
                (
                    attempt,
                    kept.add(now, vec![JobEventKind::Started { attempt }]),
                    kept.input.clone(),
                )
            });
            assert_eq!(
                begun.map(|begun| (begun.attempt, begun.start_event, begun.input)),
                expected
            );
        }
        Op::Requeue(key) => {
            store.requeue(id(key), now).await.expect("an answer");
            let running = model.live(key).filter(|kept| kept.job.state == JobState::Running);
            if let Some(kept) = running {
                (kept.job.state, kept.job.updated) = (JobState::Queued, now);
            }
        }
        Op::Append(key, happened) => {
            let first = store.append_events(id(key), stamped(now, &happened)).await;
            assert_eq!(first.ok(), model.live(key).map(|kept| kept.add(now, happened)));
        }
        Op::Finish { key, state, before, artefacts } => {
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
            let expected = model.live(key).map(|kept| {
                let first = kept.add(now, before);
                kept.add(now, vec![JobEventKind::Finished { state }]);
                (kept.job.state, kept.ended) = (state, Some(now));
                (kept.job.outcome, kept.job.artefacts) = (Some(end.outcome), end.artefacts);
                first
            });
            assert_eq!(first, expected);
        }
        Op::Forget { ended_max } => {
            let mut forgotten = store.remove_expired(now, ended_max).await.expect("an answer");
            forgotten.sort_unstable();
            assert_eq!(forgotten, model.forget(now, ended_max));
        }
        Op::Reopen => {
            let adopted = store.adopt_all().await.expect("it adopts").jobs;
            let live = model.0.iter().filter(|kept| kept.ended.is_none());
            let expected: Vec<_> = live.map(|kept| (kept.job.id, kept.job.state)).collect();
            let adopted: Vec<_> = adopted.iter().map(|orphan| (orphan.id, orphan.state)).collect();
            assert_eq!(adopted, expected);
        }
    }
}

/// Compares all that can be seen of both.
async fn compare(store: &SqliteStore, model: &Model) {
    for key in 1..7 {
        let job = store.job(id(key)).await.expect("an answer");
        let events = store.events(id(key), 0, usize::MAX).await.expect("events");
        let expected = model.0.iter().find(|kept| kept.job.id == id(key));
        assert_eq!(format!("{job:?}"), format!("{:?}", expected.map(|kept| &kept.job)));
        assert_eq!(events, expected.map(|kept| kept.events.clone()).unwrap_or_default());
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
        let theirs = |kept: &&Kept| caller.as_ref().is_none_or(|caller| *caller == kept.job.caller);
        let all = model.0.iter().rev().filter(theirs);
        let expected: Vec<String> = all
            .map(|kept| format!("{:?}", JobSnapshot { outcome: None, ..kept.job.clone() }))
            .collect();
        assert_eq!(seen, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_is_done_the_store_says_what_a_list_in_memory_would(ops in ops()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let folder = folder();
            let mut store = open(&folder);
            let mut model = Model::default();
            for (second, op) in (1..).zip(ops) {
                if let Op::Reopen = op {
                    drop(store);
                    store = open(&folder);
                }
                step(&store, &mut model, at(second), op).await;
                compare(&store, &model).await;
            }
        });
    }
}
